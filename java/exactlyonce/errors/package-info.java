/** What a failure of Kafka's client is called. */
package exactlyonce.errors;

/** What the tasks of an executor share: producers, their settings, and what the brokers say. */
package exactlyonce.producer;

/** What this JVM and Python say to each other: messages, and what Python cannot find out by itself. */
package exactlyonce.border;

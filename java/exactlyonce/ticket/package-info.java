/** What a task is told: the ticket, which columns make a record, and the topics that rows may name. */
package exactlyonce.ticket;

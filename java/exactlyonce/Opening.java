package exactlyonce;

import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;

/**
 * Asks for the topic of a part, and initialises its producer, while Spark fetches the first rows: on two cores 5 to 12 ms of each part.
 *
 * <p>A part without rows has no transaction. Its producer goes back as it is.
 */
final class Opening {
    /** Parts of sinks that had rows in their last batch here. Of any other part the producer waits for a row: there may be none. */
    private static final Set<String> HAD_ROWS = ConcurrentHashMap.newKeySet();

    private final String part;
    private final CompletableFuture<Integer> partitions;
    private final CompletableFuture<TransactionalProducer> producer;
    private boolean taken;

    /** Begins, for part {@code number} of {@code ticket}, whose transactional id is {@code name}. */
    Opening(Ticket ticket, int number, String name) {
        part = ticket.sink() + ":" + number;
        partitions = beside(() -> asked(ticket));
        producer = ticket.isTransactional() && HAD_ROWS.contains(part)
                ? partitions.thenApply(count -> opened(ticket, name, count))
                : null;
    }

    /** Returns the number of partitions of the topic; raises what {@link Cluster#look} does. */
    int partitions() throws Exception {
        return partitions.get();
    }

    /** Returns a producer that has initialised {@code name}, behind which the task was in time. */
    TransactionalProducer producer(Ticket ticket, String name, int partitions) throws Exception {
        if (producer == null) return opened(ticket, name, partitions);
        TransactionalProducer opened = producer.get();
        taken = true;
        return opened;
    }

    /** Ends with its part: a producer that nobody took goes back when it is there. */
    void end(boolean empty) {
        if (empty) HAD_ROWS.remove(part);
        else HAD_ROWS.add(part);
        if (producer != null && !taken) producer.thenAccept(Producers::leave);
    }

    /** Initialises {@code name}, and makes sure that the task is in time behind that: a late one begins nothing. */
    static TransactionalProducer opened(Ticket ticket, String name, int partitions) {
        TransactionalProducer opened = Producers.take(ProducerSettings.of(ticket, partitions), name);
        try {
            Cluster cluster = Cluster.of(ticket);
            cluster.checkInTime(ticket, Cluster.ask(cluster.logEnd(ticket.log())));
            return opened;
        } catch (Exception e) {
            Producers.leave(opened);
            throw Errors.of(e, name);
        }
    }

    private static int asked(Ticket ticket) {
        try {
            return Cluster.of(ticket).look(ticket.rows().option());
        } catch (Exception e) {
            throw new CompletionException(e);
        }
    }

    private static <T> CompletableFuture<T> beside(Supplier<T> work) {
        ClassLoader mine = Thread.currentThread().getContextClassLoader(); // the client finds the user's classes by it
        return CompletableFuture.supplyAsync(
                work,
                command -> Producers.beside(() -> {
                    Thread.currentThread().setContextClassLoader(mine);
                    command.run();
                }));
    }
}

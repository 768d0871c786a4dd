package exactlyonce.write;

import exactlyonce.errors.Errors;
import exactlyonce.producer.Cluster;
import exactlyonce.producer.ProducerSettings;
import exactlyonce.producer.Producers;
import exactlyonce.producer.Topic;
import exactlyonce.producer.TransactionalProducer;
import exactlyonce.ticket.Ticket;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

/**
 * Asks for the topic of a part, and initialises its producer meanwhile, while Spark fetches the first rows: on two cores 5 to 12 ms of each
 * part.
 *
 * <p>A part without rows has no transaction. Its producer goes back as it is.
 */
final class Opening {
    /** Parts of sinks that had rows in their last batch here. Of any other part the producer waits for a row: there may be none. */
    private static final Set<String> HAD_ROWS = ConcurrentHashMap.newKeySet();

    /** Whether a task is in time is asked again where its first row comes later than this behind the first answer: a sort may take minutes. */
    private static final long LOOK_IS_GOOD_NANOS = TimeUnit.SECONDS.toNanos(1);

    private final String part;
    private final CompletableFuture<Topic> topic;
    private final CompletableFuture<TransactionalProducer> producer;
    private volatile long looked;
    private boolean taken;

    /** Begins, for part {@code number} of {@code ticket}, whose transactional id is {@code name}. */
    Opening(Ticket ticket, int number, String name) {
        part = ticket.sink() + ":" + number;
        topic = beside(
                () -> Cluster.of(ticket).topic(ticket.execution(), ticket.rows().option()));
        producer = ticket.isTransactional() && HAD_ROWS.contains(part) ? beside(() -> guessed(ticket, name)) : null;
    }

    /** Returns the topic; raises what {@link Cluster#current} does. */
    Topic topic() throws Exception {
        return topic.get();
    }

    /** Returns a producer that has initialised {@code name}, behind which the task was in time. */
    TransactionalProducer producer(Ticket ticket, String name, Topic topic) throws Exception {
        Producers.Use use = ProducerSettings.use(ticket, topic);
        if (producer == null) return opened(ticket, name, use);
        TransactionalProducer opened = producer.get();
        taken = true;
        if (!opened.use.equals(use)) { // it is for the topic as it was
            Producers.leave(opened);
            return opened(ticket, name, use);
        }
        return System.nanoTime() - looked < LOOK_IS_GOOD_NANOS ? opened : inTime(ticket, name, opened);
    }

    /**
     * Ends with its part. A producer that nobody took goes back when it has initialised its id, and the task waits for that: behind its end the id
     * may be the one of a later batch, whose transaction the request would abort.
     */
    void end(boolean empty) {
        if (empty) HAD_ROWS.remove(part);
        else HAD_ROWS.add(part);
        if (producer == null || taken) return;
        try {
            Producers.leave(producer.join());
        } catch (CompletionException e) {
            // it is closed, or went back
        }
    }

    /** Opens a producer for the topic as it was last seen: only the first part here waits for the answer. */
    private TransactionalProducer guessed(Ticket ticket, String name) throws Exception {
        Topic known = Cluster.of(ticket).known(ticket.rows().option());
        Producers.Use use = ProducerSettings.use(ticket, known == null ? topic.get() : known);
        Failpoints.reach("initialising");
        TransactionalProducer opened = opened(ticket, name, use);
        looked = System.nanoTime();
        return opened;
    }

    /** Initialises {@code name}, and makes sure that the task is in time behind that: a late one begins nothing. */
    static TransactionalProducer opened(Ticket ticket, String name, Producers.Use use) {
        return inTime(ticket, name, Producers.take(use, name));
    }

    private static TransactionalProducer inTime(Ticket ticket, String name, TransactionalProducer opened) {
        try {
            Cluster.of(ticket).checkInTime(ticket);
            return opened;
        } catch (Exception e) {
            Producers.leave(opened);
            throw Errors.of(e, name);
        }
    }

    /** Does {@code work} on a thread beside the task's. */
    static <T> CompletableFuture<T> beside(Callable<T> work) {
        ClassLoader mine = Thread.currentThread().getContextClassLoader(); // the client finds the user's classes by it
        return CompletableFuture.supplyAsync(
                () -> {
                    Thread.currentThread().setContextClassLoader(mine);
                    try {
                        return work.call();
                    } catch (Exception e) {
                        throw new CompletionException(e);
                    }
                },
                Producers::beside);
    }
}

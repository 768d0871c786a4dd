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
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.TopicPartition;

/**
 * Asks for the topic of a part, initialises its producer meanwhile, and begins its transaction with the partitions that its rows usually go to,
 * while Spark fetches the first rows: on two cores 5 to 12 ms of each part, on far brokers three round trips.
 *
 * <p>The coordinator is to name the partitions that have records, and no others. So a transaction that was begun with more is begun again.
 */
final class Opening {
    /** A task whose first row comes later than this behind the answer that it is in time asks, and begins, again: a sort may take minutes. */
    private static final long LOOK_IS_GOOD_NANOS = TimeUnit.SECONDS.toNanos(1);

    private final String part;
    private final CompletableFuture<Topic> topic;
    private final CompletableFuture<TransactionalProducer> producer;
    private volatile long looked;
    private volatile Set<TopicPartition> begunWith = Set.of();
    private boolean taken;

    /** Begins, for part {@code number} of {@code ticket}, whose transactional id is {@code name}. */
    Opening(Ticket ticket, int number, String name) {
        part = ticket.sink() + ":" + number;
        topic = beside(
                () -> Cluster.of(ticket).topic(ticket.execution(), ticket.rows().option()));
        producer = ticket.isTransactional() && Usual.hasRows(part) ? beside(() -> guessed(ticket, name)) : null;
    }

    /** Returns the topic; raises what {@link Cluster#current} does. */
    Topic topic() throws Exception {
        return topic.get();
    }

    /** Returns a producer that has initialised {@code name}, behind which the task was in time; it may have begun: {@link #begunWith}. */
    TransactionalProducer producer(Ticket ticket, String name, Producers.Use use) throws Exception {
        if (producer == null) return opened(ticket, name, use);
        TransactionalProducer opened = producer.get();
        taken = true;
        if (!opened.use.equals(use)) { // it is for the topic as it was
            giveBack(opened);
            return opened(ticket, name, use);
        }
        if (System.nanoTime() - looked < LOOK_IS_GOOD_NANOS) return opened;
        if (begunWith.isEmpty()) return inTime(ticket, name, opened);
        return again(ticket, name, opened);
    }

    /** Returns the partitions with which the transaction has begun; none when it is still to begin. */
    Set<TopicPartition> begunWith() {
        return begunWith;
    }

    /** Returns a producer as {@link #producer} does, which has not begun. Nothing was sent by {@code opened}. */
    TransactionalProducer again(Ticket ticket, String name, TransactionalProducer opened) {
        giveBack(opened);
        return opened(ticket, name, opened.use);
    }

    /** Gives back a producer that has sent nothing, behind the end of what it has begun: a late answer would count as one of its next transaction. */
    private void giveBack(TransactionalProducer unused) {
        if (begunWith.isEmpty()) Producers.leave(unused);
        else Producers.end(unused);
        begunWith = Set.of();
    }

    /**
     * Ends with its part. A producer that nobody took goes back when it has initialised its id, and has ended its transaction, and the task waits
     * for that: behind its end the id may be the one of a later batch, whose transaction the request would abort.
     *
     * @param wrote the partitions of all rows, known before they were sent; empty where they were not, null without rows
     */
    void end(Set<TopicPartition> wrote) {
        if (wrote == null || !topic.isDone() || topic.isCompletedExceptionally()) Usual.noteEmpty(part);
        else Usual.note(part, topic.join(), wrote);
        if (producer == null || taken) return;
        try {
            giveBack(producer.join());
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
        Set<TopicPartition> usual = Usual.partitions(part, use.topic());
        if (!usual.isEmpty() && FirstRecords.mayWait(ticket.client()) && opened.canExpect()) {
            begunWith = usual;
            begin(opened, usual);
        }
        return opened;
    }

    private static void begin(TransactionalProducer opened, Set<TopicPartition> usual) {
        try {
            opened.begin(usual);
        } catch (RuntimeException e) {
            Producers.abort(opened);
            throw e;
        }
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

package exactlyonce.producer;

import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.kafka.clients.producer.KafkaProducer;

/** The producers of this executor. A transactional one serves one part after the other; under the other guarantees, parts share one. */
public final class Producers {
    /** Time for the records that a shared producer still has, when nobody has used it for minutes: none, unless its brokers are away. */
    private static final Duration LAST_RECORDS = Duration.ofSeconds(10);

    /**
     * What parts may use the same producer for.
     *
     * @param topic as the brokers describe it, since a producer goes on with what it knows of a topic that was made anew; null: rows name it
     */
    public record Use(Map<String, Object> settings, Topic topic) {
        public long batchSize() {
            return Long.parseLong((String) settings.get("batch.size"));
        }
    }

    /** A producer without transactions, and how many parts use it. */
    public static final class Shared {
        private final Use use;
        private final KafkaProducer<byte[], byte[]> producer;
        private int parts;

        private Shared(Use use) {
            this.use = use;
            producer = new KafkaProducer<>(use.settings);
        }

        public KafkaProducer<byte[], byte[]> producer() {
            return producer;
        }
    }

    private static final ExecutorService BESIDE = Executors.newCachedThreadPool(work -> {
        Thread thread = new Thread(work, "exactly-once");
        thread.setDaemon(true);
        return thread;
    });

    private static final Idle<TransactionalProducer> IDLE = new Idle<>(TransactionalProducer::leave);
    private static final Idle<Shared> UNSHARED = new Idle<>(one -> one.producer.close(LAST_RECORDS));
    private static final Map<Use, Shared> SHARED = new HashMap<>();

    private Producers() {}

    /** Runs {@code work} on a thread beside the tasks. */
    public static void beside(Runnable work) {
        BESIDE.execute(work);
    }

    /** Returns a producer that has initialised {@code id}, and nothing else: rather the one that had this id before, which knows its coordinator. */
    public static TransactionalProducer take(Use use, String id) {
        TransactionalProducer idle =
                IDLE.take(one -> one.use.equals(use), one -> one.id().equals(id));
        if (idle == null) return TransactionalProducer.open(use, id);
        try {
            idle.renew(id);
            return idle;
        } catch (RuntimeException e) {
            idle.leave();
            throw e;
        }
    }

    /** Takes back a producer whose transaction stays open, for the driver to end. */
    public static void leave(TransactionalProducer producer) {
        if (TransactionalProducer.isReusable()) IDLE.leave(producer);
        else beside(producer::leave);
    }

    /** Closes the producers that nobody uses: they log in with what they read when they were made. */
    public static void forget() {
        IDLE.closeAll();
        UNSHARED.closeAll();
    }

    /** Aborts a transaction that holds nothing, and takes its producer back. */
    public static void end(TransactionalProducer producer) {
        try {
            producer.abortTransaction();
            leave(producer);
        } catch (RuntimeException e) { // the driver's sweep finds what is left
            producer.leave();
        }
    }

    /** Aborts a transaction and drops its producer; not on the task's own thread, which may be interrupted. */
    public static void abort(TransactionalProducer producer) {
        beside(() -> {
            try {
                producer.abortTransaction();
            } catch (RuntimeException e) {
                // the driver's sweep finds what is left
            } finally {
                producer.leave();
            }
        });
    }

    /** Returns the producer without transactions that all parts with this use share; each gives it back. */
    public static synchronized Shared share(Use use) {
        Shared found = SHARED.get(use);
        if (found == null) found = UNSHARED.take(one -> one.use.equals(use), one -> true);
        if (found == null) found = new Shared(use);
        SHARED.put(use, found);
        found.parts++;
        return found;
    }

    /** Takes it back from one part. */
    public static synchronized void unshare(Shared one) {
        if (--one.parts > 0) return;
        SHARED.remove(one.use);
        UNSHARED.leave(one);
    }
}

package exactlyonce;

import java.util.ArrayDeque;
import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;

/** The producers of this executor. A transactional one serves one part after the other; under the other guarantees, parts share one. */
final class Producers {
    /** A producer that nobody used for this long closes its connections. */
    private static final long IDLE_NS = TimeUnit.MINUTES.toNanos(5);

    private record Idle(TransactionalProducer producer, long since) {}

    private static final ArrayDeque<Idle> IDLE = new ArrayDeque<>();
    private static final ConcurrentHashMap<Map<String, Object>, KafkaProducer<byte[], byte[]>> SHARED =
            new ConcurrentHashMap<>();

    private static final ExecutorService BESIDE = Executors.newCachedThreadPool(work -> {
        Thread thread = new Thread(work, "exactly-once");
        thread.setDaemon(true);
        return thread;
    });

    private Producers() {}

    /** Runs {@code work} on a thread beside the tasks. */
    static void beside(Runnable work) {
        BESIDE.execute(work);
    }

    /** Returns a producer with these settings that has initialised {@code id}, and nothing else. */
    static TransactionalProducer take(Map<String, Object> settings, String id) {
        TransactionalProducer idle = idle(settings, id);
        if (idle == null) return TransactionalProducer.open(settings, id);
        try {
            idle.renew(id);
            return idle;
        } catch (RuntimeException e) {
            idle.leave();
            throw e;
        }
    }

    /** Prefers the producer that had this id before: it is connected to its coordinator. */
    private static TransactionalProducer idle(Map<String, Object> settings, String id) {
        TransactionalProducer any = null;
        synchronized (IDLE) {
            for (Iterator<Idle> i = IDLE.iterator(); i.hasNext(); ) {
                Idle one = i.next();
                if (System.nanoTime() - one.since > IDLE_NS) {
                    i.remove();
                    BESIDE.execute(one.producer::leave);
                } else if (one.producer.settings.equals(settings)
                        && (any == null || one.producer.id().equals(id))) {
                    any = one.producer;
                }
            }
            TransactionalProducer taken = any;
            IDLE.removeIf(one -> one.producer == taken);
        }
        return any;
    }

    /** Takes back a producer whose transaction stays open, for the driver to end. */
    static void leave(TransactionalProducer producer) {
        if (!TransactionalProducer.isReusable()) {
            BESIDE.execute(producer::leave);
            return;
        }
        synchronized (IDLE) {
            IDLE.addLast(new Idle(producer, System.nanoTime()));
        }
    }

    /** Closes the producers that nobody uses: they log in with what they read when they were made. */
    static void forget() {
        synchronized (IDLE) {
            for (Idle one : IDLE) BESIDE.execute(one.producer::leave);
            IDLE.clear();
        }
    }

    /** Aborts a transaction and drops its producer; not on the task's own thread, which may be interrupted. */
    static void abort(TransactionalProducer producer) {
        BESIDE.execute(() -> {
            try {
                producer.abortTransaction();
            } catch (RuntimeException e) {
                // the driver's sweep finds what is left
            } finally {
                producer.leave();
            }
        });
    }

    /** Returns the producer without transactions that all parts with these settings share. */
    static KafkaProducer<byte[], byte[]> shared(Map<String, Object> settings) {
        return SHARED.computeIfAbsent(settings, KafkaProducer::new);
    }
}

package exactlyonce.producer;

import exactlyonce.border.Border;
import exactlyonce.border.DeadLetterTarget;
import exactlyonce.errors.Errors;
import exactlyonce.ticket.Ticket;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The settings of the producers of a part: the user's, what the guarantee fixes, and what the sink chooses where the user did not. */
public final class ProducerSettings {
    private static final Logger LOG = LoggerFactory.getLogger(ProducerSettings.class);

    /** Nothing of a part is wanted before its flush, so records wait until a batch is full or the flush comes: this long at most. */
    private static final long LINGER_MS = 10_000;

    /** Larger batches bring no more (measured: docs/measurements.md). */
    private static final int BATCH_SIZE = 256 * 1024;

    /**
     * Kafka's default, for topics whose limit is unknown. The client splits a batch that is larger than the topic's limit into batches of
     * batch.size, for ever where that is above the limit.
     */
    private static final int SAFE_BATCH_SIZE = 16 * 1024;

    /** Below this a batch is mostly its own header. */
    private static final int SMALLEST_BATCH = 1024;

    /** Batches of a partition in the buffer: one is filled while another one is on its way. */
    private static final int BATCHES_OF_A_PARTITION = 2;

    private static final long DEFAULT_BUFFER = 32L * 1024 * 1024;
    private static final long DEFAULT_REQUEST = 1024 * 1024;
    private static final long DEFAULT_DELIVERY_MS = 120_000;
    private static final long DEFAULT_REQUEST_MS = 30_000;

    /** Each look-up of a coordinator costs the client this long; Kafka's default of 100 ms is for clients that wait for brokers. */
    private static final String RETRY_BACKOFF_MS = "10";

    private static final AtomicBoolean WARNED_OF_MEMORY = new AtomicBoolean(), WARNED_OF_LIMIT = new AtomicBoolean();

    /** The client logs each look at its settings. */
    private static final Set<Map<String, Object>> CHECKED = ConcurrentHashMap.newKeySet();

    private ProducerSettings() {}

    /** Makes sure on the driver that the client takes the settings, before a task finds out. */
    public static void check(Ticket ticket) {
        Map<String, Object> settings = of(ticket, new Topic(Uuid.ZERO_UUID, 1, Topic.UNKNOWN));
        if (CHECKED.contains(settings)) return;
        try {
            new ProducerConfig(new HashMap<>(settings));
            checkDelivery(ticket.client());
            Cluster.of(ticket); // reads keys and certificates
            CHECKED.add(settings);
        } catch (ConfigException e) {
            throw Errors.of(e, "sink '" + ticket.sink() + "'");
        }
    }

    /** The client compares these in a producer that it makes, and not among settings. */
    private static void checkDelivery(Map<String, String> user) {
        long delivery = number(user, "delivery.timeout.ms", Long.MAX_VALUE);
        long linger = number(user, "linger.ms", 0), request = number(user, "request.timeout.ms", 0);
        if (linger + request > delivery)
            throw new ConfigException(
                    "delivery.timeout.ms",
                    delivery,
                    "it must be at least linger.ms + request.timeout.ms, " + (linger + request));
    }

    /** Returns what a part uses a producer for that writes to {@code topic}; where rows name their topics, that is the first one. */
    public static Producers.Use use(Ticket ticket, Topic topic) {
        Map<String, Object> settings = of(ticket, topic);
        DeadLetterTarget dead = ticket.dead();
        if (dead != null) { // a row that is too large for the user's limit is a record of that topic
            long largest = Math.min(dead.largest(), bufferMemory(ticket.client()));
            settings.put("max.request.size", String.valueOf(Math.max(maxRequestSize(ticket.client()), largest)));
        }
        return use(ticket, topic, settings);
    }

    /** Returns the same for a producer that refuses what is above the user's own limit. */
    public static Producers.Use useAsGiven(Ticket ticket, Topic topic) {
        return use(ticket, topic, of(ticket, topic));
    }

    private static Producers.Use use(Ticket ticket, Topic topic, Map<String, Object> settings) {
        return new Producers.Use(settings, ticket.rows().option() == null ? null : topic);
    }

    public static long maxRequestSize(Map<String, String> user) {
        return number(user, "max.request.size", DEFAULT_REQUEST);
    }

    static long bufferMemory(Map<String, String> user) {
        return number(user, "buffer.memory", DEFAULT_BUFFER);
    }

    private static Map<String, Object> of(Ticket ticket, Topic topic) {
        Map<String, String> user = ticket.client();
        Map<String, Object> found = new HashMap<>(user);
        found.put("key.serializer", ByteArraySerializer.class.getName());
        found.put("value.serializer", ByteArraySerializer.class.getName());
        boolean waits = ticket.guarantee() != Border.Guarantee.NONE;
        found.put("acks", waits ? "all" : "1");
        found.put("enable.idempotence", String.valueOf(waits));
        if (ticket.isTransactional()) found.put("transaction.timeout.ms", String.valueOf(ticket.timeoutMs()));
        found.putIfAbsent("retry.backoff.ms", RETRY_BACKOFF_MS);
        found.put("batch.size", String.valueOf(batchSize(user, topic)));
        if (waits) {
            long delivery = number(user, "delivery.timeout.ms", DEFAULT_DELIVERY_MS);
            long room = Math.max(0, delivery - number(user, "request.timeout.ms", 0));
            long linger = number(user, "linger.ms", Math.min(room, Math.min(LINGER_MS, delivery / 4)));
            found.put("linger.ms", String.valueOf(linger));
            long request = Math.max(
                    1, Math.min(DEFAULT_REQUEST_MS, delivery - linger)); // the client refuses a sum above delivery
            found.putIfAbsent("request.timeout.ms", String.valueOf(request));
        }
        return found;
    }

    /**
     * Returns a size of which two batches of each partition fit into the buffer, since a full one makes them all go out half empty; and no more
     * than the topic takes.
     */
    static long batchSize(Map<String, String> user, Topic topic) {
        long wanted = number(user, "batch.size", BATCH_SIZE);
        long room = bufferMemory(user) / ((long) BATCHES_OF_A_PARTITION * Math.max(1, topic.partitions()));
        long size = Math.min(wanted, Math.max(SMALLEST_BATCH, room)), limit = limit(user, topic);
        if (size < wanted && user.containsKey("batch.size") && !WARNED_OF_MEMORY.getAndSet(true))
            LOG.warn(
                    "kafka.batch.size={} times {} partitions does not fit into kafka.buffer.memory; the sink uses {}."
                            + " Raise kafka.buffer.memory, or leave kafka.batch.size out",
                    wanted,
                    topic.partitions(),
                    size);
        if (size <= limit) return size;
        if (user.containsKey("batch.size") && !WARNED_OF_LIMIT.getAndSet(true))
            LOG.warn(
                    "kafka.batch.size={} is above the topic's max.message.bytes={}, which the sink uses. Raise"
                            + " max.message.bytes, or leave kafka.batch.size out",
                    wanted,
                    limit);
        return limit;
    }

    /** Returns what a batch for {@code topic} may have at most: where nobody may read the topic's limit, the user's own size, else a safe one. */
    public static long limit(Map<String, String> user, Topic topic) {
        return topic.largestBatch() != Topic.UNKNOWN
                ? topic.largestBatch()
                : number(user, "batch.size", SAFE_BATCH_SIZE);
    }

    private static long number(Map<String, String> settings, String name, long otherwise) {
        String found = settings.get(name);
        try {
            return found == null ? otherwise : Long.parseLong(found.strip());
        } catch (NumberFormatException e) {
            return otherwise; // the client says so, in check()
        }
    }
}

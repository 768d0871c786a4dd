package exactlyonce.producer;

import exactlyonce.SinkException;
import exactlyonce.errors.Errors;
import exactlyonce.ticket.Ticket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Predicate;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** What the tasks of an executor ask a cluster, over one connection. */
public final class Cluster {
    /** Time for one question. */
    private static final int ASK_MS = 30_000;

    /** Time for reading what the commit log says to a late task, which few tasks ever have to. */
    private static final long READ_MS = 10_000;

    /** Time for the leaders of a new topic: an election takes less, and a busy broker took 7 s to begin with 300 partitions. */
    private static final int LEADERS_MS = 15_000;

    /** Time for a leader of the commit log, which the admin client is asked about after that. */
    private static final Duration END_LIMIT = Duration.ofSeconds(5);

    private static final ConcurrentHashMap<Map<String, String>, Cluster> CLUSTERS = new ConcurrentHashMap<>();

    static {
        Idle.regularly(Cluster::closeUnused);
    }

    /** What the brokers answered an execution about a topic, or about its settings. */
    private record Asked<T>(String execution, FutureTask<T> answer) {}

    private final Map<String, Object> reader;
    private final Admin admin;
    private final Admin settingsAdmin; // Kafka's admin client sends one request after the other
    /** Offsets of a commit log without a record. */
    private record Markers(long from, long to) {}

    private final ConcurrentHashMap<String, Markers> markers = new ConcurrentHashMap<>();
    private final ConcurrentHashMap<String, Topic> topics = new ConcurrentHashMap<>();
    private final ConcurrentHashMap<String, Asked<Topic>> descriptions = new ConcurrentHashMap<>();
    private final ConcurrentHashMap<String, Asked<Config>> configs = new ConcurrentHashMap<>();
    private long usedNs;

    private Cluster(Map<String, String> client) {
        admin = Admin.create(only(client, AdminClientConfig.configNames()));
        settingsAdmin = Admin.create(only(client, AdminClientConfig.configNames()));
        reader = only(client, ConsumerConfig.configNames());
        reader.put("enable.auto.commit", "false");
        reader.put("allow.auto.create.topics", "false");
    }

    /** Returns this JVM's connection with the settings of {@code ticket}; to ask at once, since one that nobody asks closes. */
    public static Cluster of(Ticket ticket) {
        try {
            return CLUSTERS.compute(ticket.client(), (client, known) -> {
                Cluster found = known == null ? new Cluster(client) : known;
                found.usedNs = System.nanoTime();
                return found;
            });
        } catch (KafkaException e) {
            throw Errors.of(e, "sink '" + ticket.sink() + "'");
        }
    }

    /** Forgets this JVM's connections with the settings of {@code ticket}: the next part reads keys and certificates anew. */
    public static void forget(Ticket ticket) {
        Cluster refused = CLUSTERS.remove(ticket.client());
        if (refused != null) refused.close();
        LogEnds.forget();
    }

    private static void closeUnused(long unusedNs) {
        for (Map<String, String> client : CLUSTERS.keySet())
            CLUSTERS.computeIfPresent(client, (c, one) -> {
                if (System.nanoTime() - one.usedNs < unusedNs) return one;
                one.close();
                return null;
            });
    }

    private void close() {
        for (Admin one : List.of(admin, settingsAdmin)) Producers.beside(() -> one.close(Duration.ofMillis(ASK_MS)));
    }

    /** Returns what was last known of a topic; null for nothing. */
    public Topic known(String topic) {
        return topics.get(topic);
    }

    /** Forgets what is known of a topic: something failed there. */
    public void forget(String topic) {
        topics.remove(topic);
        descriptions.remove(topic);
        configs.remove(topic);
    }

    /** Returns what {@link #current} says, or raises it: one question in each execution, since the topic may have been deleted after the last one. */
    public Topic topic(String execution, String topic) throws Exception {
        return once(descriptions, execution, topic, () -> current(topic));
    }

    /**
     * Returns the settings of a topic, as they are in this execution.
     *
     * @throws Exception the client's; when this principal may not read them (DESCRIBE_CONFIGS)
     */
    public Config config(String execution, String topic) throws Exception {
        return once(configs, execution, topic, () -> ask(settingsOf(topic)));
    }

    private static <T> T once(
            ConcurrentHashMap<String, Asked<T>> known, String execution, String topic, Callable<T> question)
            throws Exception {
        Asked<T> one = known.compute(
                topic,
                (name, before) -> before != null && before.execution.equals(execution)
                        ? before
                        : new Asked<>(execution, new FutureTask<>(question)));
        one.answer.run(); // unless another part does
        try {
            return one.answer.get();
        } catch (ExecutionException e) {
            known.remove(topic, one);
            throw e;
        }
    }

    /**
     * Asks the brokers for a topic. A producer would wait for a topic that does not exist (any more), and make it anew where the brokers allow
     * that.
     *
     * @throws Exception the client's; when it does not exist, or this principal may not describe it
     */
    public Topic current(String topic) throws Exception {
        Topic known = topics.get(topic);
        try {
            Topic seen = known == null ? null : again(topic, known);
            if (seen == null) {
                KafkaFuture<Config> settings = settingsOf(topic);
                TopicDescription found = ask(
                        admin.describeTopics(List.of(topic)).topicNameValues().get(topic));
                awaitLeaders(topic, found.partitions());
                seen = new Topic(found.topicId(), found.partitions().size(), largestBatch(settings));
            }
            topics.put(topic, seen);
            return seen;
        } catch (Exception e) {
            topics.remove(topic);
            throw e;
        }
    }

    /**
     * Asks by the topic's id, in one round trip, and for its limit in the same one; by name it takes two.
     *
     * @return null when it is gone, or another one, or the brokers are too old
     */
    private Topic again(String topic, Topic known) throws InterruptedException, TimeoutException {
        if (known.id().equals(Uuid.ZERO_UUID)) return null;
        boolean readable = known.largestBatch() != Topic.UNKNOWN; // where it is not, brokers log each try
        KafkaFuture<Config> settings = readable ? settingsOf(topic) : null;
        try {
            TopicCollection ids = TopicCollection.ofTopicIds(List.of(known.id()));
            TopicDescription found =
                    ask(admin.describeTopics(ids).topicIdValues().get(known.id()));
            if (found.partitions().size() != known.partitions()) return null;
        } catch (ExecutionException e) {
            return null;
        }
        int largest = readable ? largestBatch(settings) : Topic.UNKNOWN;
        return new Topic(known.id(), known.partitions(), largest == Topic.UNKNOWN ? known.largestBatch() : largest);
    }

    /** Returns the limit of a topic's batches; a principal needs DESCRIBE_CONFIGS for that. */
    private static int largestBatch(KafkaFuture<Config> settings) throws InterruptedException, TimeoutException {
        try {
            return Integer.parseInt(ask(settings).get("max.message.bytes").value());
        } catch (ExecutionException e) {
            return Topic.UNKNOWN;
        }
    }

    private KafkaFuture<Config> settingsOf(String topic) {
        ConfigResource named = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        return settingsAdmin.describeConfigs(List.of(named)).values().get(named);
    }

    /**
     * Waits until the leaders of a topic are at work that was perhaps just made, or made larger. Else one may refuse the first batch of a producer
     * and take the second one: it then refuses the first as out of order until the part fails.
     */
    private void awaitLeaders(String topic, List<TopicPartitionInfo> partitions) throws InterruptedException {
        Map<TopicPartition, OffsetSpec> leaders = new HashMap<>();
        for (TopicPartitionInfo one : partitions)
            if (one.leader() != null && !one.leader().isEmpty())
                leaders.put(new TopicPartition(topic, one.partition()), OffsetSpec.latest());
        try {
            admin.listOffsets(leaders, new ListOffsetsOptions().timeoutMs(LEADERS_MS))
                    .all()
                    .get();
        } catch (ExecutionException e) {
            // the producer waits for a leader that is away, and says so
        }
    }

    /** Asks where the commit log ends. */
    private long logEnd(String log) throws Exception {
        TopicPartition only = new TopicPartition(log, 0);
        try {
            return LogEnds.of(only, reader, END_LIMIT);
        } catch (KafkaException e) { // the admin client knows what is wrong
            return ask(admin.listOffsets(Map.of(only, OffsetSpec.latest())).partitionResult(only))
                    .offset();
        }
    }

    /** Asks the coordinator for a transaction. */
    public KafkaFuture<TransactionDescription> describe(String transactionalId) {
        return admin.describeTransactions(List.of(transactionalId)).description(transactionalId);
    }

    public static <T> T ask(KafkaFuture<T> question) throws InterruptedException, ExecutionException, TimeoutException {
        return question.get(ASK_MS, TimeUnit.MILLISECONDS);
    }

    /**
     * Gives up a task whose execution is over: whoever ends one (a claim, an abort, a decision) writes a record to the commit log first. An end
     * marker alone is of a transaction that its coordinator has ended without a record: the driver's next one, when the tasks take long.
     *
     * @throws Exception the client's, where the log does not say it
     */
    public void checkInTime(Ticket ticket) throws Exception {
        long end = logEnd(ticket.log());
        Markers known = markers.get(ticket.log());
        long from = known != null && known.from == ticket.logEnd() ? known.to : ticket.logEnd();
        if (end <= from) return;
        if (!holds(ticket, from, end, "read_uncommitted", record -> true)) {
            markers.put(ticket.log(), new Markers(ticket.logEnd(), end));
            return;
        }
        if (isClaimed(ticket, end))
            throw new SinkException(
                    "EO-FENCED",
                    "another driver or recovery has claimed sink '" + ticket.sink() + "' while this task of batch "
                            + ticket.batch() + " ran",
                    SinkException.NOTHING_OF_TASK,
                    "If the newer owner is the right one, stop this driver; otherwise start the stream here again to"
                            + " take the sink back. If nobody knows that owner, run exactly-once log " + ticket.sink()
                            + " to see who wrote the claim",
                    null);
        throw new SinkException(
                "EO-PREPARE",
                "this task is too late: its execution of batch " + ticket.batch() + " of sink '" + ticket.sink()
                        + "' is over",
                SinkException.NOTHING_OF_TASK,
                "No action is needed: the task has ended its own transaction, and the next start writes the batch if"
                        + " it is not decided",
                null);
    }

    /** Whether a claim is among the new records of the log; false where they cannot be read in time. */
    private boolean isClaimed(Ticket ticket, long end) {
        try {
            return holds(ticket, ticket.logEnd(), end, "read_committed", record -> "claim".equals(text(record.key())));
        } catch (KafkaException | TimeoutException e) {
            return false;
        }
    }

    /** Whether one of the records of the log from {@code from} to {@code end} is {@code wanted}. */
    private boolean holds(
            Ticket ticket, long from, long end, String isolation, Predicate<ConsumerRecord<byte[], byte[]>> wanted)
            throws TimeoutException {
        Map<String, Object> settings = new HashMap<>(reader);
        settings.put("isolation.level", isolation);
        settings.put("auto.offset.reset", "none"); // a log that begins later says nothing of what was there
        TopicPartition log = new TopicPartition(ticket.log(), 0);
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(READ_MS);
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(log));
            consumer.seek(log, from);
            while (consumer.position(log, Duration.ofMillis(READ_MS)) < end) {
                if (System.nanoTime() >= deadline)
                    throw new TimeoutException("the commit log " + log + " could not be read to offset " + end);
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100)))
                    if (wanted.test(record)) return true;
            }
            return false;
        }
    }

    private static String text(byte[] key) {
        return key == null ? "" : new String(key, StandardCharsets.UTF_8);
    }

    private static Map<String, Object> only(Map<String, String> client, Set<String> names) {
        Map<String, Object> found = new HashMap<>();
        client.forEach((name, value) -> {
            if (names.contains(name)) found.put(name, value);
        });
        return found;
    }
}

package exactlyonce;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** What the tasks of an executor ask a cluster, over one connection. */
final class Cluster {
    /** For one question. */
    private static final int ASK_MS = 30_000;

    /** For reading what the commit log says to a late task, which few tasks ever have to. */
    private static final long READ_MS = 10_000;

    /** For the leaders of a new topic: an election takes less. */
    private static final int LEADERS_MS = 5_000;

    private static final ConcurrentHashMap<Map<String, String>, Cluster> CLUSTERS = new ConcurrentHashMap<>();

    private final Map<String, Object> settings;
    private final Admin admin;
    private final Set<String> led = ConcurrentHashMap.newKeySet();

    private Cluster(Map<String, String> client) {
        settings = only(client, AdminClientConfig.configNames());
        admin = Admin.create(settings);
    }

    /** Returns this JVM's connection with the settings of {@code ticket}. */
    static Cluster of(Ticket ticket) {
        try {
            return CLUSTERS.computeIfAbsent(ticket.client(), Cluster::new);
        } catch (KafkaException e) {
            throw Errors.of(e, "sink '" + ticket.sink() + "'");
        }
    }

    /** Forgets this JVM's connection with the settings of {@code ticket}: the next part reads keys and certificates anew. */
    static void forget(Ticket ticket) {
        Cluster refused = CLUSTERS.remove(ticket.client());
        if (refused != null) Producers.beside(() -> refused.admin.close(Duration.ofMillis(ASK_MS)));
    }

    /**
     * Asks the brokers for the number of partitions of a topic. A producer would wait for a topic that does not exist (any more), and make it
     * anew where the brokers allow that.
     *
     * @throws Exception the client's; when it does not exist, or this principal may not describe it
     */
    int look(String topic) throws Exception {
        try {
            List<TopicPartitionInfo> found = ask(admin.describeTopics(List.of(topic))
                            .topicNameValues()
                            .get(topic))
                    .partitions();
            if (led.add(topic)) awaitLeaders(topic, found);
            return found.size();
        } catch (Exception e) {
            led.remove(topic);
            throw e;
        }
    }

    /**
     * Waits until the leaders of a topic that was perhaps just made are at work. Else one may refuse the first batch of a producer and take the
     * second one: it then refuses the first as out of order until the part fails.
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
    KafkaFuture<Long> logEnd(String log) {
        TopicPartition only = new TopicPartition(log, 0);
        return admin.listOffsets(Map.of(only, OffsetSpec.latest()))
                .partitionResult(only)
                .thenApply(found -> found.offset());
    }

    /** Asks the coordinator for a transaction. */
    KafkaFuture<TransactionDescription> describe(String transactionalId) {
        return admin.describeTransactions(List.of(transactionalId)).description(transactionalId);
    }

    static <T> T ask(KafkaFuture<T> question) throws Exception {
        return question.get(ASK_MS, TimeUnit.MILLISECONDS);
    }

    /**
     * Gives up a task whose execution is over: whoever ends one (a claim, an abort, a decision) writes to the commit log first.
     *
     * @param end where the log ends now
     */
    void checkInTime(Ticket ticket, long end) {
        if (end <= ticket.logEnd()) return;
        if (isClaimed(ticket, end))
            throw new SinkException(
                    "EO-FENCED",
                    "another driver or recovery has claimed sink '" + ticket.sink() + "' while this task of batch "
                            + ticket.batch() + " ran",
                    "If the newer owner is the right one, stop this driver; otherwise start the stream here again to"
                            + " take the sink back. If nobody knows that owner, run exactly-once log " + ticket.sink()
                            + " to see who wrote the claim");
        throw new SinkException(
                "EO-PREPARE",
                "this task is too late: its execution of batch " + ticket.batch() + " of sink '" + ticket.sink()
                        + "' is over",
                "No action is needed: the task has ended its own transaction, and the next start writes the batch if"
                        + " it is not decided");
    }

    /** Whether a claim is among the new records of the log; false where they cannot be read in time. */
    private boolean isClaimed(Ticket ticket, long end) {
        Map<String, Object> reader = only(ticket.client(), ConsumerConfig.configNames());
        reader.put("isolation.level", "read_committed");
        reader.put("enable.auto.commit", "false");
        TopicPartition log = new TopicPartition(ticket.log(), 0);
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(READ_MS);
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(reader, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(log));
            consumer.seek(log, ticket.logEnd());
            while (consumer.position(log, Duration.ofMillis(READ_MS)) < end && System.nanoTime() < deadline)
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100)))
                    if ("claim".equals(text(record.key()))) return true;
        } catch (RuntimeException e) {
            return false;
        }
        return false;
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

package exactlyonce.write;

import exactlyonce.producer.Limits;
import exactlyonce.producer.ProducerSettings;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.Utils;

/**
 * The first records of a part, which wait for each other: Kafka's client asks the coordinator for the partition of the first record at once, and
 * for the others when it has the answer. So a small part waits for one request, and a large one is not held up. Spark fetches on while they wait.
 */
final class FirstRecords {
    private static final int MOST_RECORDS = 500;
    private static final long MOST_BYTES = 64 * 1024;
    private static final long LONGEST_NANOS = TimeUnit.MILLISECONDS.toNanos(100);

    private final List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
    private final long largest;
    private long bytes;
    private long since;

    /** Whether records may wait for each other: with {@code linger.ms}, the user says how long they do. */
    static boolean mayWait(Map<String, String> client) {
        return !client.containsKey("linger.ms");
    }

    FirstRecords(Map<String, String> client) {
        largest = ProducerSettings.maxRequestSize(client);
    }

    /**
     * Keeps {@code record}; false when it is one too many, and all are to be sent: one that the client refuses begins no transaction.
     */
    boolean keep(ProducerRecord<byte[], byte[]> record) {
        long now = System.nanoTime();
        if (records.isEmpty()) since = now;
        bytes += Limits.sizeOf(record);
        if (records.size() == MOST_RECORDS || bytes > MOST_BYTES || now - since > LONGEST_NANOS) return false;
        if (Limits.spaceOf(record) > largest) return false;
        return records.add(record);
    }

    List<ProducerRecord<byte[], byte[]>> records() {
        return records;
    }

    /** Returns the partitions that are certain: those that rows chose, and those of keys, by Kafka's own rule, unless the user has another one. */
    Set<TopicPartition> partitions(KafkaProducer<byte[], byte[]> producer, Map<String, String> client) {
        boolean byKey = !client.containsKey("partitioner.class") && !client.containsKey("partitioner.ignore.keys");
        Map<String, Integer> sizes = new HashMap<>();
        Set<TopicPartition> found = new HashSet<>();
        for (ProducerRecord<byte[], byte[]> record : records) {
            String topic = record.topic();
            if (record.partition() != null) found.add(new TopicPartition(topic, record.partition()));
            else if (byKey && record.key() != null) {
                int size = sizes.computeIfAbsent(
                        topic, name -> producer.partitionsFor(name).size());
                found.add(new TopicPartition(topic, Utils.toPositive(Utils.murmur2(record.key())) % size));
            }
        }
        return found;
    }
}

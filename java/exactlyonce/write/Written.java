package exactlyonce.write;

import exactlyonce.border.Border;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;

/** What the brokers have acknowledged of a part, by partition: the first offset, how many records, and the oldest of their times. Only the producer's thread adds. */
final class Written {
    private static final class Extent {
        private final String topic;
        private final int partition;
        private final long
                first; // -1: the broker knew the batch, of a request whose answer was lost, and did not say where it is
        private long records;
        private long oldest = Long.MAX_VALUE; // the brokers' time where the topic replaces the record's

        Extent(RecordMetadata of) {
            topic = of.topic();
            partition = of.partition();
            first = of.hasOffset() ? of.offset() : -1;
        }
    }

    private final Map<TopicPartition, Extent> extents = new HashMap<>();
    private Extent last;
    private long records;

    void add(RecordMetadata record) {
        Extent to = last;
        if (to == null || to.partition != record.partition() || !to.topic.equals(record.topic()))
            to = last = extents.computeIfAbsent(
                    new TopicPartition(record.topic(), record.partition()), p -> new Extent(record));
        to.records++;
        if (record.hasTimestamp() && record.timestamp() < to.oldest) to.oldest = record.timestamp();
        records++;
    }

    long records() {
        return records;
    }

    /** Whether records are in these partitions, in each of them, and in no other. */
    boolean isIn(Set<TopicPartition> partitions) {
        return extents.keySet().equals(partitions);
    }

    /** @param dated whether rows chose their times: then each extent has its oldest one, in ms */
    List<Border.PartitionExtent> extents(boolean dated) {
        List<Border.PartitionExtent> found = new ArrayList<>();
        for (Extent e : extents.values()) {
            Long oldest = dated && e.oldest != Long.MAX_VALUE ? (Long) e.oldest : null;
            found.add(new Border.PartitionExtent(e.topic, e.partition, e.first, e.records, oldest));
        }
        return found;
    }
}

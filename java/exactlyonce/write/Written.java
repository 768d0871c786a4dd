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
    private static final class OffsetRange {
        private final String topic;
        private final int partition;
        private final long
                first; // -1: the broker knew the batch, of a request whose answer was lost, and did not say where it is
        private long records;
        private long oldest = Long.MAX_VALUE; // the brokers' time where the topic replaces the record's

        OffsetRange(RecordMetadata of) {
            topic = of.topic();
            partition = of.partition();
            first = of.hasOffset() ? of.offset() : -1;
        }
    }

    private final Map<TopicPartition, OffsetRange> ranges = new HashMap<>();
    private OffsetRange last;
    private long records;

    void add(RecordMetadata record) {
        OffsetRange to = last;
        if (to == null || to.partition != record.partition() || !to.topic.equals(record.topic()))
            to = last = ranges.computeIfAbsent(
                    new TopicPartition(record.topic(), record.partition()), p -> new OffsetRange(record));
        to.records++;
        if (record.hasTimestamp() && record.timestamp() < to.oldest) to.oldest = record.timestamp();
        records++;
    }

    long records() {
        return records;
    }

    /** Whether records are in these partitions, in each of them, and in no other. */
    boolean isIn(Set<TopicPartition> partitions) {
        return ranges.keySet().equals(partitions);
    }

    /** @param dated whether rows chose their times: then each range has its oldest one, in ms */
    List<Border.PartitionRange> ranges(boolean dated) {
        List<Border.PartitionRange> found = new ArrayList<>();
        for (OffsetRange e : ranges.values()) {
            Long oldest = dated && e.oldest != Long.MAX_VALUE ? (Long) e.oldest : null;
            found.add(new Border.PartitionRange(e.topic, e.partition, e.first, e.records, oldest));
        }
        return found;
    }
}

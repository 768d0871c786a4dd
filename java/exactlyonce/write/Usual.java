package exactlyonce.write;

import exactlyonce.producer.Topic;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.common.TopicPartition;

/**
 * Where the rows of this executor's parts went in their last batches. A part whose rows went to the same partitions twice will most likely write to
 * them again, so its transaction can begin with them before the first row is there.
 */
final class Usual {
    private record Went(Topic topic, Set<TopicPartition> partitions, boolean again) {}

    private static final ConcurrentHashMap<String, Went> PARTS = new ConcurrentHashMap<>();

    private Usual() {}

    /** Whether {@code part} had rows in its last batch here. Of any other part the producer waits for a row: there may be none. */
    static boolean hasRows(String part) {
        return PARTS.containsKey(part);
    }

    /**
     * Returns the partitions that all rows of the part went to, in its last two batches; none where they differ, where they were not certain, and
     * where {@code topic} is another one by now.
     */
    static Set<TopicPartition> partitions(String part, Topic topic) {
        Went last = PARTS.get(part);
        return last != null && last.again && last.topic.equals(topic) ? last.partitions : Set.of();
    }

    /** @param partitions of all rows of the part, known before they were sent; empty where they were not */
    static void note(String part, Topic topic, Set<TopicPartition> partitions) {
        PARTS.compute(part, (name, last) -> {
            boolean again = last != null && last.topic.equals(topic) && last.partitions.equals(partitions);
            return new Went(topic, partitions, again);
        });
    }

    static void noteEmpty(String part) {
        PARTS.remove(part);
    }
}

package exactlyonce.producer;

import java.time.Duration;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Asks where commit logs end, in one round trip: Kafka's admin client looks up the leader before each question, a consumer remembers it.
 * Each task that asks has a consumer to itself, since a log that does not answer lets it wait.
 */
final class LogEnds {
    private static final Idle<LogEnds> IDLE = new Idle<>(LogEnds::close);

    private final Map<String, Object> settings;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Set<TopicPartition> logs = new HashSet<>();

    private LogEnds(Map<String, Object> settings) {
        this.settings = settings;
        consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /**
     * Returns the high watermark of {@code log}.
     *
     * @param settings a consumer's
     * @throws RuntimeException the client's; of a log that does not exist, that {@code limit} is over
     */
    static long of(TopicPartition log, Map<String, Object> settings, Duration limit) {
        LogEnds asks = IDLE.take(one -> one.settings.equals(settings), one -> one.logs.contains(log));
        if (asks == null) asks = new LogEnds(settings);
        try {
            if (asks.logs.add(log)) asks.consumer.assign(asks.logs); // it forgets leaders of what is not assigned
            long end = asks.consumer.endOffsets(Set.of(log), limit).get(log);
            IDLE.leave(asks);
            return end;
        } catch (RuntimeException e) {
            asks.close();
            throw e;
        }
    }

    /** Closes the consumers that nobody uses: they log in with what they read when they were made. */
    static void forget() {
        IDLE.closeAll();
    }

    private void close() {
        consumer.close(Duration.ZERO);
    }
}

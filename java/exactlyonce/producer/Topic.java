package exactlyonce.producer;

import org.apache.kafka.common.Uuid;

/**
 * What the brokers say of a topic.
 *
 * @param id another one when the topic was deleted and made anew
 * @param largestBatch its max.message.bytes; {@link #UNKNOWN} where this principal may not read it
 */
public record Topic(Uuid id, int partitions, int largestBatch) {
    public static final int UNKNOWN = 0;
}

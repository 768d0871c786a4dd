package exactlyonce.producer;

import java.util.Map;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;

/**
 * What a topic's settings and the producer's say of the records that they take.
 *
 * @param largest a record in a batch of its own that is larger, without compression, may be refused
 * @param compacted a record without a key is refused
 * @param beforeMs how far its timestamp may be before the broker's clock, and {@code afterMs} behind it
 */
public record Limits(long largest, boolean compacted, long beforeMs, long afterMs) {
    /** A record's timestamp is compared with the broker's clock, from which the executor's may differ by so much. */
    private static final long CLOCKS_MS = 60_000;

    /** What the protocol adds to the bytes of a record and of its batch, or to those of a header, at most. */
    private static final int OVERHEAD = 128;

    /** The name of both limits in brokers before 3.6. */
    private static final String DIFFERENCE = "message.timestamp.difference.max.ms";

    public static Limits of(Config topic, Map<String, String> client) {
        long largest = Math.min(
                Math.min(number(topic, "max.message.bytes"), number(topic, "segment.bytes")),
                Math.min(ProducerSettings.maxRequestSize(client), ProducerSettings.bufferMemory(client)));
        boolean dated = !"LogAppendTime".equals(value(topic, "message.timestamp.type"));
        long difference = number(topic, DIFFERENCE);
        return new Limits(
                largest,
                String.valueOf(value(topic, "cleanup.policy")).contains("compact"),
                dated ? Math.min(difference, number(topic, "message.timestamp.before.max.ms")) : Long.MAX_VALUE,
                dated ? Math.min(difference, number(topic, "message.timestamp.after.max.ms")) : Long.MAX_VALUE);
    }

    /** Whether a broker, or the client, may refuse a record. */
    public boolean mayRefuse(ProducerRecord<byte[], byte[]> record, long nowMs) {
        Long ms = record.timestamp();
        return spaceOf(record) > largest
                || (record.key() == null && compacted)
                || (ms != null && (nowMs - ms > beforeMs - CLOCKS_MS || ms - nowMs > afterMs - CLOCKS_MS));
    }

    /** Returns the bytes of key and value. */
    public static int sizeOf(ProducerRecord<byte[], byte[]> record) {
        byte[] key = record.key(), value = record.value();
        return (key == null ? 0 : key.length) + (value == null ? 0 : value.length);
    }

    /** Returns what a record takes in a batch, with the batch's own, at most, without compression. */
    public static long spaceOf(ProducerRecord<byte[], byte[]> record) {
        long space = sizeOf(record) + OVERHEAD;
        for (Header one : record.headers())
            space += OVERHEAD + one.key().length() * 3L + (one.value() == null ? 0 : one.value().length);
        return space;
    }

    private static long number(Config topic, String name) {
        String found = value(topic, name);
        return found == null ? Long.MAX_VALUE : Long.parseLong(found);
    }

    private static String value(Config topic, String name) {
        ConfigEntry entry = topic.get(name);
        return entry == null ? null : entry.value();
    }
}

package exactlyonce.encode;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Locale;
import org.apache.kafka.common.header.Header;

/** The running digest of a part's rows, whatever their order: exactly_once/digest.py says what it covers, and why. */
public final class Digest {
    private static final long NULL = Xxh3.hash("\u00ffexactly-once null".getBytes(StandardCharsets.ISO_8859_1), 0);
    private static final byte[] NOTHING = {};
    private static final Header[] NO_HEADERS = {};

    /** The place of a row that chose nothing but its topic. */
    private static final byte[] NOWHERE = place(-1, null, NO_HEADERS);

    private long sum;
    private byte[] topic;
    private long topicSeed;

    /** Adds a row of which the digest covers key and value. */
    public void add(byte[] key, byte[] value) {
        long seed = key != null ? Xxh3.hash(key, 0) : NULL;
        sum += value != null ? Xxh3.hash(value, seed) : seed ^ NULL;
    }

    /** Adds a row with all that it chose; null, and partition -1: it did not. */
    public void add(byte[] topic, byte[] key, byte[] value, int partition, Long timestampMs, Header[] headers) {
        if (topic != this.topic || topic == null) {
            this.topic = topic;
            topicSeed = Xxh3.hash(topic == null ? NOTHING : topic, 0);
        }
        boolean chose = partition != -1 || timestampMs != null || (headers != null && headers.length > 0);
        byte[] place = chose ? place(partition, timestampMs, headers == null ? NO_HEADERS : headers) : NOWHERE;
        sum += chained(place, chained(value, chained(key, topicSeed)));
    }

    /** Returns the digest so far, as handles have it. */
    public String text() {
        return String.format(Locale.ROOT, "%016x", sum);
    }

    private static long chained(byte[] cell, long seed) {
        return cell != null ? Xxh3.hash(cell, seed) : Xxh3.hash(NOTHING, seed ^ NULL);
    }

    private static byte[] place(int partition, Long timestampMs, Header[] headers) {
        byte[][] names = new byte[headers.length][];
        int size = Integer.BYTES + Long.BYTES;
        for (int i = 0; i < headers.length; i++) {
            names[i] = headers[i].key().getBytes(StandardCharsets.UTF_8);
            byte[] value = headers[i].value();
            size += 2 * Integer.BYTES + names[i].length + (value == null ? 0 : value.length);
        }
        ByteBuffer place = ByteBuffer.allocate(size).putInt(partition).putLong(timestampMs == null ? 0 : timestampMs);
        for (int i = 0; i < headers.length; i++) {
            byte[] value = headers[i].value();
            place.putInt(names[i].length).put(names[i]).putInt(value == null ? -1 : value.length);
            if (value != null) place.put(value);
        }
        return place.array();
    }
}

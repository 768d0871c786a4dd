package exactlyonce.ticket;

import exactlyonce.SinkException;
import exactlyonce.border.Border;
import exactlyonce.encode.ByteSink;
import exactlyonce.encode.Encoding;
import exactlyonce.errors.Errors;
import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Map;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.errors.InvalidTimestampException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Where a row holds the fields of its record: those of Spark's own Kafka sink, and the timestamp. Python has checked the types.
 *
 * @param option the topic of all rows; null: the column {@code topic} names it
 * @param key the key's column; -1, as for the others: there is none
 */
public record Rows(
        String option, int topic, Bytes key, Bytes value, int partition, int headers, int timestamp, TopicRule rule)
        implements Serializable {
    private static final long serialVersionUID = 1;

    /** The time that Spark's Kafka source gives a record without one, in microseconds. */
    private static final long NO_TIME = -1000;

    /** The headers in which Confluent's readers look for the schema of a key or a value, before they look at its first bytes. */
    private static final String KEY_SCHEMA = "__key_schema_id", VALUE_SCHEMA = "__value_schema_id";

    /**
     * The column of the keys, or of the values.
     *
     * @param ready the column of what goes out as it is, in place of the other one; -1: there is none
     * @param text whether it holds strings
     * @param encoding null: it is text or bytes already
     * @param spare JSON, for a row that does not fit the schema and that goes to the dead letter topic
     */
    public record Bytes(int column, int ready, boolean text, byte[] prefix, Encoding encoding, Encoding spare)
            implements Serializable {
        private static final long serialVersionUID = 1;

        private static final byte[] NO_PREFIX = {};

        /** Returns what the record gets; null of a null. */
        public byte[] of(InternalRow row) {
            if (ready >= 0 && !row.isNullAt(ready)) return row.getBinary(ready);
            if (column < 0 || row.isNullAt(column)) return null;
            if (encoding != null) return encoded(row, encoding, prefix);
            byte[] found = text ? row.getUTF8String(column).getBytes() : row.getBinary(column);
            if (prefix.length == 0) return found;
            byte[] framed = new byte[prefix.length + found.length];
            System.arraycopy(prefix, 0, framed, 0, prefix.length);
            System.arraycopy(found, 0, framed, prefix.length, found.length);
            return framed;
        }

        /** Whether the sink writes the id of a schema before what the row has. */
        boolean frames(InternalRow row) {
            return prefix.length > 0 && column >= 0 && !row.isNullAt(column) && (ready < 0 || row.isNullAt(ready));
        }

        /** Returns what the record gets, or JSON where that does not fit the schema. */
        public byte[] ofAny(InternalRow row) {
            return fits(row) ? of(row) : encoded(row, spare, NO_PREFIX);
        }

        /** Whether the schema, if there is one, takes the row. */
        boolean fits(InternalRow row) {
            if (encoding == null) return true;
            try {
                of(row);
                return true;
            } catch (SinkException doesNotFit) {
                return false;
            }
        }

        private byte[] encoded(InternalRow row, Encoding by, byte[] before) {
            ByteSink to = ByteSink.empty();
            to.bytes(before);
            by.write(row, column, to);
            return to.toByteArray();
        }
    }

    static Rows of(Border.TaskTicket ticket, StructType schema, TopicRule rule) {
        Map<String, Integer> columns = ticket.columns();
        return new Rows(
                ticket.topic(),
                columns.getOrDefault("topic", -1),
                bytes("key", ticket.keyPrefix(), ticket, schema),
                bytes("value", ticket.valuePrefix(), ticket, schema),
                columns.getOrDefault("partition", -1),
                columns.getOrDefault("headers", -1),
                columns.getOrDefault("timestamp", -1),
                rule);
    }

    private static Bytes bytes(String name, String hex, Border.TaskTicket ticket, StructType schema) {
        int column = ticket.columns().getOrDefault(name, -1),
                ready = ticket.columns().getOrDefault("encoded_" + name, -1);
        boolean text = column >= 0 && schema.fields()[column].dataType() instanceof StringType;
        byte[] prefix = HexFormat.of().parseHex(hex);
        Border.ColumnEncoding encoding = ticket.encodings().get(name);
        if (encoding == null) return new Bytes(column, ready, text, prefix, null, null);
        return new Bytes(
                column,
                ready,
                text,
                prefix,
                Encoding.of(encoding.format(), encoding.plan(), name),
                Encoding.of("JSON", encoding.spare(), name));
    }

    /** Whether rows have keys and values alone, so that a digest covers no more. */
    public boolean isPlain() {
        return option != null && partition < 0 && headers < 0 && timestamp < 0;
    }

    /** Returns which of key and value are JSON in the row's dead letter, since they do not fit their schemas: their names, or "". */
    public String json(InternalRow row) {
        if (key.fits(row)) return value.fits(row) ? "" : "value";
        return value.fits(row) ? "key" : "key,value";
    }

    /** Returns the bytes of the row's topic. */
    public byte[] topicOf(InternalRow row) {
        if (!row.isNullAt(topic)) return row.getUTF8String(topic).getBytes();
        throw Errors.ofRow(
                new InvalidTopicException(),
                "a row (key " + Errors.shown(key.ofAny(row)) + ") has no topic (its column 'topic' is null)",
                "Fill the column 'topic', or set the option topic");
    }

    /** Returns the partition that the row chose, -1 for none. */
    public int partitionOf(InternalRow row) {
        if (partition < 0 || row.isNullAt(partition)) return -1;
        int chosen = row.getInt(partition);
        if (chosen >= 0) return chosen;
        throw Errors.ofRow(
                new UnknownTopicOrPartitionException(),
                "a row (key " + Errors.shown(key.ofAny(row)) + ") has a negative partition (" + chosen + ")",
                "Leave the column 'partition' null where Kafka should choose it");
    }

    /** Returns the timestamp that the row chose, in ms; null for none. */
    public Long timestampOf(InternalRow row) {
        Long ms = timeIn(row);
        if (ms == null || ms >= 0) return ms;
        throw Errors.ofRow(
                new InvalidTimestampException("before 1970"),
                "a row (key " + Errors.shown(key.ofAny(row)) + ") has a timestamp before 1970 (" + ms
                        + " ms), which Kafka's Java client refuses",
                "Correct the column 'timestamp', leave it out, or make it null: the record then gets the time of"
                        + " writing");
    }

    private Long timeIn(InternalRow row) {
        if (timestamp < 0 || row.isNullAt(timestamp) || row.getLong(timestamp) == NO_TIME) return null;
        return Math.floorDiv(row.getLong(timestamp), 1000L);
    }

    /** Returns the row's headers, null for none. */
    public Header[] headersOf(InternalRow row) {
        if (headers < 0 || row.isNullAt(headers)) return null;
        ArrayData array = row.getArray(headers);
        Header[] found = new Header[array.numElements()];
        for (int i = 0; i < found.length; i++) {
            InternalRow one = array.isNullAt(i) ? null : array.getStruct(i, 2);
            if (one == null || one.isNullAt(0))
                throw Errors.ofRow(
                        new InvalidRecordException("a header without a key"),
                        "a row (key " + Errors.shown(key.ofAny(row)) + ") has a header without a key",
                        "Give every header of the column 'headers' a key; its value may be null");
            String name = one.getUTF8String(0).toString();
            if ((name.equals(VALUE_SCHEMA) && value.frames(row)) || (name.equals(KEY_SCHEMA) && key.frames(row)))
                throw Errors.ofRow(
                        new InvalidRecordException("another schema's id"),
                        "a row (key " + Errors.shown(key.ofAny(row)) + ") has the header " + name
                                + " in its column 'headers', and the sink writes a schema id of its own: Confluent's"
                                + " readers would decode by the header's",
                        "Leave that header out: filter(headers, h -> h.key != '" + name + "')");
            found[i] = new RecordHeader(name, one.isNullAt(1) ? null : one.getBinary(1));
        }
        return found.length == 0 ? null : found;
    }

    /**
     * What a row chose, as it stands there, whatever of it makes no record; see {@code DeadLetters}.
     *
     * @param topic null: the row names none
     * @param partition null: it chose none, as for timestampMs
     * @param headers the key of one without a key is empty
     */
    public record Chosen(byte[] topic, Integer partition, Long timestampMs, Header[] headers) {}

    public Chosen chosen(InternalRow row) {
        byte[] named = option != null
                ? option.getBytes(StandardCharsets.UTF_8)
                : row.isNullAt(topic) ? null : row.getUTF8String(topic).getBytes();
        ArrayData array = headers < 0 || row.isNullAt(headers) ? null : row.getArray(headers);
        Header[] found = new Header[array == null ? 0 : array.numElements()];
        for (int i = 0; i < found.length; i++) {
            InternalRow one = array.isNullAt(i) ? null : array.getStruct(i, 2);
            String name =
                    one == null || one.isNullAt(0) ? "" : one.getUTF8String(0).toString();
            found[i] = new RecordHeader(name, one == null || one.isNullAt(1) ? null : one.getBinary(1));
        }
        return new Chosen(
                named,
                partition < 0 || row.isNullAt(partition) ? null : (Integer) row.getInt(partition),
                timeIn(row),
                found);
    }

    /** Returns {@code raw} as the name of a topic that the row may name. */
    public String named(byte[] raw, InternalRow row) {
        String name = UTF8String.fromBytes(raw).toString();
        String why = rule.refusal(name);
        if (why == null) return name;
        throw Errors.ofRow(
                new InvalidTopicException(),
                "a row (key " + Errors.shown(key.ofAny(row)) + ") names the topic " + Errors.shown(raw) + ", which "
                        + why,
                "Correct the expression that fills the column 'topic'");
    }
}

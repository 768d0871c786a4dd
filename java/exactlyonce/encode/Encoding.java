package exactlyonce.encode;

import com.fasterxml.jackson.databind.JsonNode;
import exactlyonce.SinkException;
import exactlyonce.errors.Errors;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.Map;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * How a column becomes the bytes of a key or a value. Python checks that the column fits the schema, and plans how to write it
 * (exactly_once/formats); this follows the plan, row by row.
 */
@FunctionalInterface
public interface Encoding extends Serializable {
    /** Writes what stands at {@code at}, which is not null. */
    void write(SpecializedGetters from, int at, ByteSink to);

    /** An encoding that has bytes for null, too. */
    @FunctionalInterface
    interface OfNull extends Encoding {}

    /**
     * Returns the encoding of a plan.
     *
     * @param format AVRO, PROTOBUF or JSON
     * @param column key or value, for errors
     */
    static Encoding of(String format, JsonNode plan, String column) {
        return switch (format) {
            case "AVRO" -> AvroEncoding.of(plan, column);
            case "PROTOBUF" -> ProtobufEncoding.of(plan, column);
            case "JSON" -> JsonEncoding.of(plan, column);
            default -> throw unknown(format);
        };
    }

    /** The types of Spark that a plan reads. */
    enum Type {
        BOOLEAN,
        BYTE,
        SHORT,
        INTEGER,
        LONG,
        FLOAT,
        DOUBLE,
        STRING,
        BINARY,
        DATE,
        TIMESTAMP,
        TIMESTAMP_NTZ,
        DECIMAL;

        static Type of(JsonNode plan) {
            return valueOf(plan.get("read").asText().toUpperCase(Locale.ROOT));
        }

        /** Returns a whole number; dates are days, and timestamps are microseconds. */
        long whole(SpecializedGetters from, int at) {
            return switch (this) {
                case BOOLEAN -> from.getBoolean(at) ? 1 : 0;
                case BYTE -> from.getByte(at);
                case SHORT -> from.getShort(at);
                case INTEGER, DATE -> from.getInt(at);
                case LONG, TIMESTAMP, TIMESTAMP_NTZ -> from.getLong(at);
                default -> throw unknown(name());
            };
        }

        double floating(SpecializedGetters from, int at) {
            return switch (this) {
                case FLOAT -> from.getFloat(at);
                case DOUBLE -> from.getDouble(at);
                default -> whole(from, at);
            };
        }

        /** Returns a string in UTF-8, or bytes. */
        byte[] bytes(SpecializedGetters from, int at, String path) {
            return this == STRING ? utf8(from.getUTF8String(at), path) : from.getBinary(at);
        }
    }

    /** Returns the bytes of a string; Spark takes any bytes for one, and readers do not. */
    static byte[] utf8(UTF8String text, String path) {
        byte[] found = text.getBytes();
        for (byte one : found) {
            if (one >= 0) continue;
            try {
                StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(found));
                break;
            } catch (CharacterCodingException e) {
                throw refused(path, "is " + Errors.shown(found) + ", which is no text in UTF-8");
            }
        }
        return found;
    }

    /** Returns the number of an enum's symbol. */
    static int symbol(Map<String, Integer> numbers, SpecializedGetters from, int at, String path) {
        UTF8String text = from.getUTF8String(at);
        Integer number = numbers.get(text.toString());
        if (number != null) return number;
        throw refused(path, "is " + Errors.shown(text.getBytes()) + ", which is no symbol of the schema's enum");
    }

    /** Writes by {@code encoding}, unless there is a null that it has no bytes for. */
    static void checked(Encoding encoding, SpecializedGetters from, int at, String path, ByteSink to) {
        if (from.isNullAt(at) && !(encoding instanceof OfNull))
            throw refused(path, "is null, which the schema forbids");
        encoding.write(from, at, to);
    }

    /** Returns the error of a row that does not fit the schema. */
    static SinkException refused(String path, String why) {
        return Errors.ofRow(
                new InvalidRecordException("it does not fit the schema"),
                "the schema refuses a row: its " + path + " " + why,
                "Correct the expression that fills " + path + ", or register a schema that allows it");
    }

    static IllegalArgumentException unknown(String what) {
        return new IllegalArgumentException(
                "this jar does not know " + what + ": is it of another version than Python?");
    }
}

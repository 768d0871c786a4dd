package exactlyonce.encode;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.LocalDate;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Locale;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.unsafe.types.UTF8String;

/** JSON text, by Jackson. A null field is left out where the schema lets it be, as Spark's to_json does. */
final class JsonEncoding {
    private static final JsonFactory FACTORY =
            new JsonFactory().enable(JsonGenerator.Feature.WRITE_BIGDECIMAL_AS_PLAIN);

    private JsonEncoding() {}

    static Encoding of(JsonNode plan, String path) {
        Node node = Node.of(plan, path);
        return (from, at, to) -> {
            try (JsonGenerator json = FACTORY.createGenerator(to)) {
                node.write(from, at, json);
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        };
    }

    private interface Node extends Serializable {
        void write(SpecializedGetters from, int at, JsonGenerator to) throws IOException;

        static Node of(JsonNode plan, String path) {
            String write = plan.get("write").asText();
            return switch (write) {
                case "object" -> object(plan, path);
                case "list" -> list(Value.of(plan, "items", path + ".element"));
                case "entries" -> entries(plan, Value.of(plan, "values", path + ".value"), path + ".key");
                case "boolean" -> (from, at, to) -> to.writeBoolean(from.getBoolean(at));
                case "number" -> number(plan, path);
                case "text" -> text(Encoding.Type.of(plan), plan.path("lenient").asBoolean(), path);
                default -> throw Encoding.unknown("JSON's " + write);
            };
        }
    }

    /** @param takesNull whether the schema has null there */
    private record Value(Node node, boolean takesNull, String path) implements Serializable {
        private static final long serialVersionUID = 1;

        static Value of(JsonNode plan, String inner, String path) {
            return new Value(Node.of(plan.get(inner), path), plan.path("null").asBoolean(), path);
        }

        void write(SpecializedGetters from, int at, JsonGenerator to) throws IOException {
            if (!from.isNullAt(at)) node.write(from, at, to);
            else if (takesNull) to.writeNull();
            else throw Encoding.refused(path, "is null, which the schema forbids");
        }
    }

    private record Field(String name, int at, boolean required, Value value) implements Serializable {
        private static final long serialVersionUID = 1;
    }

    private static Node object(JsonNode plan, String path) {
        int width = plan.get("width").asInt();
        List<Field> made = new ArrayList<>();
        for (JsonNode f : plan.get("fields")) {
            String name = f.get("name").asText();
            Value value = Value.of(f, "node", path + "." + name);
            made.add(new Field(name, f.get("at").asInt(), f.path("required").asBoolean(), value));
        }
        Field[] fields = made.toArray(new Field[0]);
        return (from, at, to) -> {
            InternalRow row = from.getStruct(at, width);
            to.writeStartObject();
            for (Field f : fields) {
                if (row.isNullAt(f.at) && !f.required) continue;
                to.writeFieldName(f.name);
                f.value.write(row, f.at, to);
            }
            to.writeEndObject();
        };
    }

    private static Node list(Value items) {
        return (from, at, to) -> {
            ArrayData all = from.getArray(at);
            to.writeStartArray();
            for (int i = 0; i < all.numElements(); i++) items.write(all, i, to);
            to.writeEndArray();
        };
    }

    private static Node entries(JsonNode plan, Value values, String path) {
        Encoding.Type key =
                Encoding.Type.valueOf(plan.path("key").asText("string").toUpperCase(Locale.ROOT));
        boolean lenient = plan.path("lenient").asBoolean();
        return (from, at, to) -> {
            MapData all = from.getMap(at);
            ArrayData keys = all.keyArray(), found = all.valueArray();
            to.writeStartObject();
            for (int i = 0; i < all.numElements(); i++) {
                to.writeFieldName(keyOf(keys, i, key, lenient, path));
                values.write(found, i, to);
            }
            to.writeEndObject();
        };
    }

    private static String keyOf(ArrayData keys, int at, Encoding.Type type, boolean lenient, String path) {
        return switch (type) {
            case STRING -> string(keys.getUTF8String(at), lenient, path);
            case BOOLEAN -> String.valueOf(keys.getBoolean(at));
            default -> String.valueOf(type.whole(keys, at));
        };
    }

    private static String string(UTF8String text, boolean lenient, String path) {
        return lenient ? text.toString() : new String(Encoding.utf8(text, path), StandardCharsets.UTF_8);
    }

    private static Node number(JsonNode plan, String path) {
        boolean lenient = plan.path("lenient").asBoolean();
        Encoding.Type read = Encoding.Type.of(plan);
        int precision = plan.path("from").path(0).asInt(),
                scale = plan.path("from").path(1).asInt();
        return switch (read) {
            case DECIMAL ->
                (from, at, to) ->
                        to.writeNumber(from.getDecimal(at, precision, scale).toJavaBigDecimal());
            case FLOAT ->
                (from, at, to) -> {
                    float found = from.getFloat(at);
                    if (Float.isFinite(found)) to.writeNumber(found);
                    else notANumber(path, found, lenient, to);
                };
            case DOUBLE ->
                (from, at, to) -> {
                    double found = from.getDouble(at);
                    if (Double.isFinite(found)) to.writeNumber(found);
                    else notANumber(path, found, lenient, to);
                };
            default -> (from, at, to) -> to.writeNumber(read.whole(from, at));
        };
    }

    private static void notANumber(String path, double found, boolean lenient, JsonGenerator to) throws IOException {
        if (!lenient) throw Encoding.refused(path, "is " + found + ", and JSON has no such number");
        to.writeString(String.valueOf(found));
    }

    private static Node text(Encoding.Type read, boolean lenient, String path) {
        return switch (read) {
            case STRING -> (from, at, to) -> to.writeString(string(from.getUTF8String(at), lenient, path));
            case BINARY -> (from, at, to) -> to.writeString(Base64.getEncoder().encodeToString(from.getBinary(at)));
            case DATE ->
                (from, at, to) ->
                        to.writeString(LocalDate.ofEpochDay(from.getInt(at)).toString());
            case TIMESTAMP ->
                (from, at, to) -> to.writeString(instant(from.getLong(at)).toString());
            case TIMESTAMP_NTZ ->
                (from, at, to) -> {
                    String utc = instant(from.getLong(at)).toString();
                    to.writeString(utc.substring(0, utc.length() - 1)); // without the Z: it is in no zone
                };
            default -> throw Encoding.unknown("JSON text of " + read);
        };
    }

    private static Instant instant(long micros) {
        return Instant.EPOCH.plus(micros, ChronoUnit.MICROS);
    }
}

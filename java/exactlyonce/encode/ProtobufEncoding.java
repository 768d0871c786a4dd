package exactlyonce.encode;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;

/** Protobuf's wire format (protobuf.dev, "Encoding"). A null is a field that is not there. */
final class ProtobufEncoding {
    private static final int VARINT = 0, FIXED64 = 1, SIZED = 2, FIXED32 = 5;
    private static final long MICROS = 1_000_000;

    private ProtobufEncoding() {}

    /** Returns the encoding of a message that nothing surrounds. */
    static Encoding of(JsonNode plan, String path) {
        int width = plan.get("width").asInt();
        List<Field> made = new ArrayList<>();
        for (JsonNode one : plan.get("fields"))
            made.add(field(one, path + "." + one.get("name").asText()));
        Field[] fields = made.toArray(new Field[0]);
        Field[] members =
                made.stream().filter(f -> !f.oneof.isEmpty()).toArray(Field[]::new); // of oneofs: often there are none
        return (from, at, to) -> {
            InternalRow row = from.getStruct(at, width);
            checkOneofs(members, row);
            for (Field f : fields) f.write(row, to);
        };
    }

    /** Refuses a row with two members of a oneof: readers would get the last one alone. */
    private static void checkOneofs(Field[] fields, InternalRow row) {
        for (int i = 0; i < fields.length; i++) {
            if (row.isNullAt(fields[i].at)) continue;
            for (int k = i + 1; k < fields.length; k++)
                if (fields[k].oneof.equals(fields[i].oneof) && !row.isNullAt(fields[k].at))
                    throw Encoding.refused(
                            fields[k].path,
                            "has a value and " + fields[i].path + ", too, of which the schema takes one (oneof "
                                    + fields[i].oneof + ")");
        }
    }

    /** @param oneof its name; "": the field is in none */
    private record Field(int at, boolean required, String oneof, String path, Encoding encoding)
            implements Serializable {
        private static final long serialVersionUID = 1;

        void write(InternalRow row, ByteSink to) {
            if (!row.isNullAt(at)) encoding.write(row, at, to);
            else if (required) throw Encoding.refused(path, "is null, which the schema forbids");
        }
    }

    private static Field field(JsonNode plan, String path) {
        int number = plan.get("number").asInt();
        Encoding encoding;
        if (plan.has("key")) encoding = map(number, plan, path);
        else if (plan.has("items")) encoding = repeated(number, plan, path + ".element");
        else encoding = Part.of(plan.get("node"), path).tagged(number);
        return new Field(
                plan.get("at").asInt(),
                plan.path("required").asBoolean(),
                plan.path("oneof").asText(),
                path,
                encoding);
    }

    /** A value, and how its end is found: what its tag says beside the field's number. */
    private record Part(int wire, Encoding body) implements Serializable {
        private static final long serialVersionUID = 1;

        static Part of(JsonNode plan, String path) {
            String write = plan.get("write").asText();
            return switch (write) {
                case "varint" -> new Part(VARINT, whole(plan, path, ByteSink::varint));
                case "zigzag" -> new Part(VARINT, whole(plan, path, ByteSink::zigzag));
                case "fixed32" -> new Part(FIXED32, whole(plan, path, (to, number) -> to.fixed32((int) number)));
                case "fixed64" -> new Part(FIXED64, whole(plan, path, ByteSink::fixed64));
                case "float" ->
                    new Part(FIXED32, (from, at, to) -> to.fixed32(Float.floatToRawIntBits(from.getFloat(at))));
                case "double" -> {
                    Encoding.Type read = Encoding.Type.of(plan);
                    yield new Part(
                            FIXED64, (from, at, to) -> to.fixed64(Double.doubleToRawLongBits(read.floating(from, at))));
                }
                case "bytes" -> {
                    Encoding.Type read = Encoding.Type.of(plan);
                    yield new Part(SIZED, (from, at, to) -> sized(read.bytes(from, at, path), to));
                }
                case "enum" -> new Part(VARINT, symbol(plan.get("symbols"), path));
                case "timestamp" -> new Part(SIZED, ProtobufEncoding::timestamp);
                case "message" -> new Part(SIZED, sized(ProtobufEncoding.of(plan, path)));
                default -> throw Encoding.unknown("Protobuf's " + write);
            };
        }

        Encoding tagged(int number) {
            return (from, at, to) -> {
                tag(number, wire, to);
                body.write(from, at, to);
            };
        }
    }

    private interface Number extends Serializable {
        void write(ByteSink to, long number);
    }

    private static Encoding whole(JsonNode plan, String path, Number as) {
        Encoding.Type read = Encoding.Type.of(plan);
        long least = plan.path("min").asLong(Long.MIN_VALUE),
                most = plan.path("max").asLong(Long.MAX_VALUE);
        return (from, at, to) -> {
            long number = read.whole(from, at);
            if (number < least || number > most)
                throw Encoding.refused(path, "is " + number + ", which the schema's type cannot hold");
            as.write(to, number);
        };
    }

    private static Encoding symbol(JsonNode symbols, String path) {
        HashMap<String, Integer> numbers = new HashMap<>();
        symbols.properties().forEach(e -> numbers.put(e.getKey(), e.getValue().asInt()));
        return (from, at, to) -> to.varint(Encoding.symbol(numbers, from, at, path));
    }

    /** google.protobuf.Timestamp: seconds, and nanoseconds that are never negative. */
    private static void timestamp(SpecializedGetters from, int at, ByteSink to) {
        long micros = from.getLong(at);
        ByteSink message = new ByteSink();
        tag(1, VARINT, message);
        message.varint(Math.floorDiv(micros, MICROS));
        tag(2, VARINT, message);
        message.varint(Math.floorMod(micros, MICROS) * 1000);
        sized(message.toByteArray(), to);
    }

    private static Encoding repeated(int number, JsonNode plan, String path) {
        Part item = Part.of(plan.get("items"), path);
        Encoding one = plan.path("packed").asBoolean() ? item.body : item.tagged(number);
        Encoding all = (from, at, to) -> {
            ArrayData array = from.getArray(at);
            for (int i = 0; i < array.numElements(); i++) Encoding.checked(one, array, i, path, to);
        };
        if (!plan.path("packed").asBoolean()) return all;
        Encoding packed = sized(all);
        return (from, at, to) -> {
            if (from.getArray(at).numElements() == 0) return;
            tag(number, SIZED, to);
            packed.write(from, at, to);
        };
    }

    private static Encoding map(int number, JsonNode plan, String path) {
        String inner = path + ".value";
        Encoding key = Part.of(plan.get("key"), path + ".key").tagged(1);
        Encoding value = Part.of(plan.get("value"), inner).tagged(2);
        return (from, at, to) -> {
            MapData all = from.getMap(at);
            ArrayData keys = all.keyArray(), values = all.valueArray();
            for (int i = 0; i < all.numElements(); i++) {
                ByteSink entry = new ByteSink();
                key.write(keys, i, entry);
                Encoding.checked(value, values, i, inner, entry);
                tag(number, SIZED, to);
                sized(entry.toByteArray(), to);
            }
        };
    }

    private static void tag(int number, int wire, ByteSink to) {
        to.varint((long) number << 3 | wire);
    }

    private static Encoding sized(Encoding body) {
        return (from, at, to) -> {
            ByteSink inner = new ByteSink();
            body.write(from, at, inner);
            sized(inner.toByteArray(), to);
        };
    }

    private static void sized(byte[] all, ByteSink to) {
        to.varint(all.length);
        to.bytes(all);
    }
}

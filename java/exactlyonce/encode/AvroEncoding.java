package exactlyonce.encode;

import com.fasterxml.jackson.databind.JsonNode;
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;

/** Avro's binary encoding (Avro 1.12 specification, "Binary Encoding"). */
final class AvroEncoding {
    private AvroEncoding() {}

    static Encoding of(JsonNode plan, String path) {
        String write = plan.get("write").asText();
        return switch (write) {
            case "boolean" -> (from, at, to) -> to.write(from.getBoolean(at) ? 1 : 0);
            case "int", "long" -> whole(Encoding.Type.of(plan), plan.path("per").asLong(1));
            case "float" -> {
                Encoding.Type read = Encoding.Type.of(plan);
                yield (from, at, to) -> to.fixed32(Float.floatToRawIntBits((float) read.floating(from, at)));
            }
            case "double" -> {
                Encoding.Type read = Encoding.Type.of(plan);
                yield (from, at, to) -> to.fixed64(Double.doubleToRawLongBits(read.floating(from, at)));
            }
            case "bytes" -> {
                Encoding.Type read = Encoding.Type.of(plan);
                yield (from, at, to) -> sized(read.bytes(from, at, path), to);
            }
            case "fixed" -> fixed(plan.get("size").asInt(), path);
            case "enum" -> symbol(plan.get("symbols"), path);
            case "decimal" -> decimal(plan, path);
            case "array" -> array(of(plan.get("items"), path + ".element"), path + ".element");
            case "map" -> map(of(plan.get("values"), path + ".value"), path + ".key", path + ".value");
            case "record" -> struct(plan, path);
            case "union" -> union(plan, path);
            default -> throw Encoding.unknown("Avro's " + write);
        };
    }

    private static Encoding whole(Encoding.Type read, long per) {
        if (per == 1) return (from, at, to) -> to.zigzag(read.whole(from, at));
        return (from, at, to) -> to.zigzag(Math.floorDiv(read.whole(from, at), per));
    }

    private static Encoding fixed(int size, String path) {
        return (from, at, to) -> {
            byte[] found = from.getBinary(at);
            if (found.length != size)
                throw Encoding.refused(path, "has " + found.length + " bytes, and the schema says " + size);
            to.bytes(found);
        };
    }

    private static Encoding symbol(JsonNode symbols, String path) {
        HashMap<String, Integer> numbers = new HashMap<>();
        for (JsonNode one : symbols) numbers.put(one.asText(), numbers.size());
        return (from, at, to) -> to.zigzag(Encoding.symbol(numbers, from, at, path));
    }

    private static Encoding decimal(JsonNode plan, String path) {
        int precision = plan.get("from").get(0).asInt();
        int scale = plan.get("from").get(1).asInt();
        int wanted = plan.get("scale").asInt();
        int size = plan.path("size").asInt(0);
        return (from, at, to) -> {
            BigInteger number = from.getDecimal(at, precision, scale)
                    .toJavaBigDecimal()
                    .setScale(wanted)
                    .unscaledValue();
            byte[] found = number.toByteArray();
            if (size == 0) {
                sized(found, to);
                return;
            }
            if (found.length > size) throw Encoding.refused(path, "does not fit into the schema's " + size + " bytes");
            byte[] wide = new byte[size];
            Arrays.fill(wide, 0, size - found.length, (byte) (number.signum() < 0 ? -1 : 0));
            System.arraycopy(found, 0, wide, size - found.length, found.length);
            to.bytes(wide);
        };
    }

    private static Encoding array(Encoding items, String path) {
        return (from, at, to) -> {
            ArrayData all = from.getArray(at);
            if (all.numElements() > 0) to.zigzag(all.numElements());
            for (int i = 0; i < all.numElements(); i++) Encoding.checked(items, all, i, path, to);
            to.write(0);
        };
    }

    private static Encoding map(Encoding values, String key, String value) {
        return (from, at, to) -> {
            MapData all = from.getMap(at);
            ArrayData keys = all.keyArray(), found = all.valueArray();
            if (all.numElements() > 0) to.zigzag(all.numElements());
            for (int i = 0; i < all.numElements(); i++) {
                sized(Encoding.utf8(keys.getUTF8String(i), key), to);
                Encoding.checked(values, found, i, value, to);
            }
            to.write(0);
        };
    }

    /** @param at -1: the schema's default is written, whatever the row is */
    private record Field(int at, String path, Encoding encoding) implements java.io.Serializable {
        private static final long serialVersionUID = 1;
    }

    private static Encoding struct(JsonNode plan, String path) {
        int width = plan.get("width").asInt();
        List<Field> made = new ArrayList<>();
        for (JsonNode one : plan.get("fields"))
            made.add(field(one, path + "." + one.get("name").asText()));
        Field[] fields = made.toArray(new Field[0]);
        return (from, at, to) -> {
            InternalRow row = from.getStruct(at, width);
            for (Field f : fields) {
                if (f.at < 0) f.encoding.write(row, f.at, to);
                else Encoding.checked(f.encoding, row, f.at, f.path, to);
            }
        };
    }

    private static Field field(JsonNode plan, String path) {
        if (plan.has("node")) return new Field(plan.get("at").asInt(), path, of(plan.get("node"), path));
        byte[] always = HexFormat.of().parseHex(plan.get("default").asText());
        return new Field(-1, path, (from, at, to) -> to.bytes(always));
    }

    private static Encoding union(JsonNode plan, String path) {
        int branch = plan.get("branch").asInt();
        Encoding other = of(plan.get("node"), path);
        if (plan.path("null").isNull() || plan.path("null").isMissingNode())
            return (from, at, to) -> {
                to.zigzag(branch);
                other.write(from, at, to);
            };
        int none = plan.get("null").asInt();
        Encoding.OfNull either = (from, at, to) -> {
            boolean isNull = from.isNullAt(at);
            to.zigzag(isNull ? none : branch);
            if (!isNull) other.write(from, at, to);
        };
        return either;
    }

    /** Writes what Avro calls bytes or a string. */
    private static void sized(byte[] all, ByteSink to) {
        to.zigzag(all.length);
        to.bytes(all);
    }
}

package exactlyonce;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/**
 * A task's result on its way to the driver, in fields of JSON.
 *
 * <p>The driver reads it through an interface of the JDK: after ADD JAR in local mode, driver and executor have this class from two loaders.
 */
final class Part
        implements WriterCommitMessage,
                Supplier<Map<String, Object>> { // no record: Kryo, as spark.serializer, cannot make one
    private static final long serialVersionUID = 1;

    private final LinkedHashMap<String, Object> fields;

    Part(LinkedHashMap<String, Object> fields) {
        this.fields = fields;
    }

    @Override
    public Map<String, Object> get() {
        return fields;
    }

    /** Returns the fields of each message, null for a task without a result. */
    static List<Object> fields(WriterCommitMessage[] parts) {
        List<Object> found = new ArrayList<>(parts.length);
        for (WriterCommitMessage part : parts) found.add(part instanceof Supplier<?> known ? known.get() : null);
        return found;
    }
}

package exactlyonce.border;

import com.fasterxml.jackson.databind.util.RawValue;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Supplier;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/**
 * A task's report on its way to the driver, as JSON.
 *
 * <p>The driver reads it through an interface of the JDK: after ADD JAR in local mode, driver and executor have this class from two loaders.
 */
public final class Part
        implements WriterCommitMessage, Supplier<String> { // no record: Kryo, as spark.serializer, cannot make one
    private static final long serialVersionUID = 2;

    private final String json;

    public Part(Border.TaskReport report) {
        json = Border.write(report);
    }

    public Part(Border.PreparedReport report) {
        json = Border.write(report);
    }

    @Override
    public String get() {
        return json;
    }

    /** Returns the report in each message, null for a task without a result. */
    public static List<RawValue> reports(WriterCommitMessage[] parts) {
        List<RawValue> reports = new ArrayList<>(parts.length);
        for (WriterCommitMessage part : parts)
            reports.add(part instanceof Supplier<?> known ? new RawValue((String) known.get()) : null);
        return reports;
    }
}

package exactlyonce;

import exactlyonce.border.Border;
import exactlyonce.border.Execution;
import exactlyonce.border.KeyStores;
import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.sources.StreamSinkProvider;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * {@code format("kafka_exactly_once")}: this JVM moves the records, Python runs the protocol ({@link Coordinator}).
 *
 * <p>What options, columns and mode tell is refused before what the brokers tell. Spark says a stream's mode inside {@code start()} only to a
 * source of its first interface, which it takes for one whose table cannot be written to: so that is what a refusal by the brokers looks like.
 */
public final class Sink implements TableProvider, DataSourceRegister, StreamSinkProvider {
    static final String FORMAT = "kafka_exactly_once";

    /** The stream that this thread starts, and that the brokers refuse. */
    private static final ThreadLocal<Refused> REFUSED = new ThreadLocal<>();

    private record Refused(Map<String, String> options, StructType schema, SinkException why) {}

    @Override
    public String shortName() {
        return FORMAT;
    }

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return new StructType();
    }

    @Override
    public boolean supportsExternalMetadata() {
        return true;
    }

    /**
     * Called inside {@code start()} and {@code save()}, on the user's own thread. Without a checkpoint and without a write id nobody knows yet
     * which of the two it is.
     */
    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> options) {
        CaseInsensitiveStringMap given = new CaseInsensitiveStringMap(options);
        boolean batch = given.containsKey("write.id");
        REFUSED.remove();
        if (given.containsKey(PlannedWrite.EXECUTION)) return new Output(schema, false); // Python has checked all of it
        if (!batch && !given.containsKey("checkpointLocation")) return new Output(schema, true);
        check(options, batch, schema, null, false);
        if (batch) return new Output(schema, true);
        try {
            check(options, false, schema, null, true);
            return new Output(schema, true);
        } catch (SinkException e) {
            REFUSED.set(new Refused(options, schema, e));
            return new Output(schema, false);
        }
    }

    /** Called inside {@code start()} of a stream that the brokers refuse; never returns. */
    @Override
    public org.apache.spark.sql.execution.streaming.Sink createSink(
            SQLContext context,
            scala.collection.immutable.Map<String, String> options,
            scala.collection.immutable.Seq<String> partitions,
            OutputMode mode) {
        return createSink(context, options, (scala.collection.Seq<String>) partitions, mode);
    }

    /** The same where Spark is of Scala 2.12. */
    public org.apache.spark.sql.execution.streaming.Sink createSink(
            SQLContext context,
            scala.collection.immutable.Map<String, String> options,
            scala.collection.Seq<String> partitions,
            OutputMode mode) {
        Refused stream = REFUSED.get();
        REFUSED.remove();
        check(stream.options, false, stream.schema, mode.toString(), false);
        throw stream.why;
    }

    private static void check(
            Map<String, String> options, boolean batch, StructType schema, String mode, boolean brokers) {
        String known = schema.fields().length > 0 ? schema.json() : null; // empty: nobody has said it yet
        Map<String, String> pem = KeyStores.pem(options);
        Bridge.call(
                Bridge.coordinator(),
                new Border.CheckRequest(Execution.located(options), batch, known, pem, mode, brokers));
    }

    @SuppressWarnings("deprecation") // schema(), which Spark 3.5 asks for
    private record Output(StructType schema, boolean streams) implements SupportsWrite {
        @Override
        public String name() {
            return FORMAT;
        }

        @Override
        public Set<TableCapability> capabilities() {
            Set<TableCapability> found = EnumSet.of(
                    TableCapability.BATCH_WRITE,
                    TableCapability.TRUNCATE, // Complete and Overwrite: the engine refuses them in its own words
                    TableCapability.ACCEPT_ANY_SCHEMA);
            if (streams) found.add(TableCapability.STREAMING_WRITE);
            return found;
        }

        @Override
        public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
            return new Builder(info);
        }
    }

    private static final class Builder implements SupportsTruncate {
        private final LogicalWriteInfo info;
        private boolean overwrite;

        Builder(LogicalWriteInfo info) {
            this.info = info;
        }

        @Override
        public WriteBuilder truncate() {
            overwrite = true;
            return this;
        }

        @Override
        public Write build() {
            Map<String, String> options = info.options().asCaseSensitiveMap();
            return new Write() {
                @Override
                public StreamingWrite toStreaming() {
                    return new MicroBatch(options, info.schema(), overwrite);
                }

                @Override
                public BatchWrite toBatch() {
                    if (info.options().containsKey(PlannedWrite.EXECUTION))
                        return new PlannedWrite(options, info.schema());
                    check(options, true, info.schema(), overwrite ? "overwrite" : "append", true);
                    return new WholeWrite(options, info.schema());
                }
            };
        }
    }
}

package exactlyonce;

import java.util.Map;
import java.util.Set;
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
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** {@code format("kafka_exactly_once")}: this JVM moves the records, Python runs the protocol ({@link Coordinator}). */
public final class Sink implements TableProvider, DataSourceRegister {
    static final String FORMAT = "kafka_exactly_once";

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
     * Called inside {@code start()} and {@code save()}, on the user's own thread: what options and columns tell is refused there. Without a checkpoint and
     * without a write id nobody knows yet which of the two it is.
     */
    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> options) {
        CaseInsensitiveStringMap given = new CaseInsensitiveStringMap(options);
        boolean batch = given.containsKey("write.id");
        if (batch || given.containsKey("checkpointLocation")) {
            String known = schema.fields().length > 0 ? schema.json() : null; // empty: nobody has said it yet
            Bridge.call(Bridge.coordinator(), new Border.CheckRequest(options, batch, known, KeyStores.pem(options)));
        }
        return new Output(schema);
    }

    @SuppressWarnings("deprecation") // schema(), which Spark 3.5 asks for
    private record Output(StructType schema) implements SupportsWrite {
        @Override
        public String name() {
            return FORMAT;
        }

        @Override
        public Set<TableCapability> capabilities() {
            return Set.of(
                    TableCapability.STREAMING_WRITE,
                    TableCapability.BATCH_WRITE,
                    TableCapability.TRUNCATE, // Complete and Overwrite: the engine refuses them in its own words
                    TableCapability.ACCEPT_ANY_SCHEMA);
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
                    return new WholeWrite(options, info.schema(), overwrite);
                }
            };
        }
    }
}

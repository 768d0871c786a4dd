package exactlyonce;

import exactlyonce.border.Border;
import exactlyonce.border.Execution;
import exactlyonce.border.KeyStores;
import exactlyonce.border.Part;
import exactlyonce.producer.ProducerSettings;
import exactlyonce.ticket.Ticket;
import exactlyonce.write.PartWriter;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.types.StructType;

/** One micro-batch on the driver. Spark makes one for each, and calls it on the query's own thread. */
final class MicroBatch implements StreamingWrite {
    private final Map<String, String> options;
    private final StructType schema;
    private final boolean overwrite;
    private String run = "";
    private Coordinator coordinator;

    MicroBatch(Map<String, String> options, StructType schema, boolean overwrite) {
        this.options = options;
        this.schema = schema;
        this.overwrite = overwrite;
    }

    @Override
    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
        SparkContext context = SparkContext.getOrCreate();
        run = Execution.property(context, Execution.RUN);
        boolean isFirst = !Queries.isRunning(run);
        Map<String, String> pem = isFirst ? KeyStores.pem(options) : null;
        coordinator = Queries.coordinator(run, Thread.currentThread());
        String query = Execution.property(context, Execution.QUERY);
        String batch = Execution.property(context, Execution.BATCH);
        Border.PlanRequest request = new Border.PlanRequest(
                run,
                isFirst ? Execution.located(options) : options,
                schema.json(),
                overwrite,
                false,
                query,
                batch.isEmpty() ? null : Long.valueOf(batch), // continuous mode has none
                Execution.settings(context),
                Execution.sources(query),
                pem);
        Ticket ticket = Ticket.of(Bridge.call(coordinator, request), schema);
        ProducerSettings.check(ticket);
        return new PartWriter.Factory(ticket);
    }

    @Override
    public void commit(long batch, WriterCommitMessage[] parts) {
        Bridge.call(coordinator, new Border.CommitRequest(run, Part.reports(parts), batch));
    }

    @Override
    public void abort(long batch, WriterCommitMessage[] parts) {
        Bridge.tell(coordinator, run, new Border.AbortRequest(run, Part.reports(parts), batch));
    }
}

package exactlyonce;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.types.StructType;

/** One micro-batch on the driver. Spark makes one for each, and calls it on the query's own thread. */
final class MicroBatch implements StreamingWrite {
    private final Map<String, Object> plan;
    private final StructType schema;
    private String run = "";
    private Coordinator coordinator;

    MicroBatch(Map<String, Object> plan, StructType schema) {
        this.plan = plan;
        this.schema = schema;
    }

    @Override
    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
        SparkContext context = SparkContext.getOrCreate();
        run = Execution.property(context, Execution.RUN);
        HashMap<String, Object> request = new HashMap<>(plan);
        if (!Queries.isRunning(run)) KeyStores.addTo(request);
        coordinator = Queries.coordinator(run, Thread.currentThread());
        request.put("run", run);
        request.put("query", Execution.property(context, Execution.QUERY));
        String batch = Execution.property(context, Execution.BATCH);
        request.put("batch", batch.isEmpty() ? null : Long.valueOf(batch)); // continuous mode has none
        request.put("settings", Execution.settings(context));
        request.put("sources", Execution.sources((String) request.get("query")));
        Ticket ticket = Ticket.of(Bridge.call(coordinator, request), schema);
        ProducerSettings.check(ticket);
        return new PartWriter.Factory(ticket);
    }

    @Override
    public void commit(long batch, WriterCommitMessage[] parts) {
        Bridge.call(coordinator, end("commit", batch, parts));
    }

    @Override
    public void abort(long batch, WriterCommitMessage[] parts) {
        Bridge.tell(coordinator, end("abort", batch, parts));
    }

    private Map<String, Object> end(String call, long batch, WriterCommitMessage[] parts) {
        return Map.of("call", call, "run", run, "batch", batch, "parts", Part.fields(parts));
    }
}

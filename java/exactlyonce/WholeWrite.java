package exactlyonce;

import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;

/** One try of a batch write ({@code df.write}) on the driver. */
final class WholeWrite implements BatchWrite {
    private final Map<String, Object> plan;
    private final StructType schema;
    private final String run = UUID.randomUUID().toString();
    private final Coordinator coordinator = Bridge.coordinator();

    WholeWrite(Map<String, Object> plan, StructType schema) {
        this.plan = plan;
        this.schema = schema;
    }

    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
        HashMap<String, Object> request = new HashMap<>(plan);
        KeyStores.addTo(request);
        request.put("write", true);
        request.put("run", run);
        request.put("settings", Execution.settings(SparkContext.getOrCreate()));
        Ticket ticket = Ticket.of(Bridge.call(coordinator, request), schema);
        try {
            ProducerSettings.check(ticket);
        } catch (SinkException e) { // Spark calls abort for what has begun alone
            Bridge.tell(coordinator, Map.of("call", "close", "run", run));
            throw e;
        }
        return new PartWriter.Factory(ticket);
    }

    @Override
    public void commit(WriterCommitMessage[] parts) {
        Bridge.call(coordinator, end("commit", parts));
    }

    @Override
    public void abort(WriterCommitMessage[] parts) {
        Bridge.tell(coordinator, end("abort", parts));
    }

    private Map<String, Object> end(String call, WriterCommitMessage[] parts) {
        return Map.of("call", call, "run", run, "batch", 0, "parts", Part.fields(parts));
    }
}

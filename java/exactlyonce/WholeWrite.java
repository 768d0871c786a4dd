package exactlyonce;

import exactlyonce.border.Border;
import exactlyonce.border.Execution;
import exactlyonce.border.KeyStores;
import exactlyonce.border.Part;
import exactlyonce.producer.ProducerSettings;
import exactlyonce.ticket.Ticket;
import exactlyonce.write.PartWriter;
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
    private final Map<String, String> options;
    private final StructType schema;
    private final String run = UUID.randomUUID().toString();
    private final Coordinator coordinator = Bridge.coordinator();

    WholeWrite(Map<String, String> options, StructType schema) {
        this.options = options;
        this.schema = schema;
    }

    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
        Border.PlanRequest request = new Border.PlanRequest(
                run,
                options,
                schema.json(),
                false,
                true,
                "",
                null,
                Execution.settings(SparkContext.getOrCreate()),
                null,
                KeyStores.pem(options));
        Ticket ticket = Ticket.of(Bridge.call(coordinator, request), schema);
        try {
            ProducerSettings.check(ticket);
        } catch (SinkException e) { // Spark calls abort for what has begun alone
            Bridge.close(coordinator, run);
            throw e;
        }
        return new PartWriter.Factory(ticket);
    }

    @Override
    public void commit(WriterCommitMessage[] parts) {
        Bridge.call(coordinator, new Border.CommitRequest(run, Part.reports(parts), 0));
    }

    @Override
    public void abort(WriterCommitMessage[] parts) {
        Bridge.tell(coordinator, run, new Border.AbortRequest(run, Part.reports(parts), 0));
    }
}

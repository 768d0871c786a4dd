package exactlyonce;

import exactlyonce.border.Border;
import exactlyonce.border.Part;
import exactlyonce.producer.ProducerSettings;
import exactlyonce.ticket.Ticket;
import exactlyonce.write.PartWriter;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;

/** One execution of a batch that Python has planned, and that Python will commit: that of {@code foreachBatch}. */
public final class PlannedWrite implements BatchWrite {
    /** The option that names the execution: Spark shows options, and a ticket has passwords. */
    static final String EXECUTION = "sink.execution";

    /** The tickets of the executions that Python has planned, until Spark begins them. */
    private static final Map<String, Border.TaskTicket> TICKETS = new ConcurrentHashMap<>();

    /** The reports of each execution that has ended well, until Python takes them. */
    private static final Map<String, String> REPORTS = new ConcurrentHashMap<>();

    private final Ticket ticket;

    PlannedWrite(Map<String, String> options, StructType schema) {
        ticket = Ticket.of(TICKETS.remove(options.get(EXECUTION)), schema);
    }

    /** Takes the ticket of an execution, as JSON. */
    public static void plan(String ticket) {
        Border.TaskTicket planned = Border.ticket(ticket);
        TICKETS.put(planned.execution(), planned);
    }

    /** Ends an execution. Returns its reports as a list in JSON, once; null where it has not ended well, or not begun. */
    public static String take(String execution) {
        TICKETS.remove(execution);
        return REPORTS.remove(execution);
    }

    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
        ProducerSettings.check(ticket);
        return new PartWriter.Factory(ticket);
    }

    @Override
    public void commit(WriterCommitMessage[] parts) {
        REPORTS.put(ticket.execution(), Border.write(Part.reports(parts)));
    }

    /** Does nothing: Python hears of the error, and aborts. */
    @Override
    public void abort(WriterCommitMessage[] parts) {}
}

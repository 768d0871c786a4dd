package exactlyonce.ticket;

import exactlyonce.SinkException;
import exactlyonce.border.Border;
import exactlyonce.border.DeadLetterTarget;
import java.io.Serializable;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Locale;
import java.util.Set;
import org.apache.spark.sql.types.StructType;

/**
 * The driver's instructions for the tasks of one execution of a batch: a {@link Border.TaskTicket}, with the columns of its rows looked up.
 *
 * @param execution names one try of the batch, in what tasks report and in the log
 * @param batch the number of Spark's micro-batch; of a batch write, 0
 * @param query Spark's id of the query; "" of a batch write
 * @param sink the sink's id
 * @param ids the first part of the transactional ids of this claim; part and attempt follow
 * @param log the topic of the commit log
 * @param logEnd where the commit log ended when the tasks were sent out: a longer one says that they are too late
 * @param timeoutMs transaction.timeout.ms of each part's transaction
 * @param limitMs the age at which a transaction can no longer be decided; 0: none
 * @param tooLong the text of that error, with {part} and {took_s} to fill in
 * @param lost of a replay: "records digest" of each lost part; no other part is kept
 * @param rows which columns make a record, and how
 * @param dead where rows go that cannot be written; null: the first one ends the execution
 * @param batchHeaders whether each record names its batch; see {@code BatchHeaders}
 * @param others the column of handles of the outputs that Python writes; -1: there is none
 * @param client the producer's settings by their Java names, as the user gave them
 */
public record Ticket(
        Border.Plan plan,
        Border.Guarantee guarantee,
        String execution,
        long batch,
        String query,
        String sink,
        String ids,
        String log,
        long logEnd,
        int timeoutMs,
        long limitMs,
        String tooLong,
        Set<String> lost,
        Rows rows,
        DeadLetterTarget dead,
        boolean batchHeaders,
        int others,
        HashMap<String, String> client)
        implements Serializable {
    private static final long serialVersionUID = 1;

    /** The name, among the ticket's columns, of the one with those handles; see exactly_once/spark/foreach_batch.py. */
    private static final String OTHERS = "exactly_once_handles";

    public static Ticket of(Border.TaskTicket t, StructType schema) {
        Set<String> lost = new HashSet<>();
        for (Border.LostPart part : t.lost()) lost.add(rows(part.records(), part.digest()));
        DeadLetterTarget dead = t.deadLetters();
        return new Ticket(
                t.plan(),
                t.guarantee(),
                t.execution(),
                t.batch(),
                t.query(),
                t.sink(),
                t.ids(),
                t.log(),
                t.logEnd(),
                t.timeoutMs(),
                t.limitMs(),
                t.tooLong(),
                lost,
                Rows.of(t, schema, new TopicRule(t.allowed(), dead == null ? null : dead.topic())),
                dead,
                t.batchHeaders(),
                t.columns().getOrDefault(OTHERS, -1),
                new HashMap<>(t.client()));
    }

    /** Whether rows go out in transactions that the driver ends. */
    public boolean isTransactional() {
        return guarantee == Border.Guarantee.EXACTLY_ONCE;
    }

    /** Returns a task's error as it is true under this guarantee, and where the batch is decided already. */
    public SinkException told(SinkException e) {
        if (isTransactional() && plan == Border.Plan.REPLAY && !e.isOver())
            return e.withSafe("The batch is decided, and the next start writes its missing rows again");
        if (isTransactional()) return e;
        return e.withSafe("Records of this batch that were sent before may be visible: this sink's guarantee is "
                + guarantee.name().toLowerCase(Locale.ROOT) + ", and the next start writes the batch again");
    }

    /** Whether a part with these rows is one that tasks keep. */
    public boolean keeps(long records, String digest) {
        return plan != Border.Plan.REPLAY || lost.contains(rows(records, digest));
    }

    private static String rows(long records, String digest) {
        return records + " " + digest;
    }
}

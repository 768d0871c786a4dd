package exactlyonce;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import org.apache.spark.sql.types.StructType;

/**
 * The driver's instructions for the tasks of one execution of a batch; Python makes all of it (exactly_once/spark/jvm.py).
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
 * @param batchHeaders whether each record names its batch; see {@link BatchHeaders}
 * @param client the producer's settings by their Java names, as the user gave them
 */
record Ticket(
        Plan plan,
        Guarantee guarantee,
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
        DeadLetterTopic dead,
        boolean batchHeaders,
        HashMap<String, String> client)
        implements Serializable {
    private static final long serialVersionUID = 1;

    /** What tasks do with their rows: write them; read them to the end and write nothing; write the lost parts again. */
    enum Plan {
        WRITE,
        DRAIN,
        REPLAY
    }

    /** How often a row is in the output, whatever fails. */
    enum Guarantee {
        EXACTLY_ONCE,
        AT_LEAST_ONCE,
        NONE
    }

    static Ticket of(JsonNode t, StructType schema) {
        Set<String> lost = new HashSet<>();
        for (JsonNode part : t.get("lost"))
            lost.add(rows(part.get(0).asLong(), part.get(1).asText()));
        HashMap<String, String> client = new HashMap<>();
        t.get("client")
                .properties()
                .forEach(e -> client.put(e.getKey(), e.getValue().asText()));
        List<String> allowed = new ArrayList<>();
        for (JsonNode name : t.get("allowed")) allowed.add(name.asText());
        DeadLetterTopic dead = DeadLetterTopic.of(t.get("dead_letters"));
        return new Ticket(
                Plan.valueOf(t.get("plan").asText().toUpperCase()),
                Guarantee.valueOf(t.get("guarantee").asText().toUpperCase()),
                t.get("execution").asText(),
                t.get("batch").asLong(),
                t.get("query").asText(),
                t.get("sink").asText(),
                t.get("ids").asText(),
                t.get("log").asText(),
                t.get("log_end").asLong(),
                t.get("timeout_ms").asInt(),
                t.get("limit_ms").asLong(),
                t.get("too_long").asText(),
                lost,
                Rows.of(t, schema, new TopicRule(allowed, dead == null ? null : dead.topic())),
                dead,
                t.get("batch_headers").asBoolean(),
                client);
    }

    /** Whether rows go out in transactions that the driver ends. */
    boolean isTransactional() {
        return guarantee == Guarantee.EXACTLY_ONCE;
    }

    /** Returns a task's error as it is true under this guarantee, and where the batch is decided already. */
    SinkException told(SinkException e) {
        if (isTransactional() && plan == Plan.REPLAY && !e.isOver())
            return e.withSafe("The batch is decided, and the next start writes its missing rows again");
        if (isTransactional()) return e;
        return e.withSafe("Records of this batch that were sent before may be visible: this sink's guarantee is "
                + guarantee.name().toLowerCase(Locale.ROOT) + ", and the next start writes the batch again");
    }

    /** Whether a part with these rows is one that tasks keep. */
    boolean keeps(long records, String digest) {
        return plan != Plan.REPLAY || lost.contains(rows(records, digest));
    }

    private static String rows(long records, String digest) {
        return records + " " + digest;
    }
}

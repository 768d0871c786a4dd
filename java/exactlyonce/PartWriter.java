package exactlyonce;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.errors.AuthenticationException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.Header;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;

/**
 * One part of a batch, in a task: a transaction that begins with the first row, and that {@link #commit} leaves open for the driver to end.
 *
 * <p>Under the weaker guarantees there is no transaction, and what is sent is visible at once.
 */
final class PartWriter implements DataWriter<InternalRow> {
    /** The age of a transaction is looked at once for so many rows. */
    private static final int ROWS_BETWEEN_LOOKS = 1024;

    /** Transactional ids distinguish so many attempts with the same number; see attempt_of in exactly_once/protocol/names.py. */
    private static final int VARIANTS = 4;

    /** Makes the writers of an execution's tasks. */
    record Factory(Ticket ticket) implements StreamingDataWriterFactory, DataWriterFactory {
        private static final long serialVersionUID = 1;

        @Override
        public DataWriter<InternalRow> createWriter(int partition, long taskId, long epoch) {
            String query = TaskContext.get().getLocalProperty(Execution.QUERY);
            if (epoch != ticket.batch() || !ticket.query().equals(query))
                throw new SinkException(
                        "EO-PROTOCOL",
                        "Spark runs batch " + epoch + " of query " + query + ", but the driver planned batch "
                                + ticket.batch() + " of query " + ticket.query(),
                        "Use trigger(processingTime=...) or trigger(availableNow=True); other modes are not supported");
            return new PartWriter(ticket, partition);
        }

        @Override
        public DataWriter<InternalRow> createWriter(int partition, long taskId) {
            return new PartWriter(ticket, partition);
        }
    }

    /** Reports one record; in the producer's own thread. Under the guarantee none, nobody asks what became of it. */
    private record Sent(PartWriter part, String topic, byte[] key, int size) implements Callback {
        @Override
        public void onCompletion(RecordMetadata record, Exception e) {
            if (part.ticket.guarantee() == Ticket.Guarantee.NONE) return;
            if (e == null) part.written.add(record);
            else if (part.failed == null && !Errors.isOfAnother(e)) part.failed = new Failed(e, topic, key, size);
            Failpoints.reach("some-sent");
        }
    }

    private record Failed(Exception error, String topic, byte[] key, int size) {}

    private final Ticket ticket;
    private final Rows rows;
    private final int partition;
    private final String attempt;
    private final String name;
    private final Digest digest = new Digest();
    private final Written written = new Written();
    private final Map<String, Integer> looked = new HashMap<>();
    private final Opening opening; // null: rows name the topic, or nothing will be written
    private Cluster cluster;
    private KafkaProducer<byte[], byte[]> producer;
    private TransactionalProducer transaction;
    private long producerId;
    private int epoch;
    private long began;
    private volatile Failed failed;
    private long sent;
    private long bytes;
    private long chosePartition;
    private long choseTimestamp;
    private String topic;
    private byte[] topicBytes;
    private int partitions;

    PartWriter(Ticket ticket, int partition) {
        TaskContext task = TaskContext.get();
        this.ticket = ticket;
        this.rows = ticket.rows();
        this.partition = partition;
        attempt = task.attemptNumber() + "." + task.taskAttemptId();
        name = ticket.isTransactional()
                ? ticket.ids() + partition + ":" + task.attemptNumber() + "." + task.taskAttemptId() % VARIANTS
                : "sink '" + ticket.sink() + "', part " + partition;
        opening = ticket.plan() == Ticket.Plan.DRAIN || rows.option() == null
                ? null
                : new Opening(ticket, partition, name);
    }

    @Override
    public void write(InternalRow row) {
        try {
            writeRow(row);
        } catch (SinkException e) {
            throw told(e);
        }
    }

    /** Returns the error as it is true under the guarantee. Whom the brokers did not let in connects anew at the next start. */
    private SinkException told(SinkException e) {
        if (e.getCause() instanceof AuthenticationException) {
            Cluster.forget(ticket);
            Producers.forget();
        }
        return ticket.told(e);
    }

    private void writeRow(InternalRow row) {
        if (ticket.plan() == Ticket.Plan.DRAIN)
            return; // its rows are read all the same: state stores commit with the last one
        if (rows.option() == null) choose(row);
        else if (topic == null) choose(rows.option(), rows.option().getBytes(StandardCharsets.UTF_8), row);
        int to = rows.partitionOf(row);
        if (to >= partitions && to >= (partitions = look(topic, rows.key().of(row))))
            throw Errors.unknown(topic + "-" + to, rows.key().of(row), null);
        long timestamp = rows.timestampOf(row);
        Header[] headers = rows.headersOf(row);
        byte[] key = rows.key().of(row), value = rows.value().of(row);
        if (producer == null) begin();
        if (failed != null) throw failure();
        if (rows.isPlain()) digest.add(key, value);
        else digest.add(topicBytes, key, value, to, timestamp, headers);
        if (to >= 0) chosePartition++;
        if (timestamp != 0) choseTimestamp++;
        bytes += (key == null ? 0 : key.length) + (value == null ? 0 : value.length);
        send(new ProducerRecord<>(
                topic,
                to < 0 ? null : to,
                timestamp == 0 ? null : timestamp,
                key,
                value,
                headers == null ? null : Arrays.asList(headers)));
        if (++sent % ROWS_BETWEEN_LOOKS == 0 && failed == null) checkAge();
        Failpoints.reach("mid-write");
    }

    private void choose(InternalRow row) {
        byte[] raw = rows.topicOf(row);
        if (topic == null || !Arrays.equals(raw, topicBytes)) choose(rows.named(raw, row), raw, row);
    }

    private void choose(String topic, byte[] raw, InternalRow row) {
        Integer known = looked.get(topic); // once in each part: a topic may have been deleted since the last one
        if (known == null) looked.put(topic, known = look(topic, rows.key().of(row)));
        partitions = known;
        this.topic = topic;
        topicBytes = raw;
    }

    private int look(String topic, byte[] key) {
        try {
            boolean first = opening != null && looked.isEmpty();
            return first ? opening.partitions() : cluster().look(topic);
        } catch (Exception e) {
            throw Errors.ofRecord(e, name, topic, key, 0);
        }
    }

    private Cluster cluster() {
        if (cluster == null) cluster = Cluster.of(ticket);
        return cluster;
    }

    private void begin() {
        Failpoints.reach("before-begin");
        if (!ticket.isTransactional()) {
            producer = Producers.shared(ProducerSettings.of(ticket, partitions));
            return;
        }
        try {
            TransactionalProducer opened = opening != null
                    ? opening.producer(ticket, name, partitions)
                    : Opening.opened(ticket, name, partitions);
            transaction = opened;
            producerId = opened.producerId();
            epoch = opened.epoch();
            if (producerId < 0) {
                TransactionDescription empty = Cluster.ask(cluster().describe(name));
                producerId = empty.producerId();
                epoch = empty.producerEpoch();
            }
            opened.beginTransaction();
            began = System.nanoTime();
            producer = opened;
        } catch (Exception e) {
            throw Errors.of(e, name);
        }
    }

    private void send(ProducerRecord<byte[], byte[]> record) {
        int size = record.value() == null ? 0 : record.value().length;
        try {
            producer.send(record, new Sent(this, record.topic(), record.key(), size));
        } catch (RuntimeException e) {
            if (Errors.cause(e) != e) settle();
            if (failed == null) failed = new Failed(e, record.topic(), record.key(), size);
        }
        if (failed != null) throw failure();
    }

    /** Waits until each record that was sent is reported: kafka-clients 3.4 (Spark 3.5) fails the transaction before it reports over which one. */
    private void settle() {
        try {
            producer.flush();
        } catch (RuntimeException e) {
            // no more is known than that it failed
        }
    }

    /** Returns the error of the first record that failed; a transaction that is too old is the reason to report. */
    private SinkException failure() {
        Failed first = failed;
        checkAge();
        if (Errors.cause(first.error) instanceof TimeoutException)
            look(first.topic, first.key); // was the topic deleted?
        return Errors.ofRecord(first.error, name, first.topic, first.key, first.size);
    }

    private void checkAge() {
        if (transaction == null || ticket.limitMs() == 0) return;
        long ms = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began);
        if (ms <= ticket.limitMs()) return;
        try { // the driver may have been paused, and superseded: that is the error to report
            cluster().checkInTime(ticket, Cluster.ask(cluster().logEnd(ticket.log())));
        } catch (SinkException late) {
            throw late;
        } catch (Exception e) {
            // its age is reason enough
        }
        throw new SinkException(ticket.tooLong()
                .replace("{part}", String.valueOf(partition))
                .replace("{took_s}", String.format(Locale.ROOT, "%.1f", ms / 1000.0)));
    }

    @Override
    public WriterCommitMessage commit() {
        try {
            return prepare();
        } catch (SinkException e) {
            throw told(e);
        }
    }

    private Part prepare() {
        LinkedHashMap<String, Object> fields = new LinkedHashMap<>();
        fields.put("part", partition);
        fields.put("attempt", attempt);
        fields.put("execution", ticket.execution());
        fields.put("plan", ticket.plan().name().toLowerCase(Locale.ROOT));
        if (producer == null) return new Part(fields); // no rows, or none to write: no transaction
        Failpoints.reach("pre-commit-kafka");
        if (ticket.guarantee() != Ticket.Guarantee.NONE) flush();
        if (!ticket.isTransactional()) return new Part(fields);
        Failpoints.reach("after-flush");
        checkOpen();
        if (!ticket.keeps(
                sent,
                digest.text())) { // of a replay: the part of before is there, or the driver says that its rows did
            // not come again
            abort();
            return new Part(fields);
        }
        fields.put("id", name);
        fields.put("producer", producerId);
        fields.put("epoch", epoch);
        fields.put("records", sent);
        fields.put("bytes", bytes);
        fields.put("digest", digest.text());
        fields.put("form", form());
        fields.put("written", written.fields());
        Producers.leave(transaction);
        transaction = null;
        return new Part(fields);
    }

    private void flush() {
        try {
            producer.flush();
        } catch (RuntimeException e) {
            throw Errors.of(e, name);
        }
        if (failed != null) throw failure();
        if (written.records() != sent)
            throw new SinkException(
                    "EO-PREPARE",
                    name + ": the brokers acknowledged " + written.records() + " of " + sent + " records",
                    Errors.writesAgain(""));
    }

    /** Makes sure that this very transaction is open, by its coordinator, and the task in time, by the commit log. */
    private void checkOpen() {
        TransactionDescription seen;
        try {
            KafkaFuture<TransactionDescription> asked = cluster().describe(name);
            KafkaFuture<Long> end = cluster().logEnd(ticket.log());
            seen = Cluster.ask(asked);
            cluster().checkInTime(ticket, Cluster.ask(end));
        } catch (Exception e) {
            throw Errors.of(e, name);
        }
        checkAge();
        if (seen.state() != TransactionState.ONGOING
                || seen.producerId() != producerId
                || seen.producerEpoch() != epoch)
            throw new SinkException(
                    "EO-PREPARE",
                    name + ": the broker reports " + seen.state() + " at producer epoch " + seen.producerEpoch()
                            + ", not Ongoing at " + epoch + ": the transaction was ended by its timeout of "
                            + seen.transactionTimeoutMs() + " ms or by another client",
                    "Raise kafka.transaction.timeout.ms if batches take that long; otherwise find out what else uses"
                            + " this transactional id");
    }

    /** Returns what the digest covers, so that it can be computed again from the records that a reader gets. */
    private String form() {
        if (rows.isPlain()) return "plain";
        if ((chosePartition != 0 && chosePartition != sent) || (choseTimestamp != 0 && choseTimestamp != sent))
            return "mixed";
        return "row" + (chosePartition != 0 ? "+partition" : "") + (choseTimestamp != 0 ? "+timestamp" : "");
    }

    @Override
    public void abort() {
        if (transaction == null) return;
        Producers.abort(transaction);
        transaction = null;
    }

    @Override
    public void close() {
        if (opening != null) opening.end(producer == null);
    }
}

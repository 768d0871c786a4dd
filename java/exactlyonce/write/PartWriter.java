package exactlyonce.write;

import exactlyonce.SinkException;
import exactlyonce.border.Border;
import exactlyonce.border.Execution;
import exactlyonce.border.Part;
import exactlyonce.encode.Digest;
import exactlyonce.errors.Errors;
import exactlyonce.producer.Cluster;
import exactlyonce.producer.Limits;
import exactlyonce.producer.ProducerSettings;
import exactlyonce.producer.Producers;
import exactlyonce.producer.Topic;
import exactlyonce.producer.TransactionalProducer;
import exactlyonce.ticket.Rows;
import exactlyonce.ticket.Ticket;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
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
 * One part of a batch, in a task: a transaction that begins with the first records, or a moment before, and that {@link #commit} leaves open for
 * the driver to end.
 *
 * <p>Under the weaker guarantees there is no transaction, and what is sent is visible at once.
 */
public final class PartWriter implements DataWriter<InternalRow> {
    /** The age of a transaction is looked at once for so many rows. */
    private static final int ROWS_BETWEEN_LOOKS = 1024;

    /** Transactional ids distinguish so many attempts with the same number; see exactly_once/protocol/names.py. */
    private static final int VARIANTS = 4;

    /** Makes the writers of an execution's tasks. */
    public record Factory(Ticket ticket) implements StreamingDataWriterFactory, DataWriterFactory {
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
            if (part.ticket.guarantee() == Border.Guarantee.NONE) return;
            if (e == null) part.written.add(record);
            else if (part.failed == null && !Errors.isOfAnother(e)) part.failed = new Failed(e, topic, key, size);
            Failpoints.reach("some-sent");
        }
    }

    private record Failed(Exception error, String topic, byte[] key, int size) {}

    private final Ticket ticket;
    private final Rows rows;
    private final int partition;
    private final boolean again;
    private final String name;
    private final Digest digest = new Digest();
    private final Written written = new Written();
    private final Destination destination;
    private final BatchHeaders batchHeaders;
    private final Opening opening; // null: rows name the topic, or nothing will be written
    private final DeadLetters dead; // null: a row that cannot be written ends the execution
    private final List<String> others = new ArrayList<>();
    private KafkaProducer<byte[], byte[]> producer;
    private TransactionalProducer transaction;
    private FirstRecords first; // null: they are sent, or need not wait
    private Set<TopicPartition> certain = Set.of(); // where the first records go
    private Set<TopicPartition> wrote = Set.of(); // where all went, if these are the same
    private Producers.Shared shared;
    private Producers.Use use;
    private long producerId;
    private int epoch;
    private long began;
    private volatile Failed failed;
    private long sent;
    private long bytes;
    private long chosePartition;
    private long choseTimestamp;
    private long batchSize;
    private long waiting; // bytes for topics whose limit is below batchSize

    PartWriter(Ticket ticket, int partition) {
        TaskContext task = TaskContext.get();
        this.ticket = ticket;
        this.rows = ticket.rows();
        this.partition = partition;
        batchHeaders = new BatchHeaders(ticket);
        again = task.attemptNumber() > 0 || task.stageAttemptNumber() > 0; // a stage that is run again counts from 0
        String ids = ticket.ids() + partition + ":" + task.attemptNumber() + ".";
        long variant = task.taskAttemptId() % VARIANTS;
        name = ticket.isTransactional() ? ids + variant : "sink '" + ticket.sink() + "', part " + partition;
        dead = ticket.dead() == null ? null : new DeadLetters(ticket, ids + (VARIANTS + variant));
        opening = ticket.plan() == Border.Plan.DRAIN || rows.option() == null
                ? null
                : new Opening(ticket, partition, name);
        destination = new Destination(ticket, name, opening, dead);
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
        int handles = ticket.others();
        if (handles >= 0 && !row.isNullAt(handles)) {
            others.add(HexFormat.of().formatHex(row.getBinary(handles)));
            return;
        }
        if (ticket.plan() == Border.Plan.DRAIN)
            return; // its rows are read all the same: state stores commit with the last one
        try {
            writeRecord(row);
        } catch (SinkException e) {
            if (dead == null || !e.isOfRow()) throw e;
            writeDead(row, e);
        }
    }

    private void writeRecord(InternalRow row) {
        destination.choose(row);
        int to = destination.partitionOf(row);
        Long timestamp = rows.timestampOf(row);
        Header[] headers = rows.headersOf(row);
        byte[] key = rows.key().of(row), value = rows.value().of(row);
        begin(destination.described());
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                destination.topic(), to < 0 ? null : to, timestamp, key, value, batchHeaders.behind(headers));
        boolean shown = dead != null && dead.show(record, destination.described());
        if (rows.isPlain()) digest.add(key, value);
        else digest.add(destination.bytes(), key, value, to, timestamp, headers);
        if (to >= 0) chosePartition++;
        if (timestamp != null) choseTimestamp++;
        put(record, destination.limit());
        if (shown) flushAll();
    }

    /** Writes a row that cannot be written as a dead letter. The digest covers the row as it is, wherever it goes: so a replay may find it good. */
    private void writeDead(InternalRow row, SinkException refused) {
        dead.add(refused);
        Topic letters = dead.topic();
        begin(destination.described() == null ? letters : destination.described());
        Rows.Chosen chosen = rows.chosen(row);
        byte[] key = rows.key().ofAny(row), value = rows.value().ofAny(row);
        if (rows.isPlain()) digest.add(key, value);
        else {
            int to = chosen.partition() == null ? -1 : chosen.partition();
            digest.add(chosen.topic(), key, value, to, chosen.timestampMs(), chosen.headers());
        }
        put(dead.letter(chosen, key, value, rows.json(row), refused), ProducerSettings.limit(ticket.client(), letters));
    }

    /** @param limit of a batch for the record's topic */
    private void put(ProducerRecord<byte[], byte[]> record, long limit) {
        bytes += Limits.sizeOf(record);
        if (limit < batchSize) keepBatchesSmall(Limits.spaceOf(record), limit);
        send(record);
        if (++sent % ROWS_BETWEEN_LOOKS == 0 && failed == null) checkAge();
        Failpoints.reach("mid-write");
    }

    private Cluster cluster() {
        return Cluster.of(ticket);
    }

    /** Begins with the part's first row, which goes to {@code topic}; later rows find out whether one before them has failed. */
    private void begin(Topic topic) {
        if (!hasRows()) open(topic);
        if (failed != null) throw failure();
    }

    private boolean hasRows() {
        return producer != null || first != null;
    }

    private void open(Topic topic) {
        Failpoints.reach("before-begin");
        use = ProducerSettings.use(ticket, topic);
        batchSize = use.batchSize();
        if (!ticket.isTransactional()) {
            shared = Producers.share(use);
            producer = shared.producer();
        } else if (FirstRecords.mayWait(ticket.client())) {
            first = new FirstRecords(ticket.client()); // Spark goes on fetching while the producer is initialised
        } else {
            openTransaction();
        }
    }

    private void openTransaction() {
        try {
            begin(opening != null ? opening.producer(ticket, name, use) : Opening.opened(ticket, name, use));
        } catch (Exception e) {
            throw Errors.of(e, name);
        }
    }

    private void begin(TransactionalProducer opened) throws Exception {
        transaction = opened;
        producerId = opened.producerId();
        epoch = opened.epoch();
        if (producerId < 0) {
            TransactionDescription empty = Cluster.ask(cluster().describe(name));
            producerId = empty.producerId();
            epoch = empty.producerEpoch();
        }
        if (opening == null || opening.begunWith().isEmpty()) opened.beginTransaction();
        began = System.nanoTime();
        producer = opened;
    }

    /** Flushes what waits before it can make a batch too large for its topic. Rows name their topics, and the first one's limit chose the size. */
    private void keepBatchesSmall(long added, long limit) {
        if (waiting + added > limit) {
            flushAll();
            waiting = 0;
        }
        waiting += added;
    }

    private void send(ProducerRecord<byte[], byte[]> record) {
        if (first != null) {
            if (first.keep(record)) return;
            sendFirst();
        }
        sendNow(record);
    }

    private void sendFirst() {
        if (first == null) return;
        FirstRecords held = first;
        first = null;
        openTransaction();
        if (transaction.canExpect()) {
            certain = certain(held);
            if (opening != null && !certain.containsAll(opening.begunWith())) beginAgain();
            transaction.expect(certain);
        }
        for (ProducerRecord<byte[], byte[]> record : held.records()) sendNow(record);
    }

    private Set<TopicPartition> certain(FirstRecords held) {
        try {
            return held.partitions(producer, ticket.client());
        } catch (RuntimeException e) {
            return Set.of(); // the client did not hear of a topic: the record's own send says so
        }
    }

    private void beginAgain() {
        TransactionalProducer unused = transaction;
        transaction = null; // it goes back, whatever comes of this
        try {
            begin(opening.again(ticket, name, unused));
        } catch (Exception e) {
            throw Errors.of(e, name);
        }
    }

    private void sendNow(ProducerRecord<byte[], byte[]> record) {
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

    /** Returns the error of the first record that failed; that the transaction is too old, or its driver superseded, is the reason to report. */
    private SinkException failure() {
        Failed first = failed;
        checkAge();
        if (transaction != null && Errors.isEnded(first.error)) tellIfLate();
        cluster().forget(first.topic);
        if (Errors.cause(first.error) instanceof TimeoutException) {
            try {
                int largest = cluster().current(first.topic).largestBatch(); // was the topic deleted?
                if (largest != Topic.UNKNOWN && largest < batchSize)
                    return Errors.ofLimit(name, first.topic, largest, batchSize, first.error);
            } catch (Exception e) {
                return Errors.ofRecord(e, name, first.topic, first.key, 0);
            }
        }
        return Errors.ofRecord(first.error, name, first.topic, first.key, first.size);
    }

    private void checkAge() {
        if (transaction == null || ticket.limitMs() == 0) return;
        long ms = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began);
        if (ms <= ticket.limitMs()) return;
        tellIfLate(); // the driver may have been paused, and superseded
        throw new SinkException(ticket.tooLong()
                .replace("{part}", String.valueOf(partition))
                .replace("{took_s}", String.format(Locale.ROOT, "%.1f", ms / 1000.0)));
    }

    /** Gives up where the commit log says that the task is too late; where it says nothing, what is known already is reason enough. */
    private void tellIfLate() {
        try {
            cluster().checkInTime(ticket);
        } catch (SinkException late) {
            throw late;
        } catch (Exception e) {
            // the caller has an error to report
        }
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
        if (!hasRows()) return empty(); // no rows, or none to write: no transaction
        Failpoints.reach("pre-commit-kafka");
        sendFirst();
        LateCheck late = ticket.isTransactional() ? new LateCheck(ticket, transaction) : null;
        try {
            if (ticket.guarantee() != Border.Guarantee.NONE) flush();
        } finally {
            if (late != null) late.flushed();
        }
        if (late == null) return empty();
        Failpoints.reach("after-flush");
        checkInTime(late);
        if (!ticket.keeps(
                sent,
                digest.text())) { // of a replay: the part of before is there, or the driver says that its rows did
            // not come again
            abort();
            return empty();
        }
        boolean isUsual = dead == null || dead.count() == 0;
        if (isUsual && written.isIn(certain)) wrote = certain;
        Part prepared = new Part(new Border.PreparedReport(
                partition,
                again,
                ticket.execution(),
                ticket.plan(),
                others,
                name,
                producerId,
                epoch,
                sent,
                bytes,
                digest.text(),
                form(),
                written.ranges(choseTimestamp > 0),
                dead == null ? 0 : dead.count(),
                dead == null ? List.of() : dead.refused()));
        Producers.leave(transaction);
        transaction = null;
        return prepared;
    }

    private Part empty() {
        return new Part(new Border.TaskReport(partition, again, ticket.execution(), ticket.plan(), others));
    }

    private void flushAll() {
        sendFirst();
        try {
            producer.flush();
        } catch (RuntimeException e) {
            throw Errors.of(e, name);
        }
        if (failed != null) throw failure();
    }

    private void flush() {
        flushAll();
        if (written.records() != sent)
            throw new SinkException(
                    "EO-PREPARE",
                    name + ": the brokers acknowledged " + written.records() + " of " + sent + " records",
                    Errors.writesAgain(""));
    }

    /**
     * Makes sure that the task is in time, by the commit log. Whether its transaction is open, the driver asks the coordinator just before it
     * decides.
     */
    private void checkInTime(LateCheck late) {
        try {
            late.end();
        } catch (Exception e) {
            throw Errors.of(e, name);
        }
        checkAge();
    }

    /** Returns what the digest covers, so that it can be computed again from the records that a reader gets. */
    private String form() {
        long letters = dead == null ? 0 : dead.count(), good = sent - letters; // a dead letter says what its row chose
        String batch = batchHeaders.are() ? "+batch" : "";
        String toDead = letters != 0 ? "+dead:" + ticket.dead().topic() : "";
        if (rows.isPlain()) return "plain" + (batchHeaders.are() ? batch + toDead : "");
        if ((chosePartition != 0 && chosePartition != good) || (choseTimestamp != 0 && choseTimestamp != good))
            return "mixed";
        return "row" + (chosePartition != 0 ? "+partition" : "") + (choseTimestamp != 0 ? "+timestamp" : "") + batch
                + toDead;
    }

    @Override
    public void abort() {
        if (transaction == null) return;
        Producers.abort(transaction);
        transaction = null;
    }

    @Override
    public void close() {
        if (opening != null) opening.end(hasRows() ? wrote : null);
        if (shared != null) Producers.unshare(shared);
        shared = null;
    }
}

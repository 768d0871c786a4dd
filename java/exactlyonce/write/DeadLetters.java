package exactlyonce.write;

import exactlyonce.SinkException;
import exactlyonce.border.Border;
import exactlyonce.border.DeadLetterTarget;
import exactlyonce.errors.Errors;
import exactlyonce.producer.Cluster;
import exactlyonce.producer.Limits;
import exactlyonce.producer.ProducerSettings;
import exactlyonce.producer.Producers;
import exactlyonce.producer.Topic;
import exactlyonce.producer.TransactionalProducer;
import exactlyonce.ticket.Rows;
import exactlyonce.ticket.Ticket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;

/**
 * What a part does with rows that cannot be written: they become records of the dead letter topic, in the part's own transaction.
 *
 * <p>A record that a broker refuses spoils the transaction that it is in. So a row that may be refused is shown to the broker first, in a
 * transaction of its own that is aborted: what the broker says of it is final, and a cluster that fails says nothing of a row.
 */
final class DeadLetters {
    /** The names of Kafka Streams (KIP-1034) where they mean the same; exactly_once/protocol/dead_letters.py reads them. */
    static final String PREFIX = "__exactly_once.errors.";

    /** A broker may learn so late of a topic, or a partition, that was just made. */
    private static final long MADE_MS = 500;

    private static final long BETWEEN_LOOKS_MS = 100;

    private final Ticket ticket;
    private final DeadLetterTarget to;
    private final String probe; // the transactional id of what is shown to a broker
    private final Map<String, Limits> limits = new HashMap<>();
    private final Set<String> absent = new HashSet<>();
    private SinkException first;
    private long count;

    DeadLetters(Ticket ticket, String probe) {
        this.ticket = ticket;
        this.probe = probe;
        to = ticket.dead();
    }

    long count() {
        return count;
    }

    /** Returns what was wrong with the first row, and the way out; nothing where all could be written. */
    List<String> refused() {
        return first == null ? List.of() : List.of(first.what(), first.wayOut());
    }

    /** Asks the brokers for the dead letter topic. */
    Topic topic() {
        try {
            return Cluster.of(ticket).topic(ticket.execution(), to.topic());
        } catch (Exception e) {
            throw Errors.ofRecord(e, probe, to.topic(), null, 0);
        }
    }

    /** Whether a topic, or its {@code partition}, was looked for in vain. */
    boolean isAbsent(String topic, int partition) {
        return absent.contains(topic + "-" + partition);
    }

    /** Looks for the {@code partition} of a topic until a broker must know of it; returns null where there is none. */
    Topic await(String topic, int partition) throws Exception {
        if (isAbsent(topic, partition)) return null;
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(MADE_MS);
        do {
            Thread.sleep(BETWEEN_LOOKS_MS);
            try {
                Topic found = Cluster.of(ticket).current(topic);
                if (partition < found.partitions()) return found;
            } catch (Exception e) {
                if (!Errors.isUnknown(e)) throw e;
            }
        } while (System.nanoTime() < end);
        absent.add(topic + "-" + partition);
        return null;
    }

    /**
     * Shows a record to a broker that may refuse it.
     *
     * @return whether it was shown, and taken: then it is to be sent at once, since the broker's clock goes on
     * @throws SinkException of the row, where it was refused
     */
    boolean show(ProducerRecord<byte[], byte[]> record, Topic topic) {
        Limits known = limits.computeIfAbsent(record.topic(), this::limitsOf);
        if (!known.mayRefuse(record, System.currentTimeMillis())) return false;
        Exception refused;
        try {
            refused = refusal(record, topic);
        } catch (Exception e) {
            throw Errors.of(e, probe);
        }
        if (refused == null) return true;
        int value = record.value() == null ? 0 : record.value().length;
        SinkException error = Errors.ofRecord(refused, probe, record.topic(), record.key(), value);
        throw Errors.isOfRecord(refused) ? error.ofRow() : error;
    }

    private Limits limitsOf(String topic) {
        try {
            return Limits.of(Cluster.of(ticket).config(ticket.execution(), topic), ticket.client());
        } catch (Exception e) {
            if (!(Errors.cause(e) instanceof AuthorizationException)) throw Errors.of(e, probe);
            throw new SinkException(
                    "EO-DENIED",
                    "this principal lacks DESCRIBE_CONFIGS on topic '" + topic + "'",
                    "Grant DESCRIBE_CONFIGS on the topic " + topic + "; docs/reference.md lists all rights");
        }
    }

    /** Sends a record in a transaction, and aborts that. Returns why it was refused; null: it was not. */
    private Exception refusal(ProducerRecord<byte[], byte[]> record, Topic topic) {
        Exception[] refused = new Exception[1];
        TransactionalProducer producer = Opening.opened(ticket, probe, ProducerSettings.useAsGiven(ticket, topic));
        try {
            producer.beginTransaction();
            producer.send(record, (sent, e) -> refused[0] = e);
            producer.flush();
            Failpoints.reach("shown");
            producer.abortTransaction();
        } catch (RuntimeException e) {
            Producers.abort(producer);
            throw e;
        }
        Producers.leave(producer);
        return refused[0];
    }

    /**
     * Counts a row that cannot be written.
     *
     * @throws SinkException the error of the first one, when there are too many. In a replay there never are: its batch is decided
     */
    void add(SinkException refused) {
        if (first == null) first = refused;
        if (++count <= to.most() || ticket.plan() == Border.Plan.REPLAY) return;
        throw new SinkException(
                "EO-RECORD",
                first.what() + "; and it is not the only one: " + count
                        + " rows of this batch cannot be written, more than sink.dead.letter.max=" + to.most(),
                SinkException.NOTHING_VISIBLE,
                first.wayOut() + "; or raise sink.dead.letter.max, and all of them go to " + to.topic(),
                first.getCause());
    }

    /**
     * Returns the record for a row that cannot be written, with what the row chose and why it was refused behind its own headers.
     *
     * @param json see {@link Rows#json}
     */
    ProducerRecord<byte[], byte[]> letter(
            Rows.Chosen row, byte[] key, byte[] value, String json, SinkException refused) {
        List<Header> headers = new ArrayList<>(Arrays.asList(row.headers()));
        headers.add(header(
                "code", "EO-RECORD")); // the first of ours: what is behind the last one with this name is not the row's
        headers.add(header("exception", kindOf(refused).getName()));
        headers.add(header("message", refused.what() + ". What to do: " + refused.wayOut()));
        addPlace(InputPlace.in(row.headers(), to.origin()), headers);
        headers.add(header("sink", ticket.sink()));
        headers.add(header("batch", String.valueOf(ticket.batch())));
        if (row.topic() != null) headers.add(new RecordHeader(PREFIX + "output.topic", row.topic()));
        if (row.partition() != null) headers.add(header("output.partition", String.valueOf(row.partition())));
        if (row.timestampMs() != null) headers.add(header("output.timestamp", String.valueOf(row.timestampMs())));
        if (!json.isEmpty()) headers.add(header("json", json));
        return new ProducerRecord<>(to.topic(), null, null, key, value, headers);
    }

    private static void addPlace(InputPlace from, List<Header> headers) {
        if (from == null) return;
        if (from.topic() != null) headers.add(header("topic", from.topic()));
        headers.add(header("partition", from.partition()));
        headers.add(header("offset", from.offset()));
    }

    private static Class<?> kindOf(SinkException refused) {
        Throwable cause = refused.getCause(); // none: a look at the topic found that it, or its partition, is not there
        return cause == null ? UnknownTopicOrPartitionException.class : cause.getClass();
    }

    private static Header header(String name, String text) {
        return new RecordHeader(PREFIX + name, text.getBytes(StandardCharsets.UTF_8));
    }
}

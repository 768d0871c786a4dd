package exactlyonce.write;

import exactlyonce.SinkException;
import exactlyonce.errors.Errors;
import exactlyonce.producer.Cluster;
import exactlyonce.producer.ProducerSettings;
import exactlyonce.producer.Topic;
import exactlyonce.ticket.Rows;
import exactlyonce.ticket.Ticket;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;

/** Where the rows of a part go: the topic of the row that was asked for last, as the brokers describe it. */
final class Destination {
    private final Ticket ticket;
    private final Rows rows;
    private final String part; // its name
    private final Opening opening; // null: rows name the topic
    private final DeadLetters dead;
    private final Map<String, Topic> byName = new HashMap<>();
    private String topic;
    private byte[] bytes;
    private Topic described;
    private long limit;

    Destination(Ticket ticket, String part, Opening opening, DeadLetters dead) {
        this.ticket = ticket;
        this.part = part;
        this.opening = opening;
        this.dead = dead;
        rows = ticket.rows();
    }

    String topic() {
        return topic;
    }

    /** Returns the name as the row has it. */
    byte[] bytes() {
        return bytes;
    }

    /** Returns null before the first row. */
    Topic described() {
        return described;
    }

    /** Returns what a batch for the topic may have at most. */
    long limit() {
        return limit;
    }

    /** Finds the topic of a row. */
    void choose(InternalRow row) {
        if (rows.option() != null) {
            if (topic == null) choose(rows.option(), rows.option().getBytes(StandardCharsets.UTF_8), row);
            return;
        }
        byte[] raw = rows.topicOf(row);
        if (topic == null || !Arrays.equals(raw, bytes)) choose(rows.named(raw, row), raw, row);
    }

    private void choose(String named, byte[] raw, InternalRow row) {
        Topic known = byName.get(named);
        if (known == null) byName.put(named, known = describe(named, row));
        described = known;
        limit = ProducerSettings.limit(ticket.client(), known);
        topic = named;
        bytes = raw;
    }

    private Topic describe(String named, InternalRow row) {
        byte[] key = rows.key().of(row);
        if (dead != null && dead.isAbsent(named, 0))
            throw Errors.unknown(named, key, null).ofRow();
        try {
            return opening != null ? opening.topic() : Cluster.of(ticket).topic(ticket.execution(), named);
        } catch (Exception e) {
            SinkException error = Errors.ofRecord(e, part, named, key, 0);
            if (opening != null || !Errors.isUnknown(e)) throw error; // the option's topic is no row's fault
            return await(named, 0, error);
        }
    }

    /** Returns the partition that the row chose, -1 for none. Behind the last one the topic is asked for again: it may have grown. */
    int partitionOf(InternalRow row) {
        int chosen = rows.partitionOf(row);
        if (chosen < described.partitions()) return chosen;
        byte[] key = rows.key().of(row);
        try {
            described = Cluster.of(ticket).current(topic);
        } catch (Exception e) {
            throw Errors.ofRecord(e, part, topic, key, 0);
        }
        if (chosen >= described.partitions())
            described = await(topic, chosen, Errors.unknown(topic + "-" + chosen, key, null));
        return chosen;
    }

    /** Returns the topic where what a row chose was just made; raises {@code absent} where it is not there. */
    private Topic await(String named, int partition, SinkException absent) {
        if (dead == null) throw absent;
        try {
            Topic found = dead.await(named, partition);
            if (found != null) return found;
        } catch (Exception e) {
            throw Errors.of(e, part);
        }
        throw absent.ofRow();
    }
}

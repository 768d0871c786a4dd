package exactlyonce;

import exactlyonce.border.Child;
import exactlyonce.encode.Digest;
import exactlyonce.errors.Errors;
import exactlyonce.producer.ProducerTrial;
import exactlyonce.ticket.TicketTrial;
import exactlyonce.write.OpeningTrial;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.errors.DisconnectException;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.SslAuthenticationException;
import org.apache.kafka.common.errors.TransactionAbortedException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;

/** Classes of the sink alone, without Spark: for tests that start it with one kafka-clients or another. What sees the inside of a room lies in it. */
final class Trial {
    /** How tests write null and no rows. */
    private static final String NULL = "null", NOTHING = "-";

    private Trial() {}

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "produce" -> ProducerTrial.produce(arguments[1]);
            case "begins" -> ProducerTrial.begins(arguments[1], arguments[2], arguments[3]);
            case "digest" -> digest(Path.of(arguments[1]));
            case "errors" -> errors();
            case "child" -> child();
            case "fresh" -> ProducerTrial.fresh(arguments[1]);
            case "options" -> System.out.println(String.join(" ", ProducerConfig.configNames()));
            case "late" -> ProducerTrial.late(arguments[1], arguments[2]);
            case "settings" -> ProducerTrial.settings();
            case "topics" -> TicketTrial.topics();
            case "idle" -> ProducerTrial.idle(arguments[1]);
            case "openings" -> OpeningTrial.openings(arguments[1], arguments[2], arguments[3]);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        System.exit(0); // producers that were taken back have threads
    }

    /**
     * Prints what is said of each error of the protocol, when it is a record's and when it is a request's: code, name, whether a retry may help
     * by Kafka's own opinion, the two sentences. Behind them, what is said of exceptions without a code, with the number 0.
     */
    private static void errors() {
        for (org.apache.kafka.common.protocol.Errors one : org.apache.kafka.common.protocol.Errors.values()) {
            Exception thrown = one.exception("the broker's own sentence");
            if (one.code() != 0) said(one.code(), one.name(), thrown);
        }
        String own = "the client's own sentence";
        for (Exception thrown : new Exception[] {
            new TimeoutException(), // Java's, of a question that found no answer
            new DisconnectException(own),
            new TransactionAbortedException(),
            new InterruptException(own),
            new InterruptedException(),
            new ConfigException("No resolvable bootstrap urls given in bootstrap.servers"),
            new ConfigException(own),
            new SslAuthenticationException(own),
            new KafkaException("Failed to construct kafka producer", new KafkaException(new NoSuchFileException(own))),
            new KafkaException("Could not add partitions to transaction due to errors: {t-0=POLICY_VIOLATION}"),
            new IllegalStateException(own),
        }) said(0, thrown.getClass().getSimpleName(), thrown);
    }

    private static void said(int code, String name, Exception thrown) {
        byte[] key = "k-17".getBytes(StandardCharsets.UTF_8);
        String record = Errors.ofRecord(thrown, "eo:s:0:1.0", "orders", key, 9).getMessage();
        String request = Errors.of(thrown, "eo:s:0:1.0").getMessage();
        boolean retriable = thrown instanceof RetriableException;
        System.out.println(String.join("\t", "" + code, name, "" + retriable, record, request));
    }

    /** Prints what is said when the coordinator's process cannot be started. */
    private static void child() {
        try {
            Child.get().call("{}");
        } catch (SinkException e) {
            System.out.println(e.getMessage());
        }
    }

    /** Prints the digest of each part in a file: a line "part form", then a line of six words for each row. */
    private static void digest(Path file) throws Exception {
        Digest digest = null;
        boolean plain = false;
        for (String line : Files.readAllLines(file)) {
            String[] words = line.split(" ");
            if (words[0].equals("part")) {
                if (digest != null) System.out.println(digest.text());
                digest = new Digest();
                plain = words[1].equals("plain");
            } else if (plain) {
                digest.add(bytes(words[1]), bytes(words[2]));
            } else {
                digest.add(
                        words[0].getBytes(StandardCharsets.UTF_8),
                        bytes(words[1]),
                        bytes(words[2]),
                        Integer.parseInt(words[3]),
                        words[4].equals(NOTHING) ? null : (Long) Long.parseLong(words[4]),
                        headers(words[5]));
            }
        }
        System.out.println(digest.text());
    }

    private static byte[] bytes(String word) {
        return word.equals(NULL) ? null : HexFormat.of().parseHex(word.substring(1)); // behind an x
    }

    private static Header[] headers(String word) {
        if (word.equals(NOTHING)) return null;
        return Arrays.stream(word.split(","))
                .map(one -> one.split("="))
                .map(pair -> new RecordHeader(new String(bytes(pair[0]), StandardCharsets.UTF_8), bytes(pair[1])))
                .toArray(Header[]::new);
    }
}

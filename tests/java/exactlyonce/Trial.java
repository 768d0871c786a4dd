package exactlyonce;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.errors.DisconnectException;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.SslAuthenticationException;
import org.apache.kafka.common.errors.TransactionAbortedException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Classes of the sink alone, without Spark: for tests that start it with one kafka-clients or another. */
final class Trial {
    /** How tests write null and no rows. */
    private static final String NULL = "null", NOTHING = "-";

    /** A record that fills a batch, and how many batches of a partition a producer has on their way. */
    private static final int BATCH = 1024, BATCHES_AT_ONCE = 5;

    private Trial() {}

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "produce" -> produce(arguments[1]);
            case "begins" -> begins(arguments[1], arguments[2], arguments[3]);
            case "digest" -> digest(Path.of(arguments[1]));
            case "errors" -> errors();
            case "child" -> child();
            case "fresh" -> fresh(arguments[1]);
            case "options" -> System.out.println(String.join(" ", ProducerConfig.configNames()));
            case "late" -> late(arguments[1], arguments[2]);
            case "settings" -> settings();
            case "topics" -> topics();
            case "idle" -> idle(arguments[1]);
            case "openings" -> openings(arguments[1], arguments[2], arguments[3]);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        System.exit(0); // producers that were taken back have threads
    }

    /**
     * Prints whether a producer can be used again. Then reads lines of brokers and an id; writes a record to partition 0 under that id, as a
     * part of a batch does, and leaves the transaction open; prints id, producer id, epoch, offset, which producer it was, and how many requests
     * it sent to initialise the id.
     */
    private static void produce(String topic) throws Exception {
        System.out.println(TransactionalProducer.isReusable());
        Map<TransactionalProducer, Long> left = new IdentityHashMap<>();
        BufferedReader parts = new BufferedReader(new InputStreamReader(System.in));
        for (String line = parts.readLine(); line != null; line = parts.readLine()) {
            String[] words = line.split(" ");
            TransactionalProducer producer = Producers.take(new Producers.Use(settings(words[0]), null), words[1]);
            long asked = requests(producer) - left.getOrDefault(producer, 0L);
            producer.beginTransaction();
            byte[] value = words[1].getBytes(StandardCharsets.UTF_8);
            var sent = producer.send(new ProducerRecord<>(topic, 0, null, value));
            producer.flush();
            left.put(producer, requests(producer));
            int which = System.identityHashCode(producer);
            System.out.printf(
                    "%s %d %d %d %d %d%n",
                    words[1],
                    producer.producerId(),
                    producer.epoch(),
                    sent.get().offset(),
                    which,
                    asked);
            Producers.leave(producer);
        }
    }

    /**
     * Begins a transaction that expects partitions 0 and 1, sends a record that lingers to partition 0, and prints whether the producer could
     * expect them, whether its coordinator then knew the transaction before its record was sent, and whether that was so before it began. Leaves
     * it open.
     */
    private static void begins(String servers, String topic, String id) throws Exception {
        Map<String, Object> lingers = new HashMap<>(settings(servers));
        lingers.put("linger.ms", "60000");
        TransactionalProducer producer = Producers.take(new Producers.Use(lingers, null), id);
        producer.beginTransaction();
        boolean early = producer.isKnownToCoordinator(), can = producer.canExpect();
        if (can) producer.expect(List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1)));
        producer.send(new ProducerRecord<>(topic, 0, null, new byte[] {1}));
        for (int n = 0; n < 500 && can && !producer.isKnownToCoordinator(); n++) Thread.sleep(10);
        System.out.println(can + " " + producer.isKnownToCoordinator() + " " + early);
    }

    /**
     * Reads lines of a topic's name and a number of partitions; makes the topic, looks at it as a part does, and at once writes some batches to
     * each partition, which are on their way together. Prints how many were acknowledged, and what the others failed with.
     */
    private static void fresh(String servers) throws Exception {
        HashMap<String, String> user = new HashMap<>(
                Map.of("bootstrap.servers", servers, "batch.size", "" + BATCH, "delivery.timeout.ms", "60000"));
        Ticket ticket = ticket(user, "", 0);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String name = line.split(" ")[0];
                int partitions = Integer.parseInt(line.split(" ")[1]);
                Topic likely = new Topic(Uuid.ZERO_UUID, partitions, Topic.UNKNOWN);
                TransactionalProducer producer = Producers.take(ProducerSettings.use(ticket, likely), name);
                Map<String, Integer> ends = new ConcurrentHashMap<>();
                NewTopic fresh = new NewTopic(name, partitions, (short) 1).configs(Map.of("min.insync.replicas", "1"));
                admin.createTopics(List.of(fresh)).all().get();
                describe(ticket, name);
                producer.beginTransaction();
                for (int n = 0; n < BATCHES_AT_ONCE; n++)
                    for (int partition = 0; partition < partitions; partition++)
                        producer.send(
                                new ProducerRecord<>(name, partition, null, new byte[BATCH]),
                                (at, e) -> ends.merge(e == null ? "there" : e.toString(), 1, Integer::sum));
                producer.flush();
                System.out.println(ends);
                producer.leave();
            }
        }
    }

    /** Looks until the brokers know the topic. */
    private static Topic describe(Ticket ticket, String topic) throws Exception {
        for (long end = System.nanoTime() + 30_000_000_000L; ; )
            try {
                return Cluster.of(ticket).current(topic);
            } catch (ExecutionException e) {
                if (System.nanoTime() > end) throw e;
            }
    }

    private static Map<String, Object> settings(String servers) {
        String bytes = ByteArraySerializer.class.getName();
        return Map.of("bootstrap.servers", servers, "key.serializer", bytes, "value.serializer", bytes);
    }

    private static long requests(TransactionalProducer producer) {
        return producer.metrics().values().stream()
                .filter(one -> one.metricName().group().equals("producer-metrics"))
                .filter(one -> one.metricName().name().equals("request-total"))
                .mapToLong(one -> ((Double) one.metricValue()).longValue())
                .sum();
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
            new TimeoutException(own), // Java's
            new DisconnectException(own),
            new TransactionAbortedException(),
            new InterruptException(own),
            new InterruptedException(own),
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

    /**
     * Reads lines of a topic's partitions and limit, and settings of the user ("name=value"); prints of the producer's settings those whose
     * defaults are the sink's.
     */
    private static void settings() throws Exception {
        BufferedReader cases = new BufferedReader(new InputStreamReader(System.in));
        for (String line = cases.readLine(); line != null; line = cases.readLine()) {
            String[] words = line.split(" ");
            HashMap<String, String> user = new HashMap<>();
            for (String word : Arrays.asList(words).subList(2, words.length))
                user.put(word.split("=")[0], word.split("=")[1]);
            Topic topic = new Topic(Uuid.randomUuid(), Integer.parseInt(words[0]), Integer.parseInt(words[1]));
            Map<String, Object> chosen =
                    ProducerSettings.use(ticket(user, "", 0), topic).settings();
            System.out.println(Stream.of("batch.size", "linger.ms", "retry.backoff.ms", "request.timeout.ms")
                    .map(name -> name + "=" + chosen.get(name))
                    .collect(Collectors.joining(" ")));
        }
    }

    /** The ticket of a stream to one topic, under exactly_once. */
    private static Ticket ticket(HashMap<String, String> client, String log, long logEnd) {
        return ticket("orders", client, log, logEnd);
    }

    private static Ticket ticket(String topic, HashMap<String, String> client, String log, long logEnd) {
        return new Ticket(
                Ticket.Plan.WRITE,
                Ticket.Guarantee.EXACTLY_ONCE,
                "execution",
                0,
                "query",
                "s",
                "eo:s:1:",
                log,
                logEnd,
                60_000,
                0,
                "",
                Set.of(),
                new Rows(topic, -1, null, null, -1, -1, -1, null),
                null,
                false,
                client);
    }

    /**
     * Reads lines of an id, and of where the commit log {@code log} ends as the driver knows it. Begins a part that had rows before, under that id;
     * waits for a line: "end" ends the part without rows, "row" asks for its producer. Prints what came of it.
     */
    private static void openings(String servers, String topic, String log) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String name = line.split(" ")[0];
            HashMap<String, String> user = new HashMap<>(Map.of("bootstrap.servers", servers));
            Ticket ticket = ticket(topic, user, log, Long.parseLong(line.split(" ")[1]));
            new Opening(ticket, 0, name).end(false);
            Opening opening = new Opening(ticket, 0, name);
            System.out.println("begun " + opening.topic().partitions());
            try {
                if (lines.readLine().equals("row")) opening.producer(ticket, name, opening.topic());
                else opening.end(true);
                System.out.println("done");
            } catch (SinkException e) {
                System.out.println(e.getMessage());
            }
        }
    }

    /**
     * Leaves a producer in a pool that closes what nobody takes for half a second, and takes it out again twice; then leaves it there. Prints
     * whether it was there each time, and how many connections' threads there are: in the end, when a line comes.
     */
    private static void idle(String servers) throws Exception {
        Idle<TransactionalProducer> pool = new Idle<>(TransactionalProducer::leave, 500);
        Producers.Use use = new Producers.Use(settings(servers), null);
        pool.leave(TransactionalProducer.open(use, "idle-" + System.nanoTime()));
        for (int n = 0; n < 2; n++) {
            TransactionalProducer taken = pool.take(any -> true, any -> true);
            System.out.println((taken != null) + " " + networkThreads());
            Thread.sleep(1000); // longer than the pool waits: what a task uses stays open
            pool.leave(taken);
        }
        BufferedReader again = new BufferedReader(new InputStreamReader(System.in));
        while (again.readLine() != null)
            System.out.println((pool.take(one -> false, any -> true) != null) + " " + networkThreads());
    }

    private static long networkThreads() {
        return Thread.getAllStackTraces().keySet().stream()
                .filter(one -> one.getName().startsWith("kafka-producer-network-thread"))
                .count();
    }

    /** Prints what is said when the coordinator's process cannot be started. */
    private static void child() {
        try {
            Child.get().call("{}");
        } catch (SinkException e) {
            System.out.println(e.getMessage());
        }
    }

    /** Reads lines of sink.topics.allowed, or "-", and a topic; prints why no row may go there, or "null". */
    private static void topics() throws Exception {
        BufferedReader cases = new BufferedReader(new InputStreamReader(System.in));
        for (String line = cases.readLine(); line != null; line = cases.readLine()) {
            String[] words = line.split(" ");
            List<String> allowed = words[0].equals(NOTHING) ? List.of() : List.of(words[0].split(","));
            String topic = new String(bytes(words[1]), StandardCharsets.UTF_8);
            System.out.println(new TopicRule(allowed, null).refusal(topic));
        }
    }

    /** Reads where the commit log ended when a task was sent out; prints what the task is told of what the log says since then. */
    private static void late(String servers, String log) throws Exception {
        BufferedReader ends = new BufferedReader(new InputStreamReader(System.in));
        for (String end = ends.readLine(); end != null; end = ends.readLine()) {
            Ticket ticket = ticket(new HashMap<>(Map.of("bootstrap.servers", servers)), log, Long.parseLong(end));
            try {
                Cluster.of(ticket).checkInTime(ticket);
                System.out.println("in time");
            } catch (SinkException e) {
                System.out.println(e.getMessage());
            }
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

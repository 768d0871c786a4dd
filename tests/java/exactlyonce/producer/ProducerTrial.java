package exactlyonce.producer;

import exactlyonce.SinkException;
import exactlyonce.ticket.Ticket;
import exactlyonce.ticket.TicketTrial;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The producers of an executor, for {@code Trial}. */
public final class ProducerTrial {
    /** A record that fills a batch, and how many batches of a partition a producer has on their way. */
    private static final int BATCH = 1024, BATCHES_AT_ONCE = 5;

    private ProducerTrial() {}

    /**
     * Prints whether a producer can be used again. Then reads lines of brokers and an id; writes a record to partition 0 under that id, as a
     * part of a batch does, and leaves the transaction open; prints id, producer id, epoch, offset, which producer it was, and how many requests
     * it sent to initialise the id.
     */
    public static void produce(String topic) throws Exception {
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
    public static void begins(String servers, String topic, String id) throws Exception {
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
    public static void fresh(String servers) throws Exception {
        HashMap<String, String> user = new HashMap<>(
                Map.of("bootstrap.servers", servers, "batch.size", "" + BATCH, "delivery.timeout.ms", "60000"));
        Ticket ticket = TicketTrial.ticket(user, "", 0);
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

    private static long requests(TransactionalProducer producer) {
        return producer.metrics().values().stream()
                .filter(one -> one.metricName().group().equals("producer-metrics"))
                .filter(one -> one.metricName().name().equals("request-total"))
                .mapToLong(one -> ((Double) one.metricValue()).longValue())
                .sum();
    }

    /**
     * Leaves a producer in a pool that closes what nobody takes for half a second, and takes it out again twice; then leaves it there. Prints
     * whether it was there each time, and how many connections' threads there are: in the end, when a line comes.
     */
    public static void idle(String servers) throws Exception {
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

    /**
     * Reads lines of a topic's partitions and limit, and settings of the user ("name=value"); prints of the producer's settings those whose
     * defaults are the sink's.
     */
    public static void settings() throws Exception {
        BufferedReader cases = new BufferedReader(new InputStreamReader(System.in));
        for (String line = cases.readLine(); line != null; line = cases.readLine()) {
            String[] words = line.split(" ");
            HashMap<String, String> user = new HashMap<>();
            for (String word : Arrays.asList(words).subList(2, words.length))
                user.put(word.split("=")[0], word.split("=")[1]);
            Topic topic = new Topic(Uuid.randomUuid(), Integer.parseInt(words[0]), Integer.parseInt(words[1]));
            Map<String, Object> chosen =
                    ProducerSettings.use(TicketTrial.ticket(user, "", 0), topic).settings();
            System.out.println(Stream.of("batch.size", "linger.ms", "retry.backoff.ms", "request.timeout.ms")
                    .map(name -> name + "=" + chosen.get(name))
                    .collect(Collectors.joining(" ")));
        }
    }

    private static Map<String, Object> settings(String servers) {
        String bytes = ByteArraySerializer.class.getName();
        return Map.of("bootstrap.servers", servers, "key.serializer", bytes, "value.serializer", bytes);
    }

    /** Reads where the commit log ended when a task was sent out; prints what the task is told of what the log says since then. */
    public static void late(String servers, String log) throws Exception {
        BufferedReader ends = new BufferedReader(new InputStreamReader(System.in));
        for (String end = ends.readLine(); end != null; end = ends.readLine()) {
            Ticket ticket =
                    TicketTrial.ticket(new HashMap<>(Map.of("bootstrap.servers", servers)), log, Long.parseLong(end));
            try {
                Cluster.of(ticket).checkInTime(ticket);
                System.out.println("in time");
            } catch (SinkException e) {
                System.out.println(e.getMessage());
            }
        }
    }
}

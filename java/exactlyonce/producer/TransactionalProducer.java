package exactlyonce.producer;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.TopicPartition;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Kafka's producer, with what two-phase commit needs beyond its public methods: the identity of its open transaction, and another
 * transaction under another id while the first one stays open. All private names of kafka-clients stand here (as in Flink's
 * FlinkKafkaInternalProducer). Where a release lacks one, {@link #isReusable} is false, and each part has a new producer.
 */
public final class TransactionalProducer extends KafkaProducer<byte[], byte[]> {
    private static final Logger LOG = LoggerFactory.getLogger(TransactionalProducer.class);

    /** Names of the sets and lists of partitions, which a new transaction begins without. */
    private static final List<String> PARTITIONS =
            List.of("newPartitionsInTransaction", "pendingPartitionsInTransaction", "partitionsInTransaction");

    /** The coordinator of each id: a look-up costs a round trip and retry.backoff.ms. Bounded, as ids are. */
    private static final ConcurrentHashMap<Known, Object> COORDINATORS = new ConcurrentHashMap<>();

    private static volatile Internals internals;
    private static volatile boolean looked;

    public final Producers.Use use;
    private final Object manager;
    private String id;

    /** The private names, looked up once. */
    private record Internals(
            Field manager,
            Field coordinator,
            Field id,
            Field state,
            Object uninitialized,
            List<Field> partitions,
            Field started,
            Field lastError,
            Field identity,
            Object noIdentity,
            Field producerId,
            Field epoch,
            Field sequences,
            Method reset,
            Field implicit,
            Method add) {
        static Internals of() throws ReflectiveOperationException {
            Field manager = field(KafkaProducer.class, "transactionManager");
            Class<?> type = manager.getType();
            Field state = field(type, "currentState"),
                    identity = field(type, "producerIdAndEpoch"),
                    sequences = field(type, "txnPartitionMap");
            Method reset = sequences.getType().getDeclaredMethod("reset");
            reset.setAccessible(true);
            return new Internals(
                    manager,
                    field(type, "transactionCoordinator"),
                    field(type, "transactionalId"),
                    state,
                    named(state.getType(), "UNINITIALIZED"),
                    List.of(
                            field(type, PARTITIONS.get(0)),
                            field(type, PARTITIONS.get(1)),
                            field(type, PARTITIONS.get(2))),
                    field(type, "transactionStarted"),
                    field(type, "lastError"),
                    identity,
                    field(identity.getType(), "NONE").get(null),
                    field(identity.getType(), "producerId"),
                    field(identity.getType(), "epoch"),
                    sequences,
                    reset,
                    optional(type, "isTransactionV2Enabled"),
                    optional(type, "maybeAddPartition", TopicPartition.class));
        }

        private static Method optional(Class<?> type, String name, Class<?> argument) {
            try {
                return type.getMethod(name, argument);
            } catch (NoSuchMethodException e) {
                return null;
            }
        }

        private static Field optional(Class<?> type, String name) {
            try {
                return field(type, name);
            } catch (NoSuchFieldException e) {
                return null;
            }
        }

        private static Field field(Class<?> type, String name) throws NoSuchFieldException {
            Field found = type.getDeclaredField(name);
            found.setAccessible(true);
            return found;
        }

        private static Object named(Class<?> type, String name) throws NoSuchFieldException {
            for (Object constant : type.getEnumConstants())
                if (constant.toString().equals(name)) return constant;
            throw new NoSuchFieldException(type + "." + name);
        }
    }

    /** A transactional id on one cluster: sinks with the same id on two clusters have equal ones, each with a coordinator of its own. */
    private record Known(Object servers, String id) {}

    private TransactionalProducer(Producers.Use use, Map<String, Object> mine, String id) {
        super(mine);
        this.use = use;
        this.id = id;
        manager = isReusable() ? get(internals.manager, this) : null;
    }

    /** Makes a producer and initialises {@code id}. */
    static TransactionalProducer open(Producers.Use use, String id) {
        Map<String, Object> mine = new HashMap<>(use.settings());
        mine.put("transactional.id", id);
        TransactionalProducer made = new TransactionalProducer(use, mine, id);
        try {
            made.initialise();
            return made;
        } catch (RuntimeException e) {
            made.leave();
            throw e;
        }
    }

    /** Whether this kafka-clients has the private names. */
    static boolean isReusable() {
        if (!looked) look();
        return internals != null;
    }

    private static synchronized void look() {
        if (looked) return;
        try {
            internals = Internals.of();
        } catch (ReflectiveOperationException | RuntimeException e) {
            LOG.warn(
                    "this version of kafka-clients does not allow a producer to be reused: the sink makes a new one"
                            + " for each part of a batch ({})",
                    e.toString());
        }
        looked = true;
    }

    String id() {
        return id;
    }

    /** Forgets the transaction that is open, which stays so for the driver, and initialises {@code id} over the same connections. */
    void renew(String id) {
        this.id = id;
        synchronized (manager) {
            Object coordinator = COORDINATORS.get(known());
            if (coordinator != null) set(internals.coordinator, manager, coordinator);
            set(internals.id, manager, id);
            set(internals.state, manager, internals.uninitialized);
            for (Field partitions : internals.partitions) ((Collection<?>) get(partitions, manager)).clear();
            set(internals.started, manager, false);
            set(internals.lastError, manager, null);
            set(internals.identity, manager, internals.noIdentity);
            try {
                internals.reset.invoke(get(internals.sequences, manager));
            } catch (ReflectiveOperationException e) {
                throw new IllegalStateException(e);
            }
        }
        initialise();
    }

    private void initialise() {
        initTransactions();
        if (manager == null) return;
        Object coordinator = get(internals.coordinator, manager);
        if (coordinator != null) COORDINATORS.put(known(), coordinator);
    }

    private Known known() {
        return new Known(use.settings().get("bootstrap.servers"), id);
    }

    /** Returns the producer id of the transaction; -1 where this kafka-clients does not tell. */
    public long producerId() {
        return manager == null ? -1 : (long) get(internals.producerId, get(internals.identity, manager));
    }

    /** Returns the producer epoch of the transaction; -1 where this kafka-clients does not tell. */
    public short epoch() {
        return manager == null ? -1 : (short) get(internals.epoch, get(internals.identity, manager));
    }

    /** Whether the client adds partitions one by one, and can be told of several. */
    public boolean canExpect() {
        return manager != null && internals.add != null && !isImplicit();
    }

    /** Begins the transaction with these partitions, without waiting. */
    public void begin(Collection<TopicPartition> partitions) {
        beginTransaction();
        expect(partitions);
        flush(); // there is no record yet: it only wakes the thread that asks the coordinator
    }

    /** Adds these partitions to the transaction, to each of which a record is about to be sent, in one request. */
    public void expect(Collection<TopicPartition> partitions) {
        synchronized (manager) {
            for (TopicPartition one : partitions)
                try {
                    internals.add.invoke(manager, one);
                } catch (ReflectiveOperationException e) {
                    return; // the record's own send says what is wrong
                }
        }
    }

    private boolean isImplicit() {
        return internals.implicit != null && (boolean) get(internals.implicit, manager);
    }

    /**
     * Whether the coordinator knows the transaction, with each partition that a record was sent to. False also where that cannot be told: a
     * client that leaves out AddPartitionsToTxn (KIP-890, kafka-clients 4) begins the transaction with its records.
     */
    public boolean isKnownToCoordinator() {
        if (manager == null) return false;
        synchronized (manager) {
            if (isImplicit()) return false;
            return ((Collection<?>) get(internals.partitions.get(0), manager)).isEmpty()
                    && ((Collection<?>) get(internals.partitions.get(1), manager)).isEmpty()
                    && !((Collection<?>) get(internals.partitions.get(2), manager)).isEmpty();
        }
    }

    /** Closes the connections; the transaction stays open: with time to close, Kafka's producer would abort it. */
    void leave() {
        close(Duration.ZERO);
    }

    private static Object get(Field field, Object of) {
        try {
            return field.get(of);
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
    }

    private static void set(Field field, Object of, Object value) {
        try {
            field.set(of, value);
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
    }
}

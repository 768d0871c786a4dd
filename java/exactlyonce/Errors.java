package exactlyonce;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.errors.AuthenticationException;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidTxnTimeoutException;
import org.apache.kafka.common.errors.RecordBatchTooLargeException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.TopicAuthorizationException;
import org.apache.kafka.common.errors.TransactionalIdAuthorizationException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** What a failure of Kafka's client is called, with its way out; exactly_once/kafka/errors.py says the same of Python's clients. */
final class Errors {
    /** So much of a key is shown. */
    private static final int SHOWN = 60;

    private static final String HEALTHY = "Start the stream again once the brokers are healthy";
    private static final String ENCRYPT_AGAIN =
            ". Java cannot read a private key that is encrypted by PBES2: encrypt it again with openssl pkcs8 -topk8"
                    + " -v1 PBE-SHA1-3DES";
    private static final String RIGHTS = "; docs/reference.md lists all rights";

    /** What the brokers find wrong with a record, by the class of Kafka's exception. */
    private static final Map<String, String> OF_THE_RECORD = Map.of(
            "InvalidTopicException", "Correct the option or the column that names the topic",
            "InvalidTimestampException",
                    "Correct the column 'timestamp' (a wrong time zone, or seconds for milliseconds), or change "
                            + "message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic",
            "InvalidRecordException",
                    "Correct the row (a compacted topic takes no row without a key), or the setting of the topic that"
                            + " refuses it");

    /** What ends one transaction and not the next one, though no retry of its request may help. */
    private static final Set<String> OF_THE_TRANSACTION = Set.of(
            "OutOfOrderSequenceException",
            "InvalidTxnStateException",
            "InvalidPidMappingException",
            "UnknownProducerIdException",
            "TransactionCoordinatorFencedException",
            "TransactionalIdNotFoundException",
            "TransactionAbortableException",
            "ProducerFencedException",
            "InvalidProducerEpochException",
            "TransactionAbortedException",
            "CorruptRecordException",
            "InterruptException",
            "AbortableTransactionException",
            "ApplicationRecoverableException");

    private Errors() {}

    /** Returns the error of a request of the producer (or of the question) {@code name}. */
    static SinkException of(Throwable thrown, String name) {
        Throwable e = cause(thrown);
        if (e instanceof SinkException known) return known;
        if (e instanceof ConfigException || e instanceof InvalidConfigurationException)
            return new SinkException(
                    "EO-OPTION",
                    "the Kafka client refuses a setting: " + said(e) + innermost(e),
                    "Nothing was written",
                    "Correct the kafka.* option of that name" + (innermost(e).contains("PBES2") ? ENCRYPT_AGAIN : ""),
                    e);
        if (e instanceof TopicAuthorizationException denied) {
            String topics = String.join(", ", denied.unauthorizedTopics());
            return failed(
                    "EO-DENIED",
                    name + ": this principal lacks WRITE on topic " + topics,
                    "Grant WRITE on the topic " + topics + RIGHTS,
                    e);
        }
        if (e instanceof TransactionalIdAuthorizationException) {
            String prefix = name.replaceFirst("^(eo:[^:]+:).*", "$1");
            return failed(
                    "EO-DENIED",
                    name + ": " + said(e),
                    "Grant WRITE on the transactional ids with the prefix " + prefix + RIGHTS,
                    e);
        }
        if (e instanceof AuthorizationException || e instanceof AuthenticationException)
            return failed(
                    "EO-DENIED",
                    name + ": " + said(e),
                    "Correct the credentials or renew the certificate, or grant the right that docs/reference.md lists"
                            + " under 'Rights'",
                    e);
        if (e instanceof InvalidTxnTimeoutException)
            return failed(
                    "EO-TIMEOUT",
                    "kafka.transaction.timeout.ms is above the brokers' transaction.max.timeout.ms",
                    "Lower kafka.transaction.timeout.ms, or raise transaction.max.timeout.ms on the brokers",
                    e);
        if (e instanceof ApiException && !mayPass(e))
            return failed(
                    "EO-BROKER-REFUSED",
                    name + ": the brokers refuse a request: " + said(e),
                    "Correct the setting that the answer names, in the options, of the topic or on the brokers",
                    e);
        return failed("EO-PREPARE", name + ": " + said(e), HEALTHY, e);
    }

    /** Returns the error of a record for {@code topic} with this key, and a value of {@code size} bytes. */
    static SinkException ofRecord(Throwable thrown, String name, String topic, byte[] key, int size) {
        Throwable e = cause(thrown);
        String record = "(topic '" + topic + "', key " + shown(key) + ", value of " + size + " bytes)";
        if (e instanceof RecordTooLargeException || e instanceof RecordBatchTooLargeException)
            return failed(
                    "EO-RECORD",
                    "a record of this part " + record + " is too large: " + said(e),
                    "Raise kafka.max.request.size in the options and max.message.bytes of the topic, or make the"
                            + " record smaller",
                    e);
        if (e instanceof UnknownTopicOrPartitionException) return unknown(topic, e);
        String wayOut = OF_THE_RECORD.get(e.getClass().getSimpleName());
        if (wayOut == null
                && e.getClass() == KafkaException.class
                && String.valueOf(e.getMessage()).contains("one more invalid records"))
            wayOut = OF_THE_RECORD.get("InvalidRecordException"); // of another record in its batch
        if (wayOut != null)
            return failed(
                    "EO-RECORD", "the brokers refuse a record of this part " + record + ": " + said(e), wayOut, e);
        return of(e, name);
    }

    /** Returns the error of a record whose topic or partition does not exist. */
    static SinkException unknown(String where, Throwable cause) {
        return failed(
                "EO-RECORD",
                "a record goes to a topic or partition that does not exist (" + where
                        + "): it never existed, or was deleted while the stream was " + "running",
                "Create the topic or partition, or correct the option or the columns that name it",
                cause);
    }

    /** Returns bytes of a row (a key, a topic) for an error: as text where they are text, shortened. */
    static String shown(byte[] bytes) {
        if (bytes == null) return "null";
        String text;
        try {
            text = "'" + StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)) + "'";
        } catch (CharacterCodingException e) {
            text = "0x" + HexFormat.of().formatHex(bytes);
        }
        return text.length() <= SHOWN ? text : text.substring(0, SHOWN) + "...";
    }

    /** Returns what the client raised in the first place: it wraps that in exceptions of its own state. */
    static Throwable cause(Throwable thrown) {
        Throwable e = thrown;
        while (e.getCause() != null
                && (e instanceof ExecutionException
                        || e instanceof CompletionException
                        || e.getClass() == KafkaException.class)) e = e.getCause();
        return e;
    }

    /** Returns the first cause of all, in words that follow a sentence; "" when there is no other one. */
    private static String innermost(Throwable e) {
        Throwable first = e;
        while (first.getCause() != null) first = first.getCause();
        return first == e ? "" : ", since " + first.getMessage();
    }

    private static boolean mayPass(Throwable e) {
        return e instanceof RetriableException
                || OF_THE_TRANSACTION.contains(e.getClass().getSimpleName());
    }

    private static String said(Throwable e) {
        return e.getMessage() + " (" + e.getClass().getSimpleName() + ")";
    }

    private static SinkException failed(String code, String what, String wayOut, Throwable cause) {
        return new SinkException(code, what, SinkException.NOTHING_VISIBLE, wayOut, cause);
    }
}

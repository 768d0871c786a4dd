package exactlyonce.errors;

import exactlyonce.SinkException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.util.HexFormat;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.regex.Pattern;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.errors.AuthenticationException;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidTimestampException;
import org.apache.kafka.common.errors.InvalidTxnTimeoutException;
import org.apache.kafka.common.errors.RecordBatchTooLargeException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TopicAuthorizationException;
import org.apache.kafka.common.errors.TransactionalIdAuthorizationException;
import org.apache.kafka.common.errors.UnknownServerException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** What a failure of Kafka's client is called, with its way out; exactly_once/kafka/errors.py says the same of Python's clients. */
public final class Errors {
    /** Characters of a key that are shown. */
    private static final int SHOWN = 60;

    private static final String ENCRYPT_AGAIN =
            ". Java cannot read a private key that is encrypted by PBES2: encrypt it again with openssl pkcs8 -topk8"
                    + " -v1 PBE-SHA1-3DES";
    private static final String RIGHTS = "; docs/reference.md lists all rights";

    /** What may pass and has no code, as the client itself raises it; not every release has each class. */
    private static final Set<String> MAY_PASS_OF_THE_CLIENT = Set.of(
            "TimeoutException", // Java's: a question took too long
            "DisconnectException",
            "BootstrapResolutionException",
            "TransactionAbortedException",
            "InterruptException",
            "InterruptedException");

    /** What the brokers find wrong with a record, by the class of Kafka's exception. */
    private static final Map<String, String> OF_THE_RECORD = Map.of(
            "InvalidTopicException", "Correct the option or the column that names the topic",
            "InvalidTimestampException",
                    "Correct the column 'timestamp' (often in a wrong time zone, or in seconds and not milliseconds)"
                        + " or, without that column, the clock of the executor's host. Or change"
                        + " message.timestamp.before.max.ms, message.timestamp.after.max.ms or message.timestamp.type"
                        + " of the topic",
            "InvalidRecordException",
                    "Correct the row (a compacted topic refuses a row without a key), or the setting of the topic that"
                            + " refuses it");

    /** TLS alerts with which a broker refuses a client's certificate; a broker in Java says certificate_unknown of one that has run out. */
    private static final Pattern CERTIFICATE_REFUSED = Pattern.compile("alert: (bad_certificate|unsupported_certificate"
            + "|certificate_(revoked|expired|unknown|required)|unknown_ca|access_denied)");

    private static final String RENEW_CERTIFICATE =
            "Renew the client's certificate (kafka.ssl.keystore.location) on every host: it has expired, was"
                    + " revoked, or was issued by an authority that the brokers do not trust";

    private Errors() {}

    /** Returns the error of a request of the producer (or of the question) {@code name}. */
    public static SinkException of(Throwable thrown, String name) {
        return of(cause(thrown), name, "", name);
    }

    /** @param who the name, and the topic and key of the record that failed */
    private static SinkException of(Throwable e, String name, String topic, String who) {
        String said = said(e);
        if (e instanceof SinkException known) return known;
        if (mayPass(e)) return failed("EO-PREPARE", who + ": " + said, writesAgain(topic), e);
        if (e instanceof ConfigException
                || e.getClass() == InvalidConfigurationException.class
                || e instanceof IOException // of a file that a setting names: what the network refuses is repeated
                || e instanceof GeneralSecurityException)
            return new SinkException(
                    "EO-OPTION",
                    who + ": the Kafka client refuses a setting: " + said + innermost(e),
                    "Nothing was written",
                    "Correct the kafka.* option that the Kafka client refuses"
                            + (innermost(e).contains("PBES2") ? ENCRYPT_AGAIN : ""),
                    e);
        if (e instanceof ReflectiveOperationException) // of an interceptor, say: the client loads it late
        return new SinkException(
                    "EO-OPTION",
                    who + ": a class that a setting names cannot be loaded: " + said(e),
                    "Nothing was written",
                    "Correct the kafka.* option whose class cannot be loaded, or add the jar of that class to"
                            + " spark.jars",
                    e);
        if (e instanceof TopicAuthorizationException denied) {
            Set<String> unnamed = topic.isEmpty() ? Set.of() : Set.of(topic);
            String topics =
                    String.join(", ", denied.unauthorizedTopics().isEmpty() ? unnamed : denied.unauthorizedTopics());
            if (!topics.isEmpty())
                return failed(
                        "EO-DENIED",
                        who + ": " + said + ": this principal lacks WRITE on topic '" + topics + "'",
                        "Grant WRITE on the topic " + topics + RIGHTS,
                        e);
        }
        if (e instanceof TransactionalIdAuthorizationException) {
            String prefix = name.replaceFirst("^(eo:[^:]+:).*", "$1");
            return failed(
                    "EO-DENIED",
                    who + ": " + said,
                    "Grant WRITE on the transactional ids with the prefix " + prefix + RIGHTS,
                    e);
        }
        if (e instanceof AuthorizationException || e instanceof AuthenticationException)
            return failed(
                    "EO-DENIED",
                    who + ": " + said,
                    refusesCertificate(e)
                            ? RENEW_CERTIFICATE
                            : "Correct the credentials, or grant the right that docs/reference.md lists under 'Rights'",
                    e);
        if (e instanceof InvalidTxnTimeoutException)
            return failed(
                    "EO-TIMEOUT",
                    who + ": kafka.transaction.timeout.ms is above the brokers' transaction.max.timeout.ms: " + said,
                    "Lower kafka.transaction.timeout.ms to transaction.max.timeout.ms, which exactly-once doctor"
                            + " shows, or raise transaction.max.timeout.ms on the brokers",
                    e);
        // not of a record, see below: only the commit log is asked for by its name
        if (e instanceof UnknownTopicOrPartitionException)
            return failed(
                    "EO-TOPIC",
                    who + ": the commit log of the sink was deleted or never existed: " + said,
                    "Start the stream again by hand: the start says how to continue without the commit log",
                    e);
        if (!(e instanceof KafkaException))
            return failed(
                    "EO-PROTOCOL",
                    who + ": " + said,
                    "Start the stream once more; if the error repeats, report it with the log of this task's executor",
                    e);
        return failed(
                "EO-BROKER-REFUSED",
                who + ": the brokers, or the Kafka client itself, refuse a request: " + said,
                e instanceof UnknownServerException
                        ? "Find the exception in the brokers' server.log, because the answer does not name it. Then"
                                + " check compression.type of the topic, and authorizer.class.name and log.dirs of the"
                                + " broker"
                        : "Correct the setting that the brokers or the Kafka client refuse: in the options, on the"
                                + " topic or on the brokers",
                e);
    }

    /** Returns the error of a record for {@code topic} with this key; {@code size} is its value's. */
    public static SinkException ofRecord(Throwable thrown, String name, String topic, byte[] key, int size) {
        Throwable e = cause(thrown);
        String named = "topic '" + topic + "', key " + shown(key), record = "(" + named + ")";
        if (e instanceof RecordTooLargeException)
            return failed(
                    "EO-RECORD",
                    "a record of this part (" + named + ", value of " + size + " bytes) is too large: " + said(e),
                    "Raise kafka.max.request.size in the options and max.message.bytes of the topic, or make the"
                            + " record smaller",
                    e);
        if (e instanceof RecordBatchTooLargeException)
            return failed(
                    "EO-RECORD",
                    "a batch that begins with a record of this part " + record + " is too large: " + said(e),
                    "Raise segment.bytes of topic '" + topic + "', or keep both kafka.batch.size and the record below"
                            + " that limit",
                    e);
        if (e instanceof UnknownTopicOrPartitionException) return unknown(topic, key, e);
        String wayOut = OF_THE_RECORD.get(e.getClass().getSimpleName());
        if (wayOut != null)
            return failed(
                    "EO-RECORD", "the brokers refuse a record of this part " + record + ": " + said(e), wayOut, e);
        return of(e, name, topic, name + " " + record);
    }

    /** Returns the error of a part whose batches, of up to {@code batch} bytes, a topic has not taken since its limit was lowered. */
    public static SinkException ofLimit(String name, String topic, int limit, long batch, Throwable cause) {
        return failed(
                "EO-TOPIC-LIMIT",
                name + ": max.message.bytes of the topic '" + topic + "' was lowered to " + limit
                        + " while this task sent batches of up to " + batch
                        + " bytes, which the brokers refuse since then",
                "Start the stream again: its batches then fit into the limit. If one record is larger, the error is"
                        + " EO-RECORD: then raise max.message.bytes of the topic",
                cause);
    }

    /** Returns the error of a row that cannot be a record; {@code kind}: as what Kafka's own client would refuse it. */
    public static SinkException ofRow(ApiException kind, String what, String wayOut) {
        return failed("EO-RECORD", what, wayOut, kind).ofRow();
    }

    /** Whether the brokers, or the client itself, refused a record for what it is. A cluster that fails is no reason of a record's. */
    public static boolean isOfRecord(Throwable thrown) {
        Throwable e = cause(thrown);
        return e instanceof RecordTooLargeException
                || e instanceof RecordBatchTooLargeException
                || e instanceof InvalidTimestampException
                || e instanceof InvalidRecordException;
    }

    /** Whether a topic does not exist. */
    public static boolean isUnknown(Throwable thrown) {
        return cause(thrown) instanceof UnknownTopicOrPartitionException;
    }

    /** Returns the error of a record whose topic or partition does not exist. */
    public static SinkException unknown(String where, byte[] key, Throwable cause) {
        return failed(
                "EO-RECORD",
                "a record goes to a topic or partition that does not exist (" + where + ", key " + shown(key)
                        + "): it never existed, or was deleted while the stream was running"
                        + (cause == null ? "" : ": " + said(cause)),
                "Create the topic or partition to which the record goes, or correct the option topic, or the column"
                        + " 'topic' or the column 'partition', that names it",
                cause);
    }

    /** Whether the transaction of a record was ended by somebody else. */
    public static boolean isEnded(Throwable thrown) {
        return Codes.ENDED.contains((int) org.apache.kafka.common.protocol.Errors.forException(cause(thrown))
                .code());
    }

    /** Whether a record failed for another one of its batch, which the brokers refuse. */
    public static boolean isOfAnother(Throwable e) {
        return e.getClass() == KafkaException.class && said(e).contains("because it was part of a batch");
    }

    /** Returns bytes of a row (a key, a topic) for an error: as text where they are text, shortened. */
    public static String shown(byte[] bytes) {
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
    public static Throwable cause(Throwable thrown) {
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

    /** Whether a broker ended the TLS handshake over the client's certificate; see _CERTIFICATE_REFUSED in exactly_once/kafka/errors.py. */
    private static boolean refusesCertificate(Throwable thrown) {
        for (Throwable e = thrown; e != null; e = e.getCause())
            if (e.getMessage() != null
                    && CERTIFICATE_REFUSED.matcher(e.getMessage()).find()) return true;
        return false;
    }

    private static boolean mayPass(Throwable e) {
        return Codes.MAY_PASS.contains((int)
                        org.apache.kafka.common.protocol.Errors.forException(e).code())
                || MAY_PASS_OF_THE_CLIENT.contains(e.getClass().getSimpleName())
                || (e instanceof ConfigException && said(e).startsWith("No resolvable bootstrap urls"));
    }

    private static String said(Throwable e) {
        String name = e.getClass().getSimpleName();
        if (e.getMessage() != null) return e.getMessage() + " (" + name + ")";
        return e instanceof java.util.concurrent.TimeoutException ? "the brokers did not answer in time" : name;
    }

    /** Returns the way out of what a new attempt may heal. */
    public static String writesAgain(String topic) {
        return "Start the stream again: it writes the batch again. If it fails in the same way, run exactly-once doctor"
                + " --topic " + (topic.isEmpty() ? "TOPIC" : topic)
                + " to see which partitions have no leader or too few replicas in sync";
    }

    private static SinkException failed(String code, String what, String wayOut, Throwable cause) {
        return new SinkException(code, what, SinkException.NOTHING_VISIBLE, wayOut, cause);
    }
}

package exactlyonce.border;

import com.fasterxml.jackson.annotation.JsonFormat;
import com.fasterxml.jackson.annotation.JsonProperty;
import com.fasterxml.jackson.annotation.JsonSubTypes;
import com.fasterxml.jackson.annotation.JsonTypeInfo;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonMappingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.PropertyNamingStrategies;
import com.fasterxml.jackson.databind.json.JsonMapper;
import com.fasterxml.jackson.databind.util.RawValue;
import exactlyonce.SinkException;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/**
 * The JSON between this JVM and the coordinators: requests, the reports of tasks in them, and answers.
 *
 * <p>exactly_once/spark/border.py has dataclasses of the same names and fields, and says what they mean. Tests on both sides hold them to the
 * files in tests/golden/border.
 */
public final class Border {
    private static final JsonMapper JSON = JsonMapper.builder()
            .propertyNamingStrategy(PropertyNamingStrategies.SNAKE_CASE)
            .disable(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES) // those of a newer package
            .enable(DeserializationFeature.FAIL_ON_MISSING_CREATOR_PROPERTIES)
            .enable(DeserializationFeature.FAIL_ON_NULL_FOR_PRIMITIVES)
            .build();

    private Border() {}

    /** What tasks do with their rows: write them; read them to the end and write nothing; write the lost parts again. */
    public enum Plan {
        @JsonProperty("write")
        WRITE,
        @JsonProperty("drain")
        DRAIN,
        @JsonProperty("replay")
        REPLAY
    }

    /** How often a row is in the output, whatever fails. */
    public enum Guarantee {
        @JsonProperty("exactly_once")
        EXACTLY_ONCE,
        @JsonProperty("at_least_once")
        AT_LEAST_ONCE,
        @JsonProperty("none")
        NONE
    }

    /** One step that the coordinator shall run. */
    @JsonTypeInfo(use = JsonTypeInfo.Id.NAME, property = "call")
    @JsonSubTypes({
        @JsonSubTypes.Type(value = CheckRequest.class, name = "check"),
        @JsonSubTypes.Type(value = PlanRequest.class, name = "plan"),
        @JsonSubTypes.Type(value = CommitRequest.class, name = "commit"),
        @JsonSubTypes.Type(value = AbortRequest.class, name = "abort"),
        @JsonSubTypes.Type(value = CloseRequest.class, name = "close")
    })
    public sealed interface Request permits CheckRequest, PlanRequest, CommitRequest, AbortRequest, CloseRequest {}

    public record CheckRequest(
            Map<String, String> options,
            boolean batch,
            String schema,
            Map<String, String> pem,
            String mode,
            boolean brokers)
            implements Request {}

    public record PlanRequest(
            String run,
            Map<String, String> options,
            String schema,
            boolean overwrite,
            boolean write,
            String query,
            Long batch,
            Map<String, String> settings,
            List<String> sources,
            Map<String, String> pem)
            implements Request {}

    /** @param parts the reports of tasks, see {@link Part}; null for a task without a result */
    public record CommitRequest(String run, List<RawValue> parts, long batch) implements Request {}

    /** @param parts as of a {@link CommitRequest} */
    public record AbortRequest(String run, List<RawValue> parts, long batch) implements Request {}

    public record CloseRequest(String run) implements Request {}

    /**
     * The result of a task that has left no transaction open.
     *
     * @param again whether Spark gave up an attempt of this part before
     * @param others the handles of the outputs that Python writes, as Python made them, in hexadecimal
     */
    public record TaskReport(int part, boolean again, String execution, Plan plan, List<String> others) {}

    /** The result of a task that has left a transaction open. */
    public record PreparedReport(
            int part,
            boolean again,
            String execution,
            Plan plan,
            List<String> others,
            String id,
            long producer,
            int epoch,
            long records,
            long bytes,
            String digest,
            String form,
            List<PartitionRange> written,
            long dead,
            List<String> refused) {}

    /** @param oldestMs null: no row of the part chose a time */
    @JsonFormat(shape = JsonFormat.Shape.ARRAY)
    public record PartitionRange(String topic, int partition, long firstOffset, long records, Long oldestMs) {}

    /** @param ok of a plan; null of any other step that went well */
    public record CallAnswer(TaskTicket ok, EngineError error) {}

    public record EngineError(String code, String text) {}

    public record TaskTicket(
            Plan plan,
            String execution,
            long batch,
            String query,
            Guarantee guarantee,
            String sink,
            String ids,
            String log,
            long logEnd,
            int timeoutMs,
            long limitMs,
            String tooLong,
            String topic,
            Map<String, Integer> columns,
            String keyPrefix,
            String valuePrefix,
            Map<String, ColumnEncoding> encodings,
            List<String> allowed,
            DeadLetterTarget deadLetters,
            boolean batchHeaders,
            List<LostPart> lost,
            Map<String, String> client) {}

    public record ColumnEncoding(String format, JsonNode plan, JsonNode spare) {}

    @JsonFormat(shape = JsonFormat.Shape.ARRAY)
    public record LostPart(long records, String digest) {}

    /** Reads the ticket of a batch that Python has planned by itself. */
    public static TaskTicket ticket(String json) {
        try {
            return JSON.readValue(json, TaskTicket.class);
        } catch (JsonProcessingException e) {
            throw otherVersion(e);
        }
    }

    public static String write(Object value) {
        try {
            return JSON.writeValueAsString(value);
        } catch (JsonProcessingException e) {
            throw new IllegalStateException(e);
        }
    }

    /**
     * Reads {@code {"ok": ...}} or {@code {"error": ...}}.
     *
     * @throws SinkException naming the field that is missing or wrong
     */
    public static CallAnswer answer(String json) {
        try {
            JsonNode answer = JSON.readTree(json);
            return new CallAnswer(
                    JSON.treeToValue(answer.get("ok"), TaskTicket.class),
                    JSON.treeToValue(answer.get("error"), EngineError.class));
        } catch (JsonProcessingException e) {
            throw otherVersion(e);
        }
    }

    private static SinkException otherVersion(JsonProcessingException e) {
        return new SinkException(
                "EO-PROTOCOL",
                "the sink's jar and the Python package are of two versions, and one cannot read what the other has"
                        + " sent ("
                        + reason(e) + ")",
                "Decided batches stay decided; nothing else is visible to a read_committed reader",
                "Put the jar that exactly_once.jar() names into spark.jars, in place of the other one, and start"
                        + " again",
                e);
    }

    private static String reason(JsonProcessingException e) {
        if (!(e instanceof JsonMappingException wrong)) return e.getOriginalMessage();
        return wrong.getPath().stream()
                .map(step -> step.getFieldName() + ": ")
                .collect(Collectors.joining("", "", wrong.getOriginalMessage()));
    }
}

package exactlyonce;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.Serializable;

/**
 * The topic for rows that cannot be written ({@code sink.dead.letter.topic}).
 *
 * @param most so many rows of a batch may go there
 * @param largest its max.message.bytes, which the producer of a part must be able to send
 * @param origin the header in which a row says which input record it came from; empty: none does
 */
record DeadLetterTopic(String topic, long most, long largest, String origin) implements Serializable {
    private static final long serialVersionUID = 1;

    /** Returns what the ticket says; null where the sink has no such topic. */
    static DeadLetterTopic of(JsonNode said) {
        if (said == null || said.isNull()) return null;
        return new DeadLetterTopic(
                said.get("topic").asText(),
                said.get("most").asLong(),
                said.get("largest").asLong(),
                said.get("origin").asText());
    }
}

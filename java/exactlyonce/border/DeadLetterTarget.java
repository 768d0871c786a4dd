package exactlyonce.border;

import java.io.Serializable;

/**
 * The topic for rows that cannot be written ({@code sink.dead.letter.topic}).
 *
 * @param most so many rows of a batch may go there
 * @param largest its max.message.bytes, which the producer of a part must be able to send
 * @param origin the header in which a row says which input record it came from; empty: none does
 */
public record DeadLetterTarget(String topic, long most, long largest, String origin) implements Serializable {
    private static final long serialVersionUID = 1;
}

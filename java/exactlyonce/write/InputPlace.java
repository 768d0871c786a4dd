package exactlyonce.write;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.apache.kafka.common.header.Header;

/**
 * The record of the input that a row came from, as a header of the row says it; exactly_once/tools/verify/by_origin/origin.py reads the same text.
 *
 * @param topic null: the text names none, since the stream has one input topic
 */
record InputPlace(String topic, String partition, String offset) {
    /** topic-partition-offset and topic/partition/offset, each perhaps without the topic, and with #k behind it. */
    private static final List<Pattern> PATTERNS = Stream.of("-", "/")
            .map(by -> Pattern.compile("(?:([^/#]+)" + by + ")?(\\d{1,18})" + by + "(\\d{1,18})(?:#\\d{1,18})?"))
            .toList();

    /** Returns what the first of these headers with this name says; null where there is none, it names no place, or the name is empty. */
    static InputPlace in(Header[] headers, String name) {
        if (name.isEmpty()) return null;
        for (Header header : headers)
            if (header.key().equals(name)) return header.value() == null ? null : read(header.value());
        return null;
    }

    private static InputPlace read(byte[] said) {
        String text = new String(said, StandardCharsets.UTF_8);
        for (Pattern form : PATTERNS) {
            Matcher found = form.matcher(text);
            if (found.matches()) return new InputPlace(found.group(1), found.group(2), found.group(3));
        }
        return null;
    }
}

package exactlyonce.ticket;

import java.io.Serializable;
import java.util.List;
import java.util.regex.Pattern;

/**
 * The topics that a row may name; see exactly_once/protocol/topics.py.
 *
 * @param allowed empty: all that no sink is refused
 * @param dead the sink's dead letter topic, null without one
 */
record TopicRule(List<String> allowed, String dead) implements Serializable {
    private static final long serialVersionUID = 1;
    private static final Pattern NAME = Pattern.compile("(?!\\.{1,2}$)[a-zA-Z0-9._-]{1,249}");
    private static final Pattern COMMIT_LOG = Pattern.compile("eo\\..+\\.commit-log");

    /** Returns why no row may go to {@code topic}, in words that follow its name; null when rows may. */
    String refusal(String topic) {
        if (!NAME.matcher(topic).matches())
            return "is not a name that Kafka allows (1 to 249 letters, digits, '.', '_' and '-')";
        if (COMMIT_LOG.matcher(topic).matches())
            return "is the commit log of a sink, to which only that sink may write";
        if (topic.startsWith("__")) return "is a topic of Kafka's own (its name begins with '__')";
        if (topic.equals(dead)) return "is the dead letter topic of this sink";
        if (!allowed.isEmpty() && allowed.stream().noneMatch(pattern -> matches(pattern, topic)))
            return "is not among sink.topics.allowed=" + String.join(",", allowed);
        return null;
    }

    private static boolean matches(String pattern, String topic) {
        StringBuilder any = new StringBuilder();
        for (String literal : pattern.split("\\*", -1))
            any.append(any.isEmpty() ? "" : ".*").append(Pattern.quote(literal));
        return topic.matches(any.toString());
    }
}

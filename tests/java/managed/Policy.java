package managed;

import java.io.IOException;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.server.policy.AlterConfigPolicy;
import org.apache.kafka.server.policy.CreateTopicPolicy;

/**
 * What a managed cluster refuses of a topic, by rules in the file that the broker's property {@code managed.rules} names, read for each topic:
 * {@code settings} (all that may be set), {@code refused} (what may not be set), {@code least.<setting>}, {@code most.<setting>}, {@code
 * must.<setting>} (to be set, to this value), {@code prefix} of names, {@code replicas.least} and {@code replicas.most}, {@code none} (no topic at
 * all), {@code alter} (settings that the policy of settings refuses), and {@code answer}, the kind of the error.
 */
public final class Policy {
    private Policy() {}

    /** Reads the rules, for each kind of policy; public, since a broker calls it. */
    public abstract static class Rules {
        private String file;

        /** Called by the broker, as {@link #close} is. */
        public void configure(Map<String, ?> broker) {
            file = (String) broker.get("managed.rules");
        }

        public void close() {}

        final Map<String, String> read() {
            Properties read = new Properties();
            try (Reader rules = Files.newBufferedReader(Path.of(file))) {
                read.load(rules);
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
            Map<String, String> rules = new HashMap<>();
            read.stringPropertyNames().forEach(name -> rules.put(name, read.getProperty(name)));
            return rules;
        }
    }

    /** For a new topic. */
    public static final class Create extends Rules implements CreateTopicPolicy {
        @Override
        public void validate(RequestMetadata asked) {
            if (!asked.topic().startsWith("__"))
                check(read(), asked.topic(), asked.replicationFactor(), asked.configs());
        }
    }

    /** For the settings of a topic, which Kafka asks about for a new one as well. */
    public static final class Alter extends Rules implements AlterConfigPolicy {
        @Override
        public void validate(RequestMetadata asked) {
            Map<String, String> rules = read();
            for (String name : listed(rules, "alter"))
                if (asked.configs().containsKey(name)) refuse(rules, "Altering config '" + name + "' is disallowed");
        }
    }

    private static List<String> listed(Map<String, String> rules, String rule) {
        String value = rules.getOrDefault(rule, "");
        return value.isEmpty() ? List.of() : Arrays.asList(value.split(","));
    }

    private static void check(Map<String, String> rules, String topic, Short replicas, Map<String, String> given) {
        if (rules.containsKey("none")) refuse(rules, "Topics are created by the platform team only");
        if (!topic.startsWith(rules.getOrDefault("prefix", "")))
            refuse(rules, "Topic names must begin with " + rules.get("prefix"));
        if (replicas != null && replicas < Short.parseShort(rules.getOrDefault("replicas.least", "0")))
            refuse(rules, "Topic replication factor must be " + rules.get("replicas.least"));
        if (replicas != null && replicas > Short.parseShort(rules.getOrDefault("replicas.most", "99")))
            refuse(rules, "Topic replication factor must be at most " + rules.get("replicas.most"));
        if (rules.containsKey("settings"))
            for (String name : given.keySet())
                if (!listed(rules, "settings").contains(name)) refuse(rules, "cannot set \"" + name + "\"");
        for (String name : listed(rules, "refused"))
            if (given.containsKey(name)) refuse(rules, "Config property '" + name + "' cannot be set");
        rules.forEach((rule, bound) -> {
            String name = rule.substring(rule.indexOf('.') + 1);
            String value = given.get(name);
            if (rule.startsWith("must.") && !bound.equals(value)) refuse(rules, name + " must be " + bound);
            if (value == null) return;
            if (rule.startsWith("least.") && Double.parseDouble(value) < Double.parseDouble(bound))
                refuse(
                        rules,
                        "Config property '" + name + "' with value '" + value
                                + "' is lower than the minimum allowed value of " + bound + ".");
            if (rule.startsWith("most.") && Double.parseDouble(value) > Double.parseDouble(bound))
                refuse(
                        rules,
                        "Config property '" + name + "' with value '" + value + "' exceeded max limit of " + bound
                                + ".");
        });
    }

    private static void refuse(Map<String, String> rules, String sentence) {
        if ("config".equals(rules.get("answer"))) throw new InvalidConfigurationException(sentence);
        throw new PolicyViolationException(sentence);
    }
}

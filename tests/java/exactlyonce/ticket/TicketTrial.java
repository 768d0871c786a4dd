package exactlyonce.ticket;

import exactlyonce.border.Border;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;

/** Tickets, and the topics that rows may name; for {@code Trial}. */
public final class TicketTrial {
    private TicketTrial() {}

    /** Reads lines of sink.topics.allowed, or "-", and a topic; prints why no row may go there, or "null". */
    public static void topics() throws Exception {
        BufferedReader cases = new BufferedReader(new InputStreamReader(System.in));
        for (String line = cases.readLine(); line != null; line = cases.readLine()) {
            String[] words = line.split(" ");
            List<String> allowed = words[0].equals("-") ? List.of() : List.of(words[0].split(","));
            String topic = new String(HexFormat.of().parseHex(words[1].substring(1)), StandardCharsets.UTF_8);
            System.out.println(new TopicRule(allowed, null).refusal(topic));
        }
    }

    /** The ticket of a stream to one topic, under exactly_once. */
    public static Ticket ticket(HashMap<String, String> client, String log, long logEnd) {
        return ticket("orders", client, log, logEnd);
    }

    public static Ticket ticket(String topic, HashMap<String, String> client, String log, long logEnd) {
        return new Ticket(
                Border.Plan.WRITE,
                Border.Guarantee.EXACTLY_ONCE,
                "execution",
                0,
                "query",
                "s",
                "eo:s:1:",
                log,
                logEnd,
                60_000,
                0,
                "",
                Set.of(),
                new Rows(topic, -1, null, null, -1, -1, -1, null),
                null,
                false,
                -1,
                client);
    }
}

package exactlyonce.write;

import exactlyonce.SinkException;
import exactlyonce.producer.ProducerSettings;
import exactlyonce.ticket.Ticket;
import exactlyonce.ticket.TicketTrial;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.TopicPartition;

/** The beginning of a part, for {@code Trial}. */
public final class OpeningTrial {
    private OpeningTrial() {}

    /**
     * Reads lines of an id, of where the commit log {@code log} ends as the driver knows it, and perhaps "usual". Begins a part that had rows before,
     * under that id, then all of them in partition 0; waits for a line: "end" ends the part without rows, "row" asks for its producer. Prints what
     * came of it.
     */
    public static void openings(String servers, String topic, String log) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            String name = words[0];
            Set<TopicPartition> usual = words.length > 2 ? Set.of(new TopicPartition(topic, 0)) : Set.of();
            HashMap<String, String> user = new HashMap<>(Map.of("bootstrap.servers", servers));
            Ticket ticket = TicketTrial.ticket(topic, user, log, Long.parseLong(words[1]));
            for (int batch = 0; batch < 2; batch++) {
                Opening before = new Opening(ticket, 0, name);
                before.topic();
                before.end(usual);
            }
            Opening opening = new Opening(ticket, 0, name);
            System.out.println("begun " + opening.topic().partitions());
            try {
                if (lines.readLine().equals("row"))
                    opening.producer(ticket, name, ProducerSettings.use(ticket, opening.topic()));
                else opening.end(null);
                System.out.println("done " + opening.begunWith());
            } catch (SinkException e) {
                System.out.println(e.getMessage());
            }
        }
    }
}

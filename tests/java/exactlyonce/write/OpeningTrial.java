package exactlyonce.write;

import exactlyonce.SinkException;
import exactlyonce.ticket.Ticket;
import exactlyonce.ticket.TicketTrial;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;

/** The beginning of a part, for {@code Trial}. */
public final class OpeningTrial {
    private OpeningTrial() {}

    /**
     * Reads lines of an id, and of where the commit log {@code log} ends as the driver knows it. Begins a part that had rows before, under that id;
     * waits for a line: "end" ends the part without rows, "row" asks for its producer. Prints what came of it.
     */
    public static void openings(String servers, String topic, String log) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String name = line.split(" ")[0];
            HashMap<String, String> user = new HashMap<>(Map.of("bootstrap.servers", servers));
            Ticket ticket = TicketTrial.ticket(topic, user, log, Long.parseLong(line.split(" ")[1]));
            new Opening(ticket, 0, name).end(false);
            Opening opening = new Opening(ticket, 0, name);
            System.out.println("begun " + opening.topic().partitions());
            try {
                if (lines.readLine().equals("row")) opening.producer(ticket, name, opening.topic());
                else opening.end(true);
                System.out.println("done");
            } catch (SinkException e) {
                System.out.println(e.getMessage());
            }
        }
    }
}

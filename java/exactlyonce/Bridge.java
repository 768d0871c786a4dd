package exactlyonce;

import exactlyonce.border.Border;
import exactlyonce.border.Child;
import exactlyonce.producer.Producers;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/** The way from this JVM to the coordinator: the driver's own Python where it is connected, else a child process. */
public final class Bridge {
    private static volatile Coordinator connected;

    /** Runs whose end the driver's Python did not hear of, since its callback server was closed. */
    private static final Set<String> UNHEARD = ConcurrentHashMap.newKeySet();

    private Bridge() {}

    /** Called by Python, through py4j: from now on the coordinator is that process. */
    public static void connect(Coordinator python) {
        connected = python;
        for (String run : UNHEARD) if (UNHEARD.remove(run)) Producers.beside(() -> close(python, run));
    }

    /** Returns the coordinator of what begins now. It stays that one's until its end: no other process knows what was planned. */
    static Coordinator coordinator() {
        Coordinator python = connected;
        return python != null ? python : Child.get();
    }

    /**
     * Runs one step.
     *
     * @return the ticket that a plan has for its tasks
     * @throws SinkException the engine's error, in its own words; or that the coordinator's process is gone
     */
    static Border.TaskTicket call(Coordinator to, Border.Request request) {
        String json;
        try {
            json = to.call(Border.write(request));
        } catch (SinkException e) {
            throw e;
        } catch (RuntimeException e) { // py4j's, of many kinds
            throw Child.gone(e);
        }
        Border.CallAnswer answer = Border.answer(json);
        if (answer.error() != null) throw new SinkException(answer.error().text());
        return answer.ok();
    }

    /**
     * Says that something of {@code run} has ended. Where nobody hears it, the next start rolls back what is open, since Spark shall report
     * what went wrong before; and Python closes that coordinator when it is connected again.
     */
    static void tell(Coordinator to, String run, Border.Request request) {
        try {
            call(to, request);
        } catch (SinkException e) {
            if (!(to instanceof Child)) UNHEARD.add(run);
        }
    }

    /** Says that {@code run} has ended, as {@link #tell} does. */
    static void close(Coordinator to, String run) {
        tell(to, run, new Border.CloseRequest(run));
    }
}

package exactlyonce;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Map;

/** The way from this JVM to the coordinator: the driver's own Python where it is connected, else a child process. */
public final class Bridge {
    private static final ObjectMapper JSON = new ObjectMapper();

    private static volatile Coordinator connected;

    private Bridge() {}

    /** Called by Python, through py4j: from now on the coordinator is that process. */
    public static void connect(Coordinator python) {
        connected = python;
    }

    /** Whether the driver's Python is connected. */
    public static boolean isConnected() {
        return connected != null;
    }

    /**
     * Runs one step.
     *
     * @return the value of its answer
     * @throws SinkException the engine's error, in its own words; or that the coordinator's process is gone
     */
    static JsonNode call(Map<String, Object> request) {
        Coordinator to = connected;
        if (to == null) to = Child.get();
        JsonNode answer;
        try {
            answer = JSON.readTree(to.call(JSON.writeValueAsString(request)));
        } catch (JsonProcessingException e) {
            throw new IllegalStateException(e);
        } catch (SinkException e) {
            throw e;
        } catch (RuntimeException e) { // py4j's, of many kinds
            throw gone(e);
        }
        if (answer.has("error"))
            throw new SinkException(answer.get("error").get("text").asText());
        return answer.get("ok");
    }

    static SinkException gone(Throwable e) {
        return new SinkException(
                "EO-COORDINATOR",
                "the Python process that runs the sink's protocol does not answer (" + e + ")",
                "What is decided will be committed by the next start; nothing else is visible",
                "Start the stream again; if the error repeats, read the log of the driver's Python for what ended it",
                e);
    }
}

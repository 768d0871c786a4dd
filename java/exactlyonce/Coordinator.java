package exactlyonce;

/**
 * The protocol, which Python runs: {@code exactly_once.spark.jvm} in the driver's own process, reached through py4j's callback server, or
 * in a child of this JVM ({@link Child}).
 */
public interface Coordinator {
    /**
     * Runs one step.
     *
     * @param request JSON; its field {@code call} names the step: check, plan, commit, abort or close
     * @return JSON: {@code {"ok": ...}}, or {@code {"error": {"code": "EO-...", "text": "..."}}}; a step never throws
     */
    String call(String request);
}

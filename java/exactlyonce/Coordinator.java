package exactlyonce;

/**
 * The protocol, which Python runs: {@code exactly_once.spark.jvm} in the driver's own process, reached through py4j's callback server, or
 * in a child of this JVM ({@code Child}).
 */
public interface Coordinator {
    /**
     * Runs one step.
     *
     * @param request the JSON of a {@code Border.Request}
     * @return that of a {@code Border.CallAnswer}; a step never throws
     */
    String call(String request);
}

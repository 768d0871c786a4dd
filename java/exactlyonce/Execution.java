package exactlyonce;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.SparkContext;

/** What Spark says of the execution that it runs: properties of the query's thread, which its tasks get too. */
final class Execution {
    /** The run of the query: its id is that of Spark's job group. */
    static final String RUN = "spark.jobGroup.id";

    static final String QUERY = "sql.streaming.queryId";
    static final String BATCH = "streaming.sql.batchId";

    /** Settings of the session that the engine may have to refuse. */
    private static final List<String> SETTINGS = List.of("spark.speculation", "spark.sql.streaming.stopTimeout");

    private Execution() {}

    /** Returns a property, "" when Spark has not set it. */
    static String property(SparkContext context, String name) {
        String found = context.getLocalProperty(name);
        return found == null ? "" : found;
    }

    /** Returns those of {@link #SETTINGS} that are set: by the session, else by the application. */
    static Map<String, String> settings(SparkContext context) {
        HashMap<String, String> found = new HashMap<>();
        for (String name : SETTINGS) {
            String value = property(context, name);
            if (value.isEmpty()) value = context.getConf().get(name, "");
            if (!value.isEmpty()) found.put(name, value);
        }
        return found;
    }
}

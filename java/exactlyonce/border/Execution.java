package exactlyonce.border;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.SparkSession;
import scala.collection.Iterator;

/** What Spark says of the execution that it runs: properties of the query's thread, which its tasks get too. */
public final class Execution {
    /** The run of the query: its id is that of Spark's job group. */
    public static final String RUN = "spark.jobGroup.id";

    public static final String QUERY = "sql.streaming.queryId";
    public static final String BATCH = "streaming.sql.batchId";

    /** Settings of the session that the engine may have to refuse. */
    private static final List<String> SETTINGS = List.of("spark.speculation", "spark.sql.streaming.stopTimeout");

    private Execution() {}

    /** Returns a property, "" when Spark has not set it. */
    public static String property(SparkContext context, String name) {
        String found = context.getLocalProperty(name);
        return found == null ? "" : found;
    }

    /**
     * Returns the names of the query's sources; null where Spark has none to say, as before 4.2. Its own interface does
     * not say them, so these are private names.
     */
    public static List<String> sources(String query) {
        try {
            Object shared = get(SparkSession.active(), "sharedState");
            Map<?, ?> queries = (Map<?, ?>) get(shared, "activeStreamingQueries");
            Object running = queries.get(UUID.fromString(query));
            if (running == null) return null;
            ArrayList<String> found = new ArrayList<>();
            Iterator<?> names = ((scala.collection.Map<?, ?>) get(running, "sourceIdMap")).keysIterator();
            while (names.hasNext()) found.add(String.valueOf(names.next()));
            return found;
        } catch (ReflectiveOperationException | LinkageError | RuntimeException e) {
            return null;
        }
    }

    /** Returns the options with the checkpoint where Spark puts it, if its location leaves that to the session: no process but this JVM can ask it. */
    public static Map<String, String> located(Map<String, String> options) {
        HashMap<String, String> found = new HashMap<>(options);
        found.replaceAll((name, value) -> name.equalsIgnoreCase("checkpointLocation") ? qualified(value) : value);
        return found;
    }

    private static String qualified(String location) {
        try {
            Path path = new Path(location);
            if (path.toUri().getAuthority() != null
                    || "file".equals(path.toUri().getScheme())) return location;
            Object state = get(SparkSession.active(), "sessionState");
            Path there = path.getFileSystem((Configuration) get(state, "newHadoopConf"))
                    .makeQualified(path);
            return "file".equals(there.toUri().getScheme()) ? there.toUri().getPath() : there.toString();
        } catch (IOException | ReflectiveOperationException | LinkageError | RuntimeException e) {
            return location; // the engine says what is wrong with it
        }
    }

    private static Object get(Object of, String name) throws ReflectiveOperationException {
        return of.getClass().getMethod(name).invoke(of);
    }

    /** Returns those of {@link #SETTINGS} that are set: by the session, else by the application. */
    public static Map<String, String> settings(SparkContext context) {
        HashMap<String, String> found = new HashMap<>();
        for (String name : SETTINGS) {
            String value = property(context, name);
            if (value.isEmpty()) value = context.getConf().get(name, "");
            if (!value.isEmpty()) found.put(name, value);
        }
        return found;
    }
}

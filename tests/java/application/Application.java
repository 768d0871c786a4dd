package application;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.streaming.Trigger;

/** An application as a user of Java compiles it: a folder of JSON to a topic. */
public final class Application {
    private Application() {}

    public static void main(String[] arguments) throws Exception {
        SparkSession spark = SparkSession.builder().getOrCreate();
        spark.readStream()
                .schema("key STRING, value STRING")
                .json(arguments[0] + "/in")
                .writeStream()
                .format("kafka_exactly_once")
                .option("sink.id", arguments[2])
                .option("topic", arguments[2])
                .option("kafka.bootstrap.servers", arguments[1])
                .option("checkpointLocation", arguments[0] + "/checkpoint")
                .trigger(Trigger.AvailableNow())
                .start()
                .awaitTermination();
    }
}

package exactlyonce;

import org.apache.spark.sql.sources.DataSourceRegister;

/** The class by which Spark finds the sink. Its format is still the Python data source. */
public final class Sink implements DataSourceRegister {
    @Override
    public String shortName() {
        return "kafka_exactly_once_jvm";
    }
}

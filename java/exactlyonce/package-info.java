/**
 * The sink on the driver, and the names that Spark, Python and traces have: {@code Sink}, {@code MicroBatch}, {@code Bridge}, {@code Coordinator},
 * {@code SinkException}.
 */
package exactlyonce;

package exactlyonce;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.clients.producer.ProducerInterceptor;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;

/** An interceptor of a user, which adds a header to each record. */
public final class Stamp implements ProducerInterceptor<byte[], byte[]> {
    @Override
    public ProducerRecord<byte[], byte[]> onSend(ProducerRecord<byte[], byte[]> record) {
        record.headers().add("stamp", "seen".getBytes(StandardCharsets.UTF_8));
        return record;
    }

    @Override
    public void onAcknowledgement(RecordMetadata where, Exception failure) {}

    @Override
    public void close() {}

    @Override
    public void configure(Map<String, ?> settings) {}
}

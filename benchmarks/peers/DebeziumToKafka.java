import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.FileInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Debezium engine with a Kafka producer behind it, as Debezium Server does it: a batch is
 * sent, awaited, and only then marked processed.
 *
 * <p>One argument: a properties file. Names that begin with "producer." are the producer's, the
 * others the engine's. Runs until SIGTERM. No lambdas: it is compiled by Janino, the compiler
 * that Spark brings, so that a runtime without javac is enough.
 */
public class DebeziumToKafka {
    public static void main(String[] args) throws Exception {
        Properties engineProperties = new Properties();
        Properties producerProperties = new Properties();
        split(args[0], engineProperties, producerProperties);
        KafkaProducer producer =
            new KafkaProducer(producerProperties, new ByteArraySerializer(), new ByteArraySerializer());
        final DebeziumEngine engine = DebeziumEngine.create(Json.class)
            .using(engineProperties)
            .notifying(new ToKafka(producer))
            .build();
        Runtime.getRuntime().addShutdownHook(new Closing(engine));
        engine.run();
    }

    private static void split(String file, Properties engine, Properties producer) throws IOException {
        Properties all = new Properties();
        FileInputStream stream = new FileInputStream(file);
        all.load(stream);
        stream.close();
        Iterator names = all.stringPropertyNames().iterator();
        while (names.hasNext()) {
            String name = (String) names.next();
            if (name.startsWith("producer.")) {
                producer.setProperty(name.substring("producer.".length()), all.getProperty(name));
            } else {
                engine.setProperty(name, all.getProperty(name));
            }
        }
    }

    /** Closes the engine when the process is asked to end. */
    public static class Closing extends Thread {
        private final DebeziumEngine engine;

        public Closing(DebeziumEngine engine) {
            this.engine = engine;
        }

        public void run() {
            try {
                engine.close();
            } catch (IOException e) {
                System.err.println("close failed: " + e);
            }
        }
    }

    /** Sends a batch and waits for every acknowledgement before it marks anything. */
    public static class ToKafka implements DebeziumEngine.ChangeConsumer {
        private final KafkaProducer producer;
        private final AtomicReference failure = new AtomicReference();

        public ToKafka(KafkaProducer producer) {
            this.producer = producer;
        }

        public void handleBatch(List records, DebeziumEngine.RecordCommitter committer)
                throws InterruptedException {
            Callback callback = new Failed(failure);
            for (int i = 0; i < records.size(); i++) {
                ChangeEvent event = (ChangeEvent) records.get(i);
                producer.send(
                    new ProducerRecord(event.destination(), bytes(event.key()), bytes(event.value())),
                    callback);
            }
            producer.flush();
            if (failure.get() != null) {
                throw new RuntimeException("the broker refused a message", (Exception) failure.get());
            }
            for (int i = 0; i < records.size(); i++) {
                committer.markProcessed(records.get(i));
            }
            committer.markBatchFinished();
        }

        private static byte[] bytes(Object text) {
            return text == null ? null : ((String) text).getBytes(StandardCharsets.UTF_8);
        }
    }

    /** Remembers the first failure. */
    public static class Failed implements Callback {
        private final AtomicReference failure;

        public Failed(AtomicReference failure) {
            this.failure = failure;
        }

        public void onCompletion(RecordMetadata metadata, Exception exception) {
            if (exception != null) {
                failure.compareAndSet(null, exception);
            }
        }
    }
}

import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.ObjectOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
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
 * sent, awaited, and only then marked processed. Or with nothing behind it.
 *
 * <p>One argument: a properties file. Names that begin with "producer." are the producer's, those
 * with "peer." ours, the others the engine's. Runs until SIGTERM. No lambdas: it is compiled by
 * Janino, the compiler that Spark brings, so that a runtime without javac is enough.
 *
 * <p>"peer.to" is "kafka" or "nothing": batches are counted, marked processed and dropped, "begun"
 * is printed before the engine starts, and "done" when "peer.rows" records of "peer.topic" came.
 * "peer.format" is "json", texts, or "connect", the records as the connector made them.
 * "peer.partition" and "peer.offset": where to begin, as JSON.
 */
public class DebeziumPeer {
    public static void main(String[] args) throws Exception {
        Properties engineProperties = new Properties();
        Properties producerProperties = new Properties();
        Properties ours = new Properties();
        split(args[0], engineProperties, producerProperties, ours);
        if (ours.getProperty("peer.offset") != null) {
            storeOffset(engineProperties, ours);
        }
        DebeziumEngine.ChangeConsumer consumer;
        if ("kafka".equals(ours.getProperty("peer.to"))) {
            consumer = new ToKafka(new KafkaProducer(
                producerProperties, new ByteArraySerializer(), new ByteArraySerializer()));
        } else {
            consumer = new ToNothing(
                ours.getProperty("peer.topic"), Long.parseLong(ours.getProperty("peer.rows")));
            System.out.println("begun");
        }
        Class format = "connect".equals(ours.getProperty("peer.format")) ? Connect.class : Json.class;
        final DebeziumEngine engine = DebeziumEngine.create(format)
            .using(engineProperties)
            .using(new Ended())
            .notifying(consumer)
            .build();
        Runtime.getRuntime().addShutdownHook(new Closing(engine));
        engine.run();
    }

    private static void split(String file, Properties engine, Properties producer, Properties ours)
            throws IOException {
        Properties all = new Properties();
        FileInputStream in = new FileInputStream(file);
        all.load(in);
        in.close();
        Iterator names = all.stringPropertyNames().iterator();
        while (names.hasNext()) {
            String name = (String) names.next();
            if (name.startsWith("producer.")) {
                producer.setProperty(name.substring("producer.".length()), all.getProperty(name));
            } else if (name.startsWith("peer.")) {
                ours.setProperty(name, all.getProperty(name));
            } else {
                engine.setProperty(name, all.getProperty(name));
            }
        }
    }

    /** The file that Kafka's FileOffsetBackingStore reads: a map of bytes, as Java serializes it. */
    private static void storeOffset(Properties engine, Properties ours) throws IOException {
        String key = "[\"" + engine.getProperty("name") + "\"," + ours.getProperty("peer.partition") + "]";
        HashMap offsets = new HashMap();
        offsets.put(ToKafka.bytes(key), ToKafka.bytes(ours.getProperty("peer.offset")));
        ObjectOutputStream out = new ObjectOutputStream(
            new FileOutputStream(engine.getProperty("offset.storage.file.filename")));
        out.writeObject(offsets);
        out.close();
    }

    /** The engine reports a failure and returns: this makes it a status. */
    public static class Ended implements DebeziumEngine.CompletionCallback {
        public void handle(boolean success, String message, Throwable error) {
            if (!success) {
                System.err.println("the engine ended: " + message + ": " + error);
                Runtime.getRuntime().halt(1);
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

        static byte[] bytes(Object text) {
            return text == null ? null : ((String) text).getBytes(StandardCharsets.UTF_8);
        }
    }

    /** Counts the records of one topic and drops everything. */
    public static class ToNothing implements DebeziumEngine.ChangeConsumer {
        private final String topic;
        private long missing;

        public ToNothing(String topic, long rows) {
            this.topic = topic;
            this.missing = rows;
        }

        public void handleBatch(List records, DebeziumEngine.RecordCommitter committer)
                throws InterruptedException {
            long before = missing;
            for (int i = 0; i < records.size(); i++) {
                if (topic.equals(((ChangeEvent) records.get(i)).destination())) {
                    missing--;
                }
            }
            if (!records.isEmpty()) {
                // The last one stands for all: nothing is asked of a batch but its place.
                committer.markProcessed(records.get(records.size() - 1));
            }
            committer.markBatchFinished();
            if (before > 0 && missing <= 0) {
                System.out.println("done");
            }
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

import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.FileInputStream;
import java.io.PrintStream;
import java.util.List;
import java.util.Properties;

/**
 * The Debezium engine, with its events as lines of standard output: the topic, the key and the
 * value with tabs between them; nothing stands for null.
 *
 * <p>One argument: a properties file. Ends when standard input does. No lambdas: Janino compiles it,
 * the compiler that Spark brings.
 */
public class DebeziumToLines {
    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        FileInputStream stream = new FileInputStream(args[0]);
        properties.load(stream);
        stream.close();
        final DebeziumEngine engine = DebeziumEngine.create(Json.class)
            .using(properties)
            .notifying(new ToLines(new PrintStream(System.out, true, "UTF-8")))
            .build();
        Thread parent = new WithParent(engine);
        parent.setDaemon(true);
        parent.start();
        engine.run();
    }

    /** Closes the engine when standard input ends. */
    public static class WithParent extends Thread {
        private final DebeziumEngine engine;

        public WithParent(DebeziumEngine engine) {
            this.engine = engine;
        }

        public void run() {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
                engine.close();
            } catch (Exception e) {
                System.err.println("close failed: " + e);
            }
        }
    }

    /** Prints a batch. */
    public static class ToLines implements DebeziumEngine.ChangeConsumer {
        private final PrintStream out;

        public ToLines(PrintStream out) {
            this.out = out;
        }

        public void handleBatch(List records, DebeziumEngine.RecordCommitter committer)
                throws InterruptedException {
            for (int i = 0; i < records.size(); i++) {
                ChangeEvent event = (ChangeEvent) records.get(i);
                out.println(event.destination() + "\t" + text(event.key()) + "\t" + text(event.value()));
                committer.markProcessed(records.get(i));
            }
            committer.markBatchFinished();
        }

        private static String text(Object value) {
            return value == null ? "" : (String) value;
        }
    }
}

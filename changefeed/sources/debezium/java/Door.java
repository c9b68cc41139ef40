package changefeed;

import com.fasterxml.jackson.databind.ObjectMapper;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.embedded.Connect;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.OutputStream;
import java.sql.SQLException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Debezium's engine, and questions to a database, for a process that is not Java.
 *
 * <p>Commands come by standard input: the length as four bytes, then JSON. Frames go out by standard
 * output: one letter, the length as four bytes, then the content. A frame of changes holds columns
 * as Arrow keeps them, so that its reader copies nothing and looks at no row.
 *
 * <p>It ends when standard input does. No password is in its arguments or its environment.
 * No lambdas, no diamonds: Janino compiles it, the compiler that Spark brings.
 */
public class Door {
    static final ObjectMapper JSON = new ObjectMapper();

    private static OutputStream out;
    private static Engine engine;
    private static Client client;

    public static void main(String[] arguments) throws Exception {
        out = new java.io.FileOutputStream(java.io.FileDescriptor.out);
        System.setOut(System.err);
        DataInputStream in = new DataInputStream(new java.io.BufferedInputStream(System.in));
        send('J', JSON.writeValueAsBytes("ready"));
        while (true) {
            byte[] text;
            try {
                text = new byte[in.readInt()];
                in.readFully(text);
            } catch (EOFException end) {
                break;
            }
            obey((Map) JSON.readValue(text, Map.class));
        }
        // Nothing is lost by that: what the change log has not, comes again.
        Runtime.getRuntime().halt(0);
    }

    private static void obey(Map command) throws IOException {
        String what = (String) command.get("do");
        try {
            if ("ack".equals(what)) {
                engine.acknowledge(((Number) command.get("frame")).longValue());
            } else if ("start".equals(what)) {
                engine = new Engine(command);
                engine.start();
            } else if ("open".equals(what)) {
                client = (Client) Class.forName((String) command.get("client")).newInstance();
                client.open(command);
                send('J', JSON.writeValueAsBytes("open"));
            } else {
                send('J', JSON.writeValueAsBytes(client.answer(command)));
            }
        } catch (Throwable failure) {
            boolean ofEngine = "start".equals(what) || "ack".equals(what);
            send(ofEngine ? 'E' : 'F', JSON.writeValueAsBytes(told(failure)));
        }
    }

    static synchronized void send(char kind, byte[] content) throws IOException {
        send(kind, content, content.length);
    }

    static synchronized void send(char kind, byte[] content, int length) throws IOException {
        byte[] head = {
            (byte) kind,
            (byte) (length >>> 24), (byte) (length >>> 16), (byte) (length >>> 8), (byte) length
        };
        out.write(head);
        out.write(content, 0, length);
        out.flush();
    }

    /** The causes of a failure, outermost first, with the codes that a driver gives. */
    static List told(Throwable failure) {
        List chain = new ArrayList();
        for (Throwable cause = failure; cause != null && chain.size() < 10; cause = cause.getCause()) {
            Map one = new LinkedHashMap();
            one.put("kind", cause.getClass().getName());
            one.put("message", String.valueOf(cause.getMessage()));
            if (cause instanceof SQLException) {
                one.put("state", ((SQLException) cause).getSQLState());
                one.put("number", Integer.valueOf(((SQLException) cause).getErrorCode()));
            }
            chain.add(one);
        }
        return chain;
    }

    // ---------------------------------------------------------------------------- engine

    /** One run of Debezium's engine. */
    public static class Engine extends Thread
            implements DebeziumEngine.ChangeConsumer, DebeziumEngine.CompletionCallback {
        private final DebeziumEngine engine;
        private final Map schemas = new IdentityHashMap();
        private final ArrayDeque waiting = new ArrayDeque();
        private final String unavailable;
        private long frames;
        private volatile long acknowledged;
        private Struct newest;
        /** What in an offset tells commits apart, where Debezium does not mark their ends; else null. */
        private final List commitFields;
        /** The commit of the last row, until its end was told: those fields, and its last record. */
        private List open;
        private SourceRecord openLast;

        Engine(Map command) {
            super("door-engine");
            setDaemon(true);
            Properties properties = new Properties();
            properties.putAll((Map) command.get("properties"));
            unavailable = properties.getProperty("unavailable.value.placeholder");
            commitFields = (List) command.get("commit_fields");
            DoorOffsets.begin((List) command.get("offset"));
            engine = DebeziumEngine.create(Connect.class)
                .using(properties)
                .using(Door.class.getClassLoader())
                .using((DebeziumEngine.CompletionCallback) this)
                .notifying(this)
                .build();
        }

        public void run() {
            engine.run();
        }

        void acknowledge(long frame) {
            acknowledged = Math.max(acknowledged, frame);
        }

        public void handle(boolean success, String message, Throwable failure) {
            try {
                if (success) {
                    send('X', new byte[0]);
                    return;
                }
                List chain = failure == null ? new ArrayList() : told(failure);
                Map one = new LinkedHashMap();
                one.put("kind", "engine");
                one.put("message", String.valueOf(message));
                chain.add(0, one);
                send('E', JSON.writeValueAsBytes(chain));
            } catch (IOException gone) {
                Runtime.getRuntime().halt(1);
            }
        }

        public void handleBatch(List records, DebeziumEngine.RecordCommitter committer)
                throws InterruptedException {
            try {
                commit(committer);
                frames++;
                pack(records);
                if (!records.isEmpty()) {
                    synchronized (waiting) {
                        waiting.add(
                            new Object[] {Long.valueOf(frames), records.get(records.size() - 1)});
                    }
                }
            } catch (IOException gone) {
                Runtime.getRuntime().halt(1);
            }
        }

        /** Tell Debezium how far the change log is durable. */
        private void commit(DebeziumEngine.RecordCommitter committer) throws InterruptedException {
            Object last = null;
            synchronized (waiting) {
                while (!waiting.isEmpty()
                        && ((Long) ((Object[]) waiting.peek())[0]).longValue() <= acknowledged) {
                    last = ((Object[]) waiting.poll())[1];
                }
            }
            if (last != null) {
                committer.markProcessed(last);
                committer.markBatchFinished();
            }
        }

        private void pack(List records) throws IOException {
            Map groups = new IdentityHashMap();
            List order = new ArrayList();
            List marks = new ArrayList();
            SourceRecord record = null;
            for (int i = 0; i < records.size(); i++) {
                record = (SourceRecord) ((ChangeEvent) records.get(i)).value();
                if (!(record.value() instanceof Struct)) {
                    continue;
                }
                Struct value = (Struct) record.value();
                Schema schema = value.schema();
                Table table = (Table) schemas.get(schema);
                String name = table != null ? "" : String.valueOf(schema.name());
                if (table != null || name.endsWith(".Envelope")) {
                    if (table == null) {
                        table = described(schema, record.keySchema(), value.getStruct("source"));
                    }
                    tellCommits(marks, i, record, true);
                    Struct source = (Struct) value.get(table.source);
                    String op = (String) value.get(table.operation);
                    Rows rows = (Rows) groups.get(table);
                    if (rows == null) {
                        rows = new Rows(table);
                        groups.put(table, rows);
                        order.add(rows);
                    }
                    if ("t".equals(op)) {
                        Map mark = mark(i, "truncate", record);
                        mark.put("table", Integer.valueOf(table.number));
                        mark.put("source", plain(source));
                        marks.add(mark);
                    } else {
                        rows.add(
                            i, op.charAt(0), part(value, table.before), part(value, table.after));
                    }
                    newest = source;
                } else if (name.endsWith("TransactionMetadataValue")) {
                    boolean end = "END".equals(value.getString("status"));
                    Map mark = mark(i, end ? "end" : "begin", record);
                    mark.put("id", value.getString("id"));
                    if (end && newest != null) {
                        mark.put("source", plain(newest));
                    }
                    marks.add(mark);
                } else if (name.endsWith(".Notification")) {
                    Map mark = mark(i, "notice", record);
                    mark.put("id", value.getString("aggregate_type") + ": " + value.getString("type"));
                    marks.add(mark);
                } else {
                    tellCommits(marks, i, record, false);
                    marks.add(mark(i, "beat", record));
                }
            }
            if (record != null) {
                Map mark = mark(records.size(), "last", record);
                if (newest != null) {
                    mark.put("source", plain(newest));
                }
                marks.add(mark);
            }
            Buffer blob = new Buffer();
            List groupsTold = new ArrayList();
            for (int i = 0; i < order.size(); i++) {
                Rows rows = (Rows) order.get(i);
                if (rows.size() > 0) {
                    groupsTold.add(rows.write(blob, unavailable));
                }
            }
            Map head = new LinkedHashMap();
            head.put("frame", Long.valueOf(frames));
            head.put("records", Integer.valueOf(records.size()));
            head.put("marks", marks);
            head.put("groups", groupsTold);
            byte[] text = JSON.writeValueAsBytes(head);
            Buffer whole = new Buffer();
            whole.int32(text.length);
            whole.bytes(text, 0, text.length);
            whole.align();
            whole.bytes(blob.data, 0, blob.size);
            send('B', whole.data, whole.size);
        }

        /** The marks of an end and a begin in front of a record that does not belong to the open commit. */
        private void tellCommits(List marks, int at, SourceRecord record, boolean row) {
            if (commitFields == null) {
                return;
            }
            List commit = new ArrayList();
            for (int i = 0; i < commitFields.size(); i++) {
                commit.add(record.sourceOffset().get(commitFields.get(i)));
            }
            if (!commit.equals(open)) {
                if (open != null) {
                    Map mark = mark(at, "end", openLast);
                    mark.put("source", plain(newest));
                    marks.add(mark);
                }
                open = row ? commit : null;
                if (row) {
                    marks.add(mark(at, "begin", record));
                }
            }
            openLast = record;
        }

        private static Struct part(Struct value, Field field) {
            return field == null ? null : (Struct) value.get(field);
        }

        private static Map mark(int at, String kind, SourceRecord record) {
            Map mark = new LinkedHashMap();
            mark.put("at", Integer.valueOf(at));
            mark.put("kind", kind);
            mark.put("partition", record.sourcePartition());
            mark.put("offset", record.sourceOffset());
            return mark;
        }

        private static Map plain(Struct source) {
            Map told = new LinkedHashMap();
            List fields = source.schema().fields();
            for (int i = 0; i < fields.size(); i++) {
                Field field = (Field) fields.get(i);
                Object value = source.get(field);
                if (value instanceof String || value instanceof Number || value instanceof Boolean) {
                    told.put(field.name(), value);
                }
            }
            return told;
        }

        /** The table of a new envelope, which is told before its first row. */
        private Table described(Schema envelope, Schema key, Struct source) throws IOException {
            Table made = new Table(schemas.size(), envelope);
            schemas.put(envelope, made);
            Map told = made.told(key);
            told.put("source", plain(source));
            send('S', JSON.writeValueAsBytes(told));
            return made;
        }
    }
}

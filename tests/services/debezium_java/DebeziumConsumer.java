import io.debezium.bindings.kafka.KafkaDebeziumSinkRecord;
import io.debezium.transforms.ExtractNewRecordState;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;

/**
 * What consumers of Debezium make of messages: its transformation ExtractNewRecordState, and the
 * records of its sinks (JDBC, MongoDB).
 *
 * <p>Reads lines of standard input, a key and a value with schemas and a tab between them; nothing
 * is null. Writes a line for each: the row that the transformation makes as JSON, what the sinks
 * take the message for, and the key's fields, with tabs between them. No lambdas: Janino compiles it.
 */
public class DebeziumConsumer {
    public static void main(String[] args) throws Exception {
        JsonConverter keys = converter("true", true);
        JsonConverter values = converter("true", false);
        JsonConverter plain = converter("false", false);
        Map settings = new HashMap();
        settings.put("delete.tombstone.handling.mode", "rewrite-with-tombstone");
        settings.put("add.fields", "op,table,source.ts_ms");
        ExtractNewRecordState unwrap = new ExtractNewRecordState();
        unwrap.configure(settings);
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            int tab = line.indexOf('\t');
            SchemaAndValue key = keys.toConnectData("t", bytes(line.substring(0, tab)));
            SchemaAndValue value = values.toConnectData("t", bytes(line.substring(tab + 1)));
            SinkRecord record = new SinkRecord(
                "t", 0, key.schema(), key.value(), value.schema(), value.value(), 0L);
            SinkRecord row = (SinkRecord) unwrap.apply(record);
            byte[] json = row == null || row.value() == null
                ? new byte[0]
                : plain.fromConnectData("t", row.valueSchema(), row.value());
            out.println(new String(json, StandardCharsets.UTF_8) + "\t" + kind(record) + "\t" + key.value());
        }
        unwrap.close();
    }

    private static String kind(SinkRecord given) {
        KafkaDebeziumSinkRecord record = new KafkaDebeziumSinkRecord(given, ".*CloudEvents\\.Envelope$");
        if (record.isTombstone()) {
            return "tombstone";
        }
        String what = record.isDelete() ? "delete" : record.isTruncate() ? "truncate" : "upsert";
        return (record.isDebeziumMessage() ? "debezium " : "other ") + what;
    }

    private static byte[] bytes(String text) {
        return text.isEmpty() ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    private static JsonConverter converter(String schemas, boolean key) {
        Map settings = new HashMap();
        settings.put("schemas.enable", schemas);
        JsonConverter made = new JsonConverter();
        made.configure(settings, key);
        return made;
    }
}

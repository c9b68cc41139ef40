package changefeed;

import java.util.IdentityHashMap;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.ConnectRecord;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.transforms.Transformation;
import org.bson.BsonDocument;

/**
 * Records of Debezium's connector for MongoDB, where a document is one text -> records whose rows have
 * the columns {@code _id} and {@code document}.
 *
 * <p>The source of a record gets the time of the cluster, which MongoDB orders changes by: seconds
 * {@code sec} beside the number {@code ord} within them.
 */
public class Documents implements Transformation {
    private static final Schema KEY = SchemaBuilder.struct().field("_id", Schema.STRING_SCHEMA).build();
    private static final Schema ROW = SchemaBuilder.struct().optional()
        .field("_id", Schema.STRING_SCHEMA)
        .field("document", SchemaBuilder.string().name("io.debezium.data.Json").optional().build())
        .build();
    private static final Schema SOURCE = SchemaBuilder.struct()
        .field("db", Schema.STRING_SCHEMA)
        .field("collection", Schema.STRING_SCHEMA)
        .field("sec", Schema.INT64_SCHEMA)
        .field("ord", Schema.INT64_SCHEMA)
        .field("ts_ms", Schema.OPTIONAL_INT64_SCHEMA)
        .build();

    /** The envelope of each collection, by the one that Debezium has for it. */
    private final Map envelopes = new IdentityHashMap();

    public void configure(Map settings) {
    }

    public ConfigDef config() {
        return new ConfigDef();
    }

    public void close() {
    }

    public ConnectRecord apply(ConnectRecord record) {
        if (!(record.value() instanceof Struct) || !(record.key() instanceof Struct)) {
            return record;
        }
        Struct value = (Struct) record.value();
        if (value.schema().name() == null || !value.schema().name().endsWith(".Envelope")) {
            return record;
        }
        String id = ((Struct) record.key()).getString("id");
        String operation = value.getString("op");
        Schema schema = envelope(value.schema());
        Struct changed = new Struct(schema);
        String before = value.getString("before");
        if (before != null || "d".equals(operation)) {
            changed.put("before", row(id, before));
        }
        if (!"d".equals(operation)) {
            changed.put("after", row(id, value.getString("after")));
        }
        changed.put("source", source(value.getStruct("source"), ((SourceRecord) record).sourceOffset()));
        changed.put("op", operation);
        Struct key = new Struct(KEY).put("_id", id);
        return record.newRecord(
            record.topic(), record.kafkaPartition(), KEY, key, schema, changed, record.timestamp());
    }

    private Schema envelope(Schema of) {
        Schema made = (Schema) envelopes.get(of);
        if (made == null) {
            made = SchemaBuilder.struct().name(of.name())
                .field("before", ROW)
                .field("after", ROW)
                .field("source", SOURCE)
                .field("op", Schema.STRING_SCHEMA)
                .build();
            envelopes.put(of, made);
        }
        return made;
    }

    private static Struct row(String id, String document) {
        // Debezium writes an older form of MongoDB's JSON, in which NaN is no JSON.
        String text = document == null ? null : BsonDocument.parse(document).toJson();
        return new Struct(ROW).put("_id", id).put("document", text);
    }

    private static Struct source(Struct of, Map offset) {
        Struct made = new Struct(SOURCE);
        made.put("db", of.getString("db"));
        made.put("collection", of.getString("collection"));
        made.put("sec", unsigned(offset.get("sec")));
        made.put("ord", unsigned(offset.get("ord")));
        made.put("ts_ms", of.getInt64("ts_ms"));
        return made;
    }

    /** BSON's timestamps have unsigned parts. */
    private static Long unsigned(Object number) {
        return Long.valueOf(((Number) number).intValue() & 0xffffffffL);
    }
}

package changefeed;

import com.mongodb.client.MongoChangeStreamCursor;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoDatabase;
import io.debezium.config.Configuration;
import io.debezium.connector.mongodb.ResumeTokens;
import io.debezium.connector.mongodb.connection.MongoDbConnectionContext;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.bson.BsonDocument;
import org.bson.conversions.Bson;

/** MongoDB, that is asked by its commands; the client has the settings of Debezium's connector. */
public class Commands implements Client {
    private MongoClient client;

    public void open(Map command) {
        Configuration settings = Configuration.from((Map) command.get("properties"));
        client = new MongoDbConnectionContext(settings).getMongoClient();
        client.getDatabase("admin").runCommand((Bson) BsonDocument.parse("{ping: 1}"));
    }

    public Object answer(Map command) {
        if ("watch".equals(command.get("do"))) {
            return token();
        }
        MongoDatabase database = client.getDatabase((String) command.get("database"));
        Bson asked = BsonDocument.parse((String) command.get("command"));
        return ((BsonDocument) database.runCommand(asked, BsonDocument.class)).toJson();
    }

    /** The place in the log where a change stream begins now. */
    private String token() {
        MongoChangeStreamCursor cursor = client.watch().maxAwaitTime(1L, TimeUnit.MILLISECONDS).cursor();
        try {
            while (cursor.getResumeToken() == null) {
                cursor.tryNext();
            }
            return ResumeTokens.toBase64(cursor.getResumeToken());
        } finally {
            cursor.close();
        }
    }
}

import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Timestamp;

/** What a tool of JDBC does when it opens a database: one line for each step. */
public class JdbcLook {
    public static void main(String[] arguments) throws Exception {
        Connection connection = DriverManager.getConnection(arguments[0], "ann", arguments[1]);
        DatabaseMetaData data = connection.getMetaData();
        say("major", String.valueOf(data.getDatabaseMajorVersion()));
        say("schemas", names(data.getSchemas(), "TABLE_SCHEM"));
        say("tables", names(data.getTables(null, "public", "%feed%", null), "TABLE_NAME"));
        say("types", names(data.getColumns(null, "public", "connections", "%"), "TYPE_NAME"));
        say("primary", names(data.getPrimaryKeys(null, "public", "changefeeds"), "COLUMN_NAME"));
        say("imported", names(data.getImportedKeys(null, "public", "changefeeds"), "FKCOLUMN_NAME"));
        say("indexes", names(data.getIndexInfo(null, "public", "changefeeds", false, false), "INDEX_NAME"));
        say("typeinfo", names(data.getTypeInfo(), "TYPE_NAME").contains("timestamptz") ? "yes" : "no");
        String query = "SELECT name, created FROM changefeeds WHERE job_id = ? AND created < ?";
        PreparedStatement prepared = connection.prepareStatement(query);
        for (int run = 0; run < 7; run++) { // From the fifth on it is a prepared statement of the server.
            prepared.setLong(1, 1L);
            prepared.setTimestamp(2, new Timestamp(2000000000000L));
            ResultSet found = prepared.executeQuery();
            found.next();
            if (run == 6) {
                say("prepared", found.getString(1) + " " + found.getTimestamp(2).getTime());
            }
        }
        connection.setAutoCommit(false);
        Statement statement = connection.createStatement();
        statement.setFetchSize(1);
        say("fetched", names(statement.executeQuery("SELECT \"table\" FROM feed_tables"), "table"));
        connection.commit();
        connection.setAutoCommit(true);
        say("show", names(connection.createStatement().executeQuery("SHOW CHANGEFEEDS"), "name"));
        connection.createStatement().execute("PAUSE CHANGEFEED f");
        try {
            connection.createStatement().execute("SHOW CHANGEFEED ff");
        } catch (SQLException error) {
            say("error", error.getSQLState());
        }
        say("valid", String.valueOf(connection.isValid(5)));
        connection.close();
    }

    private static String names(ResultSet found, String column) throws SQLException {
        StringBuilder names = new StringBuilder();
        while (found.next()) {
            names.append(names.length() == 0 ? "" : " ").append(found.getString(column));
        }
        return names.toString();
    }

    private static void say(String what, String value) {
        System.out.println(what + "\t" + value);
    }
}

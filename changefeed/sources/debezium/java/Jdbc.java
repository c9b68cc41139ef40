package changefeed;

import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;

/** A database that is asked by its JDBC driver. */
public class Jdbc implements Client {
    private Connection connection;

    public Object answer(Map command) throws SQLException {
        return "columns".equals(command.get("do"))
            ? (Object) columns(command) : query((String) command.get("sql"));
    }

    public void open(Map command) throws Exception {
        Class.forName((String) command.get("driver"));
        Properties properties = new Properties();
        properties.putAll((Map) command.get("properties"));
        DriverManager.setLoginTimeout(((Number) command.get("timeout")).intValue());
        connection = DriverManager.getConnection((String) command.get("url"), properties);
        connection.setAutoCommit(true);
    }

    private List query(String sql) throws SQLException {
        Statement statement = connection.createStatement();
        try {
            return statement.execute(sql) ? rows(statement.getResultSet()) : new ArrayList();
        } finally {
            statement.close();
        }
    }

    private List rows(ResultSet found) throws SQLException {
        int width = found.getMetaData().getColumnCount();
        List rows = new ArrayList();
        while (found.next()) {
            List row = new ArrayList(width);
            for (int i = 1; i <= width; i++) {
                row.add(found.getString(i));
            }
            rows.add(row);
        }
        return rows;
    }

    private Map columns(Map command) throws SQLException {
        DatabaseMetaData about = connection.getMetaData();
        String catalog = (String) command.get("catalog");
        String schema = (String) command.get("schema");
        String table = (String) command.get("table");
        String escape = about.getSearchStringEscape();
        ResultSet found = about.getColumns(
            catalog, quoted(schema, escape), quoted(table, escape), "%");
        List columns = new ArrayList();
        while (found.next()) {
            // In the order of the driver's columns: some can be read only once, and so.
            String name = found.getString("TABLE_NAME");
            Map column = new LinkedHashMap();
            column.put("name", found.getString("COLUMN_NAME"));
            column.put("type", Integer.valueOf(found.getInt("DATA_TYPE")));
            column.put("type_name", found.getString("TYPE_NAME"));
            column.put("size", Integer.valueOf(found.getInt("COLUMN_SIZE")));
            int digits = found.getInt("DECIMAL_DIGITS");
            column.put("digits", found.wasNull() ? null : Integer.valueOf(digits));
            column.put("nullable", Boolean.valueOf(
                found.getInt("NULLABLE") != DatabaseMetaData.columnNoNulls));
            if (name.equals(table)) {
                columns.add(column);
            }
        }
        found.close();
        Map key = new java.util.TreeMap();
        found = about.getPrimaryKeys(catalog, schema, table);
        while (found.next()) {
            String name = found.getString("COLUMN_NAME");
            key.put(Integer.valueOf(found.getInt("KEY_SEQ")), name);
        }
        found.close();
        Map told = new HashMap();
        told.put("columns", columns);
        told.put("key", new ArrayList(key.values()));
        return told;
    }

    private String quoted(String name, String escape) {
        if (name == null || escape == null || escape.isEmpty()) {
            return name;
        }
        return name.replace(escape, escape + escape)
            .replace("_", escape + "_").replace("%", escape + "%");
    }
}

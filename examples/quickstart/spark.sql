-- What `make demo` runs then: the same changes by Spark, which has started meanwhile.

-- A Delta table that Spark keeps equal to orders by MERGE.
CREATE CHANGEFEED orders_table FOR orders INTO 'external://tables';

-- A CDC query: Spark SQL over each change of a table, in this terminal.
CREATE CHANGEFEED
    WITH resolved = '1s'
    AS SELECT id, upper(status) AS status, round(total * 1.2, 2) AS with_tax, event_op() AS op
    FROM orders
    WHERE total > 20;

-- The proof: every row of the Delta table against the source.
VERIFY CHANGEFEED orders_table;

SHOW CHANGEFEEDS;

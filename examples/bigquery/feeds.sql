USE sales;

CREATE CHANGEFEED sales_to_bigquery
    FOR customers, orders
    INTO 'external://lake'
    WITH resolved = '1m', on_drop = 'drop';

SHOW CHANGEFEEDS;

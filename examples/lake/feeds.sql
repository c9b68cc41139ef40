USE sales;

CREATE CHANGEFEED sales_lake
    FOR customers, orders
    INTO 'external://lake'
    WITH optimize = '1h', expire = '7d';

CREATE CHANGEFEED sales_past
    FOR customers
    INTO 'external://past'
    WITH history = 'scd2';

SHOW CHANGEFEEDS;

USE sales;

CREATE CHANGEFEED sales_copy
    FOR customers, orders
    INTO 'external://warehouse'
    WITH sequence_column = 'none';

CREATE CHANGEFEED sales_history
    FOR customers
    INTO 'external://archive'
    WITH history = 'scd2';

SHOW CHANGEFEEDS;

USE store;

-- Events that the application writes into the database's log: no table, nothing to clean up.
CREATE CHANGEFEED order_events
    FOR MESSAGES PREFIX 'order.*' AS order_events
    INTO 'external://bus';

-- Events in a table. The order is the message key, so its events are in one partition.
CREATE CHANGEFEED outbox
    FOR outbox
    INTO 'external://bus'
    WITH envelope = 'bare', key_column = 'aggregate', unordered, deletes = 'no', initial_scan = 'no';

SHOW CHANGEFEEDS;

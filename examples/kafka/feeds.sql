USE bank;

CREATE CHANGEFEED bank_to_kafka
    FOR accounts, transfers
    INTO 'external://bus'
    WITH updated, diff, resolved = '1s';

SHOW CHANGEFEEDS;

USE shop;

CREATE CHANGEFEED orders_to_hook
    FOR orders
    INTO 'external://hook'
    WITH updated, resolved = '1s', webhook_signing_secret = 'a secret of both sides';

SHOW CHANGEFEEDS;

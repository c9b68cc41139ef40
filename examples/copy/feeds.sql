USE movr;

CREATE CHANGEFEED feed_analytics
    FOR rides, tills
    INTO 'external://lake'
    WITH updated, resolved = '1s', compression = 'gzip';

SHOW CHANGEFEEDS;

USE plant;

CREATE CHANGEFEED readings_to_files
    FOR sensors, readings
    INTO 'external://lake'
    WITH updated, resolved = '1s';

CREATE CHANGEFEED sensors_export
    FOR sensors
    INTO 'external://exports'
    WITH format = 'csv', initial_scan = 'only';

SHOW CHANGEFEEDS;

USE shop;

-- The open orders, large ones marked, kept equal to the result of the query.
CREATE CHANGEFEED open_orders
    INTO 'external://open'
    AS SELECT id, total * 1.2 AS gross, total > 50 AS large, get_json_object(cart, '$.city') AS city
       FROM orders
       WHERE status = 'open';

-- What happens to orders from now on.
CREATE CHANGEFEED order_events
    INTO 'external://events'
    WITH initial_scan = 'no'
    AS SELECT id, event_op() AS op, cdc_prev.status AS was, status
       FROM orders
       WHERE event_op() <> 'update' OR cdc_prev.status <> status;

SHOW CHANGEFEEDS;

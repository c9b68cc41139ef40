-- What `make demo` runs first. Three connections are there already:
--   shop   a database with the tables of shop.sql
--   lake   a folder of files        tables   a folder of Delta tables
USE shop;
SHOW TABLES;

-- A feed that goes on by itself: every change of four tables, as files in time order.
CREATE CHANGEFEED shop_to_lake
    FOR customers, products, orders, order_items
    INTO 'external://lake'
    WITH updated, resolved = '1s';

-- The same changes in this terminal: without INTO nothing is stored.
CREATE CHANGEFEED
    FOR customers, orders, order_items
    WITH updated, diff, resolved = '5s';

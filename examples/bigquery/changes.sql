insert into orders values (102, 1, 7.50, '2026-05-02 08:00:00+00', '{"gift": false}');
update orders set total = total - 5 where id = 100;
-- A key that changes moves the row.
update customers set id = 20 where id = 2;
delete from orders where id = 101;
-- A new column is one in BigQuery too.
alter table customers add column segment text;
update customers set segment = 'retail' where id = 1;

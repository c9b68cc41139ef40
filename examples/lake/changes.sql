insert into orders values (102, 3, 7.50, '2026-05-02 08:00:00+00', '{"gift": false}');
update orders set total = total - 5 where id = 100;
update customers set segment = 'wholesale' where id = 1;
delete from customers where id = 3;
-- A key that changes moves the row.
update customers set id = 20 where id = 2;
-- A new column is one in the lake too, and older rows get its default.
alter table orders add column currency text default 'EUR';
insert into orders values (103, 20, 80.00, '2026-05-02 09:00:00+00', null, 'USD');

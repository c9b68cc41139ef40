-- The order and its event are one transaction: both or neither.
begin;
insert into orders values (7, 'ann', 12.50, 'new');
select pg_logical_emit_message(true, 'order.made', '{"order": 7, "total": 12.50}');
commit;

begin;
update orders set status = 'paid' where id = 7;
select pg_logical_emit_message(true, 'order.paid', '{"order": 7}');
commit;

-- A transaction that ends in a rollback sends nothing.
begin;
insert into orders values (8, 'bob', 99.00, 'new');
select pg_logical_emit_message(true, 'order.made', '{"order": 8, "total": 99.00}');
rollback;

-- The same by a table. The row may be deleted as soon as it is committed, in another transaction.
insert into outbox (aggregate, event, payload) values ('order-7', 'sent', '{"parcel": "a-1"}');
delete from outbox;

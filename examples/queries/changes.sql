insert into orders values (4, 'open', 10.00, '{"city": "Rome"}');
update orders set total = 60.00 where id = 1;
update orders set status = 'paid' where id = 2;
delete from orders where id = 4;

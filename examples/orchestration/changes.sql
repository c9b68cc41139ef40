insert into orders values (3, 'Ada', 80.10);
update orders set total = 1100.00 where id = 2;

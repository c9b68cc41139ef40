update orders set total = 10.25 where id = 1;
delete from orders where id = 2;

-- One transaction over two tables.
begin;
update accounts set balance = balance - 100 where id = 1;
update accounts set balance = balance + 100 where id = 2;
insert into transfers values (1, 1, 2, 100, '{"for": "lamps", "items": [3, 4]}');
commit;

-- Several writes of a row in one transaction arrive as the last of them.
begin;
update accounts set owner = 'Edgar F.' where id = 3;
update accounts set owner = 'Edgar F. Codd' where id = 3;
commit;

delete from accounts where id = 3;

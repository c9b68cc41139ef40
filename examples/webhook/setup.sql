create table orders (id int primary key, customer text not null, total numeric(8,2));
insert into orders values (1, 'ann', 9.50), (2, 'bob', 20.00);

create table orders (
    id     int primary key,
    status text not null,
    total  numeric(10,2) not null,
    cart   jsonb
);
-- The row before each change is logged, so a row that leaves a query is told exactly.
alter table orders replica identity full;
insert into orders values
    (1, 'open', 12.50, '{"city": "Lyon", "items": [3, 4]}'),
    (2, 'open', 80.00, '{"city": "Oslo", "items": [9]}'),
    (3, 'paid', 75.25, null);

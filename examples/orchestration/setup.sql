create table orders (
    id       bigint primary key,
    customer text not null,
    total    numeric(12,2) not null
);
insert into orders values (1, 'Ada', 19.90), (2, 'Grace', 1200.00);

create table customers (id int primary key, name text not null, segment text, tags text[]);
create table orders (
    id       bigint primary key,
    customer int not null,
    total    numeric(12,2) not null,
    placed   timestamptz not null,
    extra    jsonb
);
insert into customers values
    (1, 'Ada',   'retail',    '{new,"south, west"}'),
    (2, 'Grace', 'wholesale', null),
    (3, 'Edsger', 'retail',   '{}');
insert into orders values
    (100, 1, 19.90, '2026-05-01 12:00:00+00', '{"gift": true}'),
    (101, 2, 1200.00, '2026-05-01 12:05:00+00', null);

-- The database of the demo: a small shop. Plain PostgreSQL, nothing of it is made for changefeeds
-- but the replica identity at the end.
create type order_status as enum ('new', 'paid', 'shipped', 'cancelled');

create table customers (
    id      int generated always as identity primary key,
    name    text not null,
    email   text not null unique,
    tags    text[] not null default '{}',
    address jsonb,
    credit  numeric(10,2) not null default 0,
    since   date not null default current_date
);

create table products (
    sku        text primary key,
    name       text not null,
    price      numeric(10,2) not null,
    attributes jsonb not null default '{}',
    active     boolean not null default true
);

create table orders (
    id          bigint generated always as identity primary key,
    customer_id int not null references customers,
    status      order_status not null default 'new',
    total       numeric(12,2) not null default 0,
    placed      timestamptz not null default now(),
    note        text
);

create table order_items (
    order_id bigint not null references orders,
    line     int not null,
    sku      text not null references products,
    quantity int not null check (quantity > 0),
    price    numeric(10,2) not null,
    primary key (order_id, line)
);

insert into customers (name, email, tags, address, credit) values
    ('Ada Lovelace',   'ada@example.test',   '{vip,early}', '{"city": "London", "zip": "W1"}',   250.00),
    ('Grace Hopper',   'grace@example.test', '{navy}',      '{"city": "New York"}',              99.90),
    ('Edgar Codd',     'edgar@example.test', '{}',          '{"city": "San Jose", "floor": 3}',  12.25),
    ('Barbara Liskov', 'barb@example.test',  '{vip}',       null,                                0),
    ('Jim Gray',       'jim@example.test',   '{sailing}',   '{"city": "San Francisco"}',         1024.00);

insert into products (sku, name, price, attributes) values
    ('LAMP-1', 'Desk lamp',     39.90, '{"colour": "green", "watt": 7.5}'),
    ('BOOK-7', 'Notebook',       4.50, '{"pages": 192, "ruled": true}'),
    ('PEN-2',  'Fountain pen',  58.00, '{"nib": "EF"}'),
    ('TEA-9',  'Green tea',      7.20, '{"grams": 100, "organic": true}'),
    ('MUG-3',  'Mug',           11.00, '{}');

insert into orders (customer_id, status, total, placed, note) values
    (1, 'shipped', 62.50, '2026-11-18 09:12:44.120+00', null),
    (3, 'paid',    14.40, '2026-11-19 17:03:05+00',     'leave at the door'),
    (5, 'new',     39.90, '2026-11-20 22:41:10.000123+00', null);

insert into order_items values
    (1, 1, 'PEN-2',  1, 58.00), (1, 2, 'BOOK-7', 1, 4.50),
    (2, 1, 'TEA-9',  2,  7.20),
    (3, 1, 'LAMP-1', 1, 39.90);

-- So that a change can show the whole row as it was before.
alter table customers replica identity full;
alter table orders replica identity full;
alter table order_items replica identity full;

-- So that SHOW TABLES has counts from the start.
analyze;

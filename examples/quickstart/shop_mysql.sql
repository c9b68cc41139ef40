-- The database of the demo on MariaDB: the shop of shop.sql. Plain SQL, nothing of it is made for
-- changefeeds.
create table customers (
    id      int auto_increment primary key,
    name    varchar(100) not null,
    email   varchar(100) not null unique,
    tags    set('vip', 'early', 'navy', 'sailing') not null default '',
    address json,
    credit  decimal(10,2) not null default 0,
    since   date not null default current_date
);

create table products (
    sku        varchar(20) primary key,
    name       varchar(100) not null,
    price      decimal(10,2) not null,
    attributes json not null default '{}',
    active     boolean not null default true
);

create table orders (
    id          bigint auto_increment primary key,
    customer_id int not null references customers (id),
    status      enum('new', 'paid', 'shipped', 'cancelled') not null default 'new',
    total       decimal(12,2) not null default 0,
    placed      timestamp(6) not null default current_timestamp(6),
    note        text
);

create table order_items (
    order_id bigint not null references orders (id),
    line     int not null,
    sku      varchar(20) not null references products (sku),
    quantity int not null check (quantity > 0),
    price    decimal(10,2) not null,
    primary key (order_id, line)
);

insert into customers (name, email, tags, address, credit) values
    ('Ada Lovelace',   'ada@example.test',   'vip,early', '{"city": "London", "zip": "W1"}',   250.00),
    ('Grace Hopper',   'grace@example.test', 'navy',      '{"city": "New York"}',              99.90),
    ('Edgar Codd',     'edgar@example.test', '',          '{"city": "San Jose", "floor": 3}',  12.25),
    ('Barbara Liskov', 'barb@example.test',  'vip',       null,                                0),
    ('Jim Gray',       'jim@example.test',   'sailing',   '{"city": "San Francisco"}',         1024.00);

insert into products (sku, name, price, attributes) values
    ('LAMP-1', 'Desk lamp',     39.90, '{"colour": "green", "watt": 7.5}'),
    ('BOOK-7', 'Notebook',       4.50, '{"pages": 192, "ruled": true}'),
    ('PEN-2',  'Fountain pen',  58.00, '{"nib": "EF"}'),
    ('TEA-9',  'Green tea',      7.20, '{"grams": 100, "organic": true}'),
    ('MUG-3',  'Mug',           11.00, '{}');

insert into orders (customer_id, status, total, placed, note) values
    (1, 'shipped', 62.50, '2026-11-18 09:12:44.120', null),
    (3, 'paid',    14.40, '2026-11-19 17:03:05',     'leave at the door'),
    (5, 'new',     39.90, '2026-11-20 22:41:10.000123', null);

insert into order_items values
    (1, 1, 'PEN-2',  1, 58.00), (1, 2, 'BOOK-7', 1, 4.50),
    (2, 1, 'TEA-9',  2,  7.20),
    (3, 1, 'LAMP-1', 1, 39.90);

-- So that SHOW TABLES has counts from the start.
analyze table customers, products, orders, order_items;

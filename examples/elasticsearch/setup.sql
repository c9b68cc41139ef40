create table products (
    sku      text primary key,
    title    text not null,
    price    numeric(10,2) not null,
    tags     text[],
    details  jsonb,
    added    timestamptz not null
);

create table reviews (
    sku    text not null references products,
    number int not null,
    stars  smallint not null,
    words  text,
    primary key (sku, number)
);

insert into products values
    ('L-1', 'Desk lamp',  39.90, '{light,desk}', '{"watt": 7, "colour": {"name": "red"}}', '2026-01-02 03:04:05+00'),
    ('L-2', 'Floor lamp', 89.00, '{light}',      null,                                     '2026-02-03 04:05:06.789+00'),
    ('C-1', 'Chair',      120.00, null,          '{"wood": "oak"}',                        '2026-03-04 05:06:07+00');
insert into reviews values ('L-1', 1, 5, 'Bright and small'), ('L-1', 2, 2, 'The switch broke');

create table accounts (
    id      int primary key,
    owner   text not null,
    balance numeric(12,2) not null,
    opened  timestamptz not null
);
alter table accounts replica identity full;

create table transfers (
    id      bigint primary key,
    payer   int not null,
    payee   int not null,
    amount  numeric(12,2) not null,
    details jsonb
);
alter table transfers replica identity full;

insert into accounts values
    (1, 'Ada',   500.00, '2026-01-02 03:04:05+00'),
    (2, 'Grace',  20.50, '2026-02-03 04:05:06.789+00'),
    (3, 'Edgar',   0.00, '2026-03-04 05:06:07.000001+00');

create table orders (id int primary key, customer text not null, total numeric(10,2), status text not null);
create table outbox (
    id        bigint generated always as identity primary key,
    aggregate text not null,
    event     text not null,
    payload   jsonb not null
);

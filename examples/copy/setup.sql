create table rides (
    id      bigint primary key,
    city    text not null,
    rider   text not null,
    fare    numeric(8,2),
    started timestamptz not null,
    ended   timestamptz
);
create table tills (city text primary key, taken numeric(12,2) not null);
insert into tills values ('new york', 0), ('rome', 0), ('paris', 0);

create table sensors (id text primary key, kind text not null, place text, limits numeric[]);
create table readings (
    sensor text not null,
    at     timestamptz not null,
    value  double precision,
    primary key (sensor, at)
);
insert into sensors values
    ('t-1', 'temperature', 'hall, north', '{-10,45.5}'),
    ('p-7', 'pressure',    null,          '{0.8,1.2}');
insert into readings values
    ('t-1', '2026-05-01 12:00:00+00', 21.5),
    ('p-7', '2026-05-01 12:00:00+00', 1.0132);

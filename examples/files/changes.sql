insert into readings values ('t-1', '2026-05-01 12:01:00+00', 'NaN'), ('p-7', '2026-05-01 12:01:00+00', null);
update sensors set limits = array_append(limits, 50) where id = 't-1';
-- A key that changes is a delete and a new row.
update sensors set id = 't-1b' where id = 't-1';

update products set price = 34.90, tags = '{light,desk,sale}' where sku = 'L-1';
delete from products where sku = 'C-1';
update products set sku = 'L-20' where sku = 'L-2';

-- A new column is a new field.
alter table products add column stock int;
insert into products values ('S-1', 'Shelf', 59.00, '{wood}', '{"boards": [1, 2, 3]}', '2026-04-05 06:07:08+00', 12);

delete from reviews where number = 2;

"""Tables and changes to measure with: the same seed makes the same rows in the same order.

*narrow* is five columns, *wide* fifteen with jsonb, uuid, floats, NULLs, and text that lies out
of line in one row of a hundred. Changes are 60 % inserts, 25 % updates and 15 % deletes in
transactions of 1 to 1000 rows, no row twice in one of them. All work is done inside the server,
so that the client's speed does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

_NARROW = """
create table narrow (
    id bigint primary key, quantity int, label text, at timestamptz, price numeric(12,2)
)"""
_NARROW_ROW = (
    "{id}, (random() * 1000)::int, md5(random()::text), "
    "timestamptz '2026-01-01Z' + random() * interval '300 days', (random() * 10000)::numeric(12,2)"
)

_WIDE = """
create table wide (
    id bigint primary key, tenant int not null, status text, note text, score float8,
    ratio float4, active bool, deleted bool, ref uuid, payload jsonb, amount numeric(14,4),
    created timestamptz, changed timestamp, day date, body text
)"""
_WIDE_ROW = (
    "{id}, (random() * 500)::int, (array['new','paid','sent'])[1 + (random() * 2)::int], "
    "case when random() < 0.5 then null else md5(random()::text) end, random(), random()::float4, "
    "random() < 0.5, random() < 0.1, gen_random_uuid(), "
    "jsonb_build_object('k', md5(random()::text), 'n', (random() * 1e6)::int, 'ok', true), "
    "(random() * 100000)::numeric(14,4), timestamptz '2026-01-01Z' + random() * interval '300 d', "
    "timestamp '2026-01-01' + random() * interval '300 d', date '2026-01-01', "
    "case when random() < 0.01 then (select string_agg(md5(random()::text), '') "
    "from generate_series(1, 90)) else 'short' end"
)

_CHANGES = """
do $$
declare
    todo bigint := {rows}; top bigint := {existing};
    part int; dice float; pick bigint; base bigint; known bigint;
begin
    perform setseed({seed});
    while todo > 0 loop
        part := least(todo, greatest(1, exp(random() * ln(1000))::int));
        base := (random() * 1e9)::bigint;
        known := top - (top % 7919 = 0)::int;
        for i in 1 .. part loop
            dice := random();
            -- A prime stride: no row is touched twice in one transaction, so that a reader that
            -- sends only the last change of a row sends as many as one that sends them all.
            pick := case when known > 7919 then 1 + (base + i * 7919::bigint) % known end;
            if dice < 0.85 and dice >= 0.60 then
                update {table} set {update} where id = pick;
            elsif dice >= 0.85 then
                delete from {table} where id = pick;
            end if;
            if dice < 0.60 or not found then
                top := top + 1;
                insert into {table} values ({insert_row});
            end if;
        end loop;
        todo := todo - part;
        commit;
    end loop;
end $$"""


@dataclass(frozen=True, slots=True)
class Workload:
    """One table and how its rows change."""

    table: str
    ddl: str
    row: str
    update: str

    def create(self, connection: psycopg.Connection, rows: int = 0, seed: float = 0.5) -> None:
        """Make the table with ``rows`` rows in it."""
        connection.execute(self.ddl)
        if rows:
            connection.execute(f"select setseed({seed})")
            values = self.row.format(id="n")
            connection.execute(
                f"insert into {self.table} select {values} from generate_series(1, {rows}) n"
            )
        connection.execute(f"vacuum analyze {self.table}")

    def change(
        self, connection: psycopg.Connection, rows: int, *, existing: int = 0, seed: float = 0.25
    ) -> None:
        """Commit exactly ``rows`` changes (the connection must be in autocommit mode)."""
        statement = _CHANGES.format(
            rows=rows,
            seed=seed,
            existing=existing,
            table=self.table,
            insert_row=self.row.format(id="top"),
            update=self.update,
        )
        # The plan is kept from when the table was empty: it must not be a scan of all of it.
        connection.execute("set enable_seqscan = off")
        connection.execute(statement)
        connection.execute("reset enable_seqscan")


NARROW = Workload(
    "narrow", _NARROW, _NARROW_ROW, "quantity = (random() * 1000)::int, at = clock_timestamp()"
)
WIDE = Workload("wide", _WIDE, _WIDE_ROW, "score = random(), status = 'paid', changed = now()")
#: Rows of about one KiB, for one transaction of a gigabyte.
LARGE = Workload(
    "large",
    "create table large (id bigint primary key, body text)",
    "{id}, repeat(md5({id}::text), 31)",
    "body = md5(body)",
)
WORKLOADS = {workload.table: workload for workload in (NARROW, WIDE)}

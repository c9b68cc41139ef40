"""The shop of the demo: its tables, and somebody who keeps buying.

The writer does what a shop does, one transaction at a time, in an order that a fixed seed
makes the same for every run, and says in words what it committed.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from changefeed.demo.databases import ShopDatabase

#: The tables, in the order a reader wants to see them.
TABLES = ("customers", "products", "orders", "order_items")

_NOTES = (None, None, "gift wrap", "ring twice", "leave at the door")
_CITIES = ("London", "Paris", "Lagos", "Lima", "Oslo", "Kyoto")


def row_count(database: ShopDatabase, uri: str, tables: tuple[str, ...]) -> int:
    """Rows in these tables together."""
    with database.connect(uri) as connection, connection.cursor() as cursor:
        counts = [_one(cursor, f"select count(*) from {table}") for table in tables]
    return sum(count for (count,) in counts)


@dataclass(frozen=True, slots=True)
class _Action:
    """Something that happens in the shop: how often, and how it is done and told."""

    weight: int
    act: Callable[[Any, random.Random], str | None]


class ShopWriter:
    """Commits something every ``pause`` seconds, from a thread, until stopped.

    ``told`` is called after each commit with one line about it.
    """

    def __init__(
        self,
        database: ShopDatabase,
        uri: str,
        told: Callable[[str], None],
        *,
        pause: float = 0.8,
        dice: random.Random | None = None,
    ) -> None:
        """``dice`` decides what happens; a writer that goes on after another one takes its."""
        self._database = database
        self._uri = uri
        self._told = told
        self._pause = pause
        self._random = dice or random.Random(7)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shop-writer", daemon=True)
        self.failure: Exception | None = None

    def start(self) -> None:
        """Begin to commit."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the transaction at hand and end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def _run(self) -> None:
        try:
            with self._database.connect(self._uri) as connection:
                while not self._stop.wait(self._pause):
                    self._commit_one(connection)
        except self._database.errors as error:
            self.failure = error

    def _commit_one(self, connection: Any) -> None:
        weights = [action.weight for action in _ACTIONS]
        (action,) = self._random.choices(_ACTIONS, weights)
        with connection.cursor() as cursor:
            line = action.act(cursor, self._random)
        connection.commit()
        if line is not None:
            self._told(line)


def _place_order(cursor: Any, dice: random.Random) -> str | None:
    """Several rows of two tables in one transaction; the order is written twice."""
    customer_id, name = _pick(cursor, dice, "select id, name from customers order by id")
    (order_id,) = _one(
        cursor,
        "insert into orders (customer_id, note) values (%s, %s) returning id",
        [customer_id, dice.choice(_NOTES)],
    )
    products = _rows(cursor, "select sku, price from products where active order by sku")
    total = Decimal(0)
    chosen = dice.sample(products, dice.randint(1, 3))
    for line, (sku, price) in enumerate(chosen, 1):
        quantity = dice.randint(1, 3)
        total += price * quantity
        cursor.execute(
            "insert into order_items values (%s, %s, %s, %s, %s)",
            [order_id, line, sku, quantity, price],
        )
    cursor.execute("update orders set total = %s where id = %s", [total, order_id])
    items = "1 item" if len(chosen) == 1 else f"{len(chosen)} items"
    return f"{name} places order {order_id}: {items}, {total}"


def _advance_order(cursor: Any, dice: random.Random) -> str | None:
    open_orders = _rows(
        cursor, "select id, status from orders where status in ('new', 'paid') order by id"
    )
    if not open_orders:
        return None
    order_id, status = dice.choice(open_orders)
    following = {"new": "paid", "paid": "shipped"}[status]
    cursor.execute("update orders set status = %s where id = %s", [following, order_id])
    return f"order {order_id} is {following}"


def _drop_order(cursor: Any, dice: random.Random) -> str | None:
    """Rows of two tables; the items by a statement, because MariaDB does not log what it deletes
    by a foreign key."""
    new_orders = _rows(cursor, "select id from orders where status = 'new' order by id")
    if not new_orders:
        return None
    (order_id,) = dice.choice(new_orders)
    cursor.execute("delete from order_items where order_id = %s", [order_id])
    cursor.execute("delete from orders where id = %s", [order_id])
    return f"order {order_id} is deleted with its items"


def _move_customer(cursor: Any, dice: random.Random) -> str | None:
    customer_id, name = _pick(cursor, dice, "select id, name from customers order by id")
    city = dice.choice(_CITIES)
    address = json.dumps({"city": city})
    cursor.execute("update customers set address = %s where id = %s", [address, customer_id])
    return f"{name} moves to {city}"


def _change_price(cursor: Any, dice: random.Random) -> str | None:
    sku, price = _pick(cursor, dice, "select sku, price from products order by sku")
    changed = (price * Decimal(dice.choice(["0.9", "1.05", "1.1"]))).quantize(Decimal("0.01"))
    cursor.execute("update products set price = %s where sku = %s", [changed, sku])
    return f"{sku} costs {changed} now"


_ACTIONS = (
    _Action(5, _place_order),
    _Action(4, _advance_order),
    _Action(1, _drop_order),
    _Action(2, _move_customer),
    _Action(1, _change_price),
)


def _pick(cursor: Any, dice: random.Random, query: str) -> tuple[Any, ...]:
    return dice.choice(_rows(cursor, query))


def _rows(cursor: Any, query: str) -> list[tuple[Any, ...]]:
    cursor.execute(query)
    return list(cursor.fetchall())


def _one(cursor: Any, statement: str, values: list[Any] | None = None) -> tuple[Any, ...]:
    cursor.execute(statement, values)
    row = cursor.fetchone()
    if row is None:
        raise LookupError("the statement returned no row")
    found: tuple[Any, ...] = row
    return found

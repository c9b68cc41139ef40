"""The tables of the workload, and which keys each kind of transaction has for itself.

Each written row carries ``v``, a number that is used once, so every version is known by it. Only
the rows of ``tally`` are few and many times there, for targets that have to count them.
"""

from __future__ import annotations

from tests.nemesis.ledger import Table, quoted

ORDERS = Table("orders")
PLAIN = Table("plain", looked_up=("big",))
LINES = Table("lines", key=())
PARTS = Table("parts")
SHAPES = Table("shapes", steady=("id", "v", "s"))
BULK = Table("bulk")
EXTRA = Table("extra")
FORMS = Table("forms", steady=("id", "v", "s"))
TALLY = Table("tally", key=())
#: Names as nobody should choose them.
ODD = Table(
    'Odd "näme; --',
    topic="Odd_u0020__u0022_n_u00e4_me_u003b__u0020_--",
    index="odd_u0020__u0022_näme;_u0020_--",
)
ODD_COLUMN = quoted('Sel"ect, é %')
TABLES = (ORDERS, PLAIN, LINES, PARTS, SHAPES, BULK, EXTRA, FORMS, TALLY, ODD)

#: Keys from here on belong to the transaction that is held open across others.
HELD_KEYS = 1_000
#: And those that a prepared transaction writes, and one that is rewritten as a whole.
PREPARED_KEYS, PASSING_KEYS, PASSING_ROWS = 1_100, 5_000, 1_500
KEYS = 40
BULK_ROWS = 2_500

"""The history that a target keeps with the option ``history``: one form for lakes and warehouses.

``append`` has a row for each change, with ``_operation``, the version of the change, ``_ord`` (its
number in the log) and ``_committed_at``. A DELETE has the columns of the key (or of the whole row
if there is no key), a TRUNCATE none. ``scd2`` has a row for each version, valid from
``_valid_from`` until before ``_valid_to`` (NULL: still valid), with ``_is_current``.

In both, a value that the source did not send is copied from the version before, of the same round
or of the target. It is NULL if the target has no version before, or if the change also changed the
key.

A scan adds all rows to ``append``, as READ. In ``scd2`` it ends the current version of each row
that differs and adds a new one, ends the versions of rows that it does not find, and leaves rows
that did not change.
"""

from __future__ import annotations

#: Columns of ``append`` besides the version of the change.
OPERATION, ORDER, COMMITTED_AT = "_operation", "_ord", "_committed_at"

#: Columns of ``scd2``.
VALID_FROM, VALID_TO, IS_CURRENT = "_valid_from", "_valid_to", "_is_current"

#: The value of ``_operation`` for each operation in the log.
OPERATIONS = {"c": "INSERT", "u": "UPDATE", "d": "DELETE", "r": "READ"}
READ, TRUNCATE = "READ", "TRUNCATE"

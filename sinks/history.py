"""What a target keeps of the past with the option ``history``: one form for lakes and warehouses.

``append`` has a row for each change, with ``_operation``, the version of the change, ``_ord`` (its
number in the log) and ``_committed_at``. A DELETE has the columns of the key (of the whole row
where there is no key), a TRUNCATE none. ``scd2`` has a row for each version, true from
``_valid_from`` until before ``_valid_to`` (NULL: still is), with ``_is_current``.

A value that the source did not send is NULL in both: such a row is being deleted or rewritten at
the source, and nobody can look the value up any more.
"""

from __future__ import annotations

#: Columns of ``append`` besides the version of the change.
OPERATION, ORDER, COMMITTED_AT = "_operation", "_ord", "_committed_at"

#: Columns of ``scd2``.
VALID_FROM, VALID_TO, IS_CURRENT = "_valid_from", "_valid_to", "_is_current"

#: What ``_operation`` says, by the operation in the log.
OPERATIONS = {"c": "INSERT", "u": "UPDATE", "d": "DELETE", "r": "READ"}
READ, TRUNCATE = "READ", "TRUNCATE"

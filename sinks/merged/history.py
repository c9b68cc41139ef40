"""What a target keeps of the past with the option ``history``: one form for lakes and warehouses.

``append`` has a row for each change, with ``_operation``, the version of the change, ``_ord`` (its
number in the log) and ``_committed_at``. A DELETE has the columns of the key (of the whole row
where there is no key), a TRUNCATE none. ``scd2`` has a row for each version, true from
``_valid_from`` until before ``_valid_to`` (NULL: still is), with ``_is_current``.

A value that the source did not send is in both what it was in the version before, of the same
round or of the target. It is NULL where that is not known: the target has no version before, or the
key has changed with this change.

A scan adds to ``append`` all rows, as READ. To ``scd2`` it adds a version of a row that differs
from its current version, which ends, and ends versions of rows that it does not find; a row that is
as it was stays as it is.
"""

from __future__ import annotations

#: Columns of ``append`` besides the version of the change.
OPERATION, ORDER, COMMITTED_AT = "_operation", "_ord", "_committed_at"

#: Columns of ``scd2``.
VALID_FROM, VALID_TO, IS_CURRENT = "_valid_from", "_valid_to", "_is_current"

#: What ``_operation`` says, by the operation in the log.
OPERATIONS = {"c": "INSERT", "u": "UPDATE", "d": "DELETE", "r": "READ"}
READ, TRUNCATE = "READ", "TRUNCATE"

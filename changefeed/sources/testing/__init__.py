"""What every source must do: a list of cases, and what they are run with.

* :mod:`.harness` is what the author of a source writes: one database to test against.
* :mod:`.reader` reads a source as capture does, and :mod:`.copy` applies what it read.
* :mod:`.conformance` is the list; its cases are in :mod:`.scans`, :mod:`.streams` and
  :mod:`.lifecycle`.

See ``docs/source-guide.md``.
"""

"""The requirements on sources: a list of cases, and the code that runs them.

* :mod:`.harness` is the class that the author of a source implements: one database to test against.
* :mod:`.reader` reads a source as capture does, and :mod:`.copy` applies what it read.
* :mod:`.conformance` is the list; its cases are in :mod:`.scans`, :mod:`.streams` and
  :mod:`.lifecycle`.

See ``docs/source-guide.md``.
"""

"""The parent of Spark's Python workers (``spark.python.daemon.module``).

Spark puts archives (``pyspark.zip``, the Spark core jar) on ``sys.path`` of its workers and
calls ``importlib.invalidate_caches()`` in every task, which reads each archive's directory
again in pure Python: about 100 ms of CPU per task. Workers are forked from this process, so they
have what is imported and frozen here, and the garbage collection that Spark runs after every task
does not traverse it again. This halves the cost of a Python task.
"""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Prepare this process and become Spark's own daemon."""
    sys.path[:] = [entry for entry in sys.path if not entry.endswith((".zip", ".jar"))]

    import pyarrow  # noqa: F401  imported for the children
    import pyspark.worker  # noqa: F401
    from pyspark import daemon

    gc.collect()
    gc.freeze()
    daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()

"""The command ``changefeed`` as a Spark application; its arguments are those of the command.

    spark-submit .. changefeed_node.py --state STATE --spark existing start
    spark-submit .. changefeed_node.py --state STATE --spark existing -c "SYNC ALL"

The first form runs the feeds until SIGTERM, the second until they have what was committed before.
"""

import os
import signal
import sys
import threading
import time

from pyspark.sql import SparkSession

from shell.cli import main


def end_with(parent: int) -> None:
    """Stop the node when the JVM of spark-submit ends, which passes no signal on."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    # Now, not with the first feed that needs it: YARN gives up an application without a session.
    SparkSession.builder.getOrCreate()
    status = main()
    if status:  # Databricks takes any SystemExit for a failure
        sys.exit(status)

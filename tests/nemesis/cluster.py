"""What befalls a standalone Spark cluster that a node works with."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.services.spark_cluster import SparkCluster


class ClusterTroubles:
    """Ends processes of the cluster without notice.

    Args:
        cluster: of this run alone.
        chance: chooses.
        meanwhile: what the source does while a process is away.
    """

    def __init__(
        self, cluster: SparkCluster, chance: random.Random, meanwhile: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._chance = chance
        self._meanwhile = meanwhile

    def all(self) -> Sequence[Callable[[], str]]:
        """Each of them."""
        return [self.kill_executor, self.kill_all_executors, self.kill_worker, self.kill_master]

    def kill_executor(self) -> str:
        """One of those that there are at the moment."""
        executors = self._cluster.executors()
        if not executors:
            return "no executor to kill"
        self._chance.choice(executors).kill()
        return "kill -9 of an executor"

    def kill_all_executors(self) -> str:
        """What any of them had in memory is gone."""
        executors = self._cluster.executors()
        for executor in executors:
            executor.kill()
        return f"kill -9 of {len(executors)} executors"

    def kill_worker(self) -> str:
        """With its executors; another one comes."""
        self._cluster.kill_worker(-1)
        self._meanwhile()
        self._cluster.add_worker()
        return "kill -9 of a worker, and another one"

    def kill_master(self) -> str:
        """The next one knows nothing of workers and applications."""
        self._cluster.kill_master()
        self._meanwhile()
        self._cluster.start_master()
        return "kill -9 of the master, and a new one"

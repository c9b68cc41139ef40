"""The properties of a Spark session: changefeed's, the site's and the user's."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from changefeed.core.secret_names import SECRET_NAMES
from changefeed.core.telemetry import log

#: How often Spark tries a task (one part of a scan) before the job fails.
TASK_ATTEMPTS = 4

_LOCAL = re.compile(r"local(\[.*\])?\Z")


def is_local(master: str) -> bool:
    """Whether Spark runs in a JVM of this process, on this machine."""
    return _LOCAL.match(master) is not None


def default_heap() -> str:
    """A quarter of the machine's memory, at least 1 GiB and at most 4."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return "1g"
    return f"{min(4096, max(1024, total // 4 // 2**20))}m"


def our_properties(master: str, cores: int, scratch: Path) -> dict[str, str]:
    """The properties of a session that neither the site nor the user sets."""
    local = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(scratch),
        # Shuffled data stays in this machine's page cache, so compression saves nothing. It took
        # 4 of the 19 s of CPU of a comparison of 2 million rows.
        "spark.shuffle.compress": "false",
        # Of a cluster's many, adaptive execution leaves as many as fit the cores there are.
        "spark.sql.shuffle.partitions": str(cores),
    }
    return {
        "spark.app.name": "changefeed",
        "spark.master": with_attempts(master),
        **(local if is_local(master) else {}),
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        **_PROPERTIES,
        "spark.task.maxFailures": str(TASK_ATTEMPTS),
    }


#: Properties that the results depend on: neither a site's defaults nor ``--conf`` change them.
_FIXED = {
    "spark.sql.session.timeZone": "UTC",
    # A value that a cast cannot make fails its job, and is not NULL. Off by default before Spark 4.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # Staged rows that cannot be read fail their job, and are not left out.
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    # Days before 1582 are those of the calendar of today, as Spark 4 has them by default.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.python.daemon.module": "changefeed.spark.internals.daemon",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_PROPERTIES = {
    **_FIXED,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # What Spark hides in its UI and event log: settings with such a name or value. Its default lets
    # keys of a catalog or of an object store pass.
    "spark.redaction.regex": rf"{SECRET_NAMES}|authorization|//[^/@\s]*:[^/@\s]*@",
    "spark.scheduler.mode": "FAIR",
    # Checksum files next to every local file cost more than the file does.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # The pages of staged rows and of datasets have checksums, which Spark's reader then compares.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
    # Wide tables keep whole-stage code generation.
    "spark.sql.codegen.maxFields": "2000",
    # Old jobs are not shown anywhere; so the listener's memory stays small over days.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "5",
}


#: Those that each session can have for itself, of whichever Spark. Workers with another daemon than
#: ours take more CPU and do the same.
SESSION_PROPERTIES = {
    **{name: value for name, value in _FIXED.items() if name.startswith("spark.sql.")},
    # A session hands it on to Hadoop's clients.
    "parquet.page.verify-checksum.enabled": "true",
}


def choose_properties(
    ours: Mapping[str, str], site: Mapping[str, str], person: Mapping[str, str]
) -> dict[str, str]:
    """The properties of a session: the user's before the site's before changefeed's, except fixed
    ones."""
    chosen = {**ours, **site, **person}
    for name in _FIXED.keys() & (site.keys() | person.keys()):
        if chosen[name] != ours[name]:
            log.warning("Spark property %s stays %s: results depend on it", name, ours[name])
            chosen[name] = ours[name]
    return chosen


#: Prefixes of properties that Spark's launcher sets itself, or was given.
_SET_BY_LAUNCH = (
    "spark.app.",
    "spark.submit.",
    "spark.master",
    "spark.jars",
    "spark.driver.memory",
    "spark.ui.showConsoleProgress",
)


_DEFAULT = re.compile(r"([^\s=:#!][^\s=:]*)[ \t]*[=: \t][ \t]*(.*)")


def site_defaults(spark_home: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The properties of ``spark-defaults.conf``, for decisions before Spark's launcher reads it.

    Args:
        spark_home: used if the environment names no other one.
        environment: may have ``SPARK_CONF_DIR`` or ``SPARK_HOME``.
    """
    home = Path(environment.get("SPARK_HOME") or spark_home)
    folder = Path(environment.get("SPARK_CONF_DIR") or home / "conf")
    try:
        lines = (folder / "spark-defaults.conf").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    found = filter(None, (_DEFAULT.match(line.strip()) for line in lines))
    return {match[1]: match[2].strip() for match in found}


def launch_properties(
    heap: str | None, site: Mapping[str, str], given: Mapping[str, str], jars: Sequence[Path]
) -> dict[str, str]:
    """The properties on the command line of Spark's launcher, which override the site's defaults.

    Args:
        heap: what the user asked for.
        site: the result of :func:`site_defaults`.
        given: the user's properties.
        jars: shipped in addition to those of the user or the site.
    """
    made = {"spark.driver.memory": heap or site.get("spark.driver.memory") or default_heap()}
    made |= given
    theirs = given.get("spark.jars", site.get("spark.jars", ""))
    names = [*filter(None, theirs.split(",")), *(jar.as_uri() for jar in jars)]
    return made | ({"spark.jars": ",".join(names)} if names else {})


def without_launched(found: Mapping[str, str]) -> dict[str, str]:
    """The site's own ones of the properties that Spark's launcher found."""
    return {k: v for k, v in found.items() if not k.startswith(_SET_BY_LAUNCH)}


#: For a session that writes to an object store: what goes there is gathered in local files, by a
#: class that accepts only Hadoop's own local filesystem.
STORE_PROPERTIES = {"spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem"}


def count_cores(master: str | None) -> int:
    """The number of tasks at the same time, if this machine runs them."""
    match = re.match(r"local\[(\d+)", master or "")
    return int(match[1]) if match else (os.cpu_count() or 1)


def with_attempts(master: str) -> str:
    """The master, with as many attempts of a task as on a cluster."""
    # local[N] never retries a task; local[N,F] does.
    match = re.match(r"local(?:\[([^,\]]+)\])?\Z", master)
    return f"local[{match[1] or 1},{TASK_ATTEMPTS}]" if match else master

"""Who runs the server, and how its settings are changed there: services do not let their customers
``SET GLOBAL``, and some remove binlogs at once. Rows by the services' documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from changefeed.sources.mysql.session import MySQLSession

_STEPS = "OFF_PERMISSIVE, ON_PERMISSIVE and ON, one after the other"


@dataclass(frozen=True, slots=True)
class MySQLService:
    """How a service is recognised, and set up.

    Attributes:
        name: the service's.
        marker: whether this service runs a server with these global variables.
        binlog: what turns the binlog on.
        settings: how a setting of the server is changed, with ``{name}`` and ``{value}``.
        gtids: what turns GTIDs on (MySQL).
        retention: what makes the server keep its binlogs for a week.
        hours: the service removes binlogs as its own procedures say, whatever
            ``binlog_expire_logs_seconds`` is.
    """

    name: str
    marker: Callable[[Mapping[str, str]], bool]
    binlog: str
    settings: str
    gtids: str
    retention: str
    hours: bool = False

    def setting(self, name: str, value: str) -> str:
        """How to give a variable of the server a value, for good."""
        bare = value.isdigit() or value in ("ON", "OFF")
        return self.settings.format(name=name, value=value if bare else f"'{value}'")


def _itself(name: str, settings: str) -> MySQLService:
    return MySQLService(
        name,
        lambda known: True,
        "set log_bin = binlog and server_id = 1 in the server's configuration; restart it.",
        settings,
        f"SET PERSIST enforce_gtid_consistency = ON; then SET PERSIST gtid_mode = {_STEPS}",
        settings.format(name="binlog_expire_logs_seconds", value="604800"),
    )


MYSQL = _itself("MySQL", "SET PERSIST {name} = {value};")
MARIADB = _itself(
    "MariaDB", "SET GLOBAL {name} = {value}; and the same in the server's configuration"
)

_AMAZON_RETENTION = "CALL mysql.rds_set_configuration('binlog retention hours', 168);"

#: The first whose marker is there. Aurora has the directories of RDS, too.
SERVICES = (
    MySQLService(
        "Amazon Aurora",
        lambda known: "aurora_version" in known,
        "set binlog_format = ROW in the DB cluster parameter group, then reboot the writer; the "
        "connection must lead to the writer, because readers have no binlog.",
        "Set {name} = {value} in the DB cluster parameter group, then reboot the writer;",
        "Set enforce_gtid_consistency = ON and gtid-mode = ON in the DB cluster parameter group, "
        "then reboot the writer",
        _AMAZON_RETENTION,
        hours=True,
    ),
    MySQLService(
        "Amazon RDS",
        lambda known: "rdsdbbin" in known.get("basedir", ""),
        "turn automated backups on (a backup retention period above 0): they turn the binlog on.",
        "Set {name} = {value} in the DB parameter group, and reboot the instance if the parameter "
        "is static;",
        "Set enforce_gtid_consistency = ON and gtid-mode = ON in the DB parameter group, then "
        "reboot the instance",
        _AMAZON_RETENTION,
        hours=True,
    ),
    MySQLService(
        "Google Cloud SQL",
        lambda known: "google" in known.get("version_comment", "").lower(),
        "turn point-in-time recovery on: gcloud sql instances patch .. --enable-bin-log",
        "Set the flag {name} = {value};",
        "Cloud SQL sets gtid_mode = ON: ask its support why this instance differs",
        "Set the flag binlog_expire_logs_seconds = 604800;",
    ),
    MySQLService(
        "Azure Database for MySQL",
        lambda known: "aad_auth_only" in known,
        "Azure turns the binlog on: ask its support why this server has none.",
        "Set the server parameter {name} = {value};",
        f"Set the server parameter enforce_gtid_consistency = ON; then gtid_mode = {_STEPS}",
        "Set the server parameter binlog_expire_logs_seconds = 604800;",
    ),
)


def of(session: MySQLSession) -> MySQLService:
    """Who runs the server that the session leads to."""
    known = session.variables("aurora_version", "basedir", "version_comment", "aad_auth_only")
    itself = MARIADB if session.is_mariadb else MYSQL
    return next((service for service in SERVICES if service.marker(known)), itself)

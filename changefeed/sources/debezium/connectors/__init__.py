"""What differs between the connectors of Debezium: one class each, by the scheme of the URI."""

from __future__ import annotations

from changefeed.sources.debezium.connectors.base import Connector
from changefeed.sources.debezium.connectors.binlog import MariaDB, MySQL
from changefeed.sources.debezium.connectors.change_tables import Db2, SQLServer
from changefeed.sources.debezium.connectors.mongodb import MongoDB, MongoDBByDNS
from changefeed.sources.debezium.connectors.oracle import Oracle
from changefeed.sources.debezium.connectors.postgresql import PostgreSQL

CONNECTORS: dict[str, type[Connector]] = {
    "debezium-mariadb": MariaDB,
    "debezium-mysql": MySQL,
    "debezium-postgresql": PostgreSQL,
    "db2": Db2,
    "mongodb": MongoDB,
    "mongodb+srv": MongoDBByDNS,
    "oracle": Oracle,
    "sqlserver": SQLServer,
}

"""The databases that the demo can be played on: how each server comes, and who talks to it."""

from __future__ import annotations

import platform
from abc import ABC, abstractmethod
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

from changefeed.core.errors import ChangefeedError, Code
from changefeed.demo.display import Display
from changefeed.embedded import EmbeddedMariaDB, EmbeddedPostgres
from changefeed.embedded.mariadb import installed_server, unpack_server
from changefeed.spark import packs

_MARIADB_PACK = "mariadb-server"
#: The one platform that the pack has a program for.
_MARIADB_PLATFORM = ("Linux", "x86_64")


class Server(Protocol):
    """A server that runs while it is entered."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def uri(self, database: str) -> str:
        """The address of a database there."""


class ShopDatabase(ABC):
    """A kind of database with the shop in it.

    Attributes:
        label: what a person calls it.
        data: name of the folder of the server's files.
        name: of the database that the shop is in.
        errors: what its client raises.
    """

    label: str
    data: str
    name: str
    errors: type[Exception]

    @abstractmethod
    def server(self, folder: Path, port: int | None, display: Display) -> Server:
        """A server, not started, with its files under ``folder``; fetched where it must be.

        Raises:
            ChangefeedError: CF1303, the server cannot be had; says what to install.
        """

    @abstractmethod
    def connect(self, uri: str) -> Any:
        """A connection as Python's DB-API describes it, whose cursors are context managers."""

    @abstractmethod
    def create(self, uri: str) -> None:
        """Make the tables and the first rows on a new server."""


class PostgresShop(ShopDatabase):
    """PostgreSQL out of a wheel."""

    label = "PostgreSQL"
    data = "postgresql"
    name = "postgres"

    def __init__(self) -> None:
        import psycopg

        self.errors = psycopg.Error

    def server(self, folder: Path, port: int | None, display: Display) -> EmbeddedPostgres:
        return EmbeddedPostgres(folder / self.data, port=port)

    def connect(self, uri: str) -> Any:
        import psycopg

        return psycopg.connect(uri)

    def create(self, uri: str) -> None:
        with self.connect(uri) as connection:
            connection.execute(_script("shop.sql"))


class MariaDBShop(ShopDatabase):
    """MariaDB out of a jar, or the machine's own."""

    label = "MariaDB"
    data = "mariadb"
    name = "shop"

    def __init__(self) -> None:
        import pymysql

        self.errors = pymysql.MySQLError

    def server(self, folder: Path, port: int | None, display: Display) -> EmbeddedMariaDB:
        program = mariadb_program(folder / f"{self.data}-server", display)
        return EmbeddedMariaDB(folder / self.data, program, port=port)

    def connect(self, uri: str) -> Any:
        import pymysql
        from pymysql.constants import CLIENT

        address = urlsplit(uri)
        return pymysql.connect(
            host=address.hostname,
            port=address.port,
            user=address.username,
            database=address.path.strip("/"),
            charset="utf8mb4",
            client_flag=CLIENT.MULTI_STATEMENTS,
        )

    def create(self, uri: str) -> None:
        server, _, database = uri.rpartition("/")
        with self.connect(server) as connection, connection.cursor() as cursor:
            cursor.execute(
                f"create database {database}; use {database}; {_script('shop_mysql.sql')}"
            )
            while cursor.nextset():
                pass
            connection.commit()


#: By the word of ``--source``.
DATABASES: dict[str, type[ShopDatabase]] = {"postgresql": PostgresShop, "mysql": MariaDBShop}


def mariadb_program(folder: Path, display: Display, path: str | None = None) -> Path:
    """The program ``mariadbd``: out of a jar that is downloaded once for each user and unpacked
    into ``folder``, or the one that is installed (in the folders of ``path`` alone, if given).

    Raises:
        ChangefeedError: CF1303, there is none for this machine, or it could not be downloaded.
    """
    here = (platform.system(), platform.machine())
    reason = f"there is no package with a server for {' '.join(here)}"
    if here == _MARIADB_PLATFORM:
        (jar,) = packs.pack(_MARIADB_PACK).jars
        known = (packs.jar_folder() / jar.file_name).exists()
        said = "unpacking MariaDB" if known else "downloading MariaDB (150 MB, only once)"
        try:
            with display.waiting(said):
                (archive,) = packs.paths([_MARIADB_PACK])
                return unpack_server(archive, folder)
        except ChangefeedError as error:
            reason = error.detail or error.message
    program = installed_server(path)
    if program is None:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            "the demo finds no server of MariaDB",
            detail=reason,
            hint="install MariaDB 10.5 or newer, which brings the program mariadbd; on Debian or "
            "Ubuntu: apt install mariadb-server.",
        )
    return program


def _script(name: str) -> str:
    return (files("changefeed.demo") / name).read_text("utf-8")

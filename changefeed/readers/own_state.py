"""The source that a reader was given, and its state: by default a directory for each database."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from changefeed.api import Interpreter, Session, new_connection_name
from changefeed.catalog import Catalog, Status
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.state import data_folder
from changefeed.core.uri import split_uri
from changefeed.readers.reader import folder_name, table_parts
from changefeed.sources.registry import address, open_source, schemes
from grammar import nodes
from grammar.printer import name as name_sql

#: In place of the name of a database, where the URI has none; no quoted name looks so.
_NO_DATABASE = "(none)"


@dataclass(frozen=True)
class ReaderSource:
    """A source, and the state in which its readers are.

    Attributes:
        uri: of the source; may have a password.
        state: directory or URL.
        own: nobody named the state: only readers of this source are in it.
    """

    uri: str = field(repr=False)
    state: str = field(repr=False)
    own: bool

    @classmethod
    def of(cls, uri: str, state: str = "") -> ReaderSource:
        """The state of a source.

        Args:
            uri: of the source.
            state: directory or URL of the state; by default a directory beneath the user's data
                folder, the same for each URI of this server and database.

        Raises:
            ChangefeedError: CF1201, the URI is not one of a source.
        """
        scheme = split_uri(uri).scheme
        if scheme not in schemes():
            raise ChangefeedError(
                Code.INVALID_URI,
                "the URI of the source does not belong to a source",
                hint=f"sources are: {', '.join(schemes())}.",
            )
        return cls(uri, state or str(own_directory(uri)), not state)

    def directory(self) -> Path:
        """Where the state has its change logs.

        Raises:
            ChangefeedError: CF6001, the state cannot be opened.
        """
        catalog = Catalog.open(self.state)
        try:
            return Path(catalog.directory)
        finally:
            catalog.close()

    def connect(self) -> str:
        """The name of the state's connection to the source, which is made where there is none.

        A login that has changed is taken over in a state of the reader's own; a connection that a
        user made stays as it is.

        Raises:
            ChangefeedError: CF6001 the state cannot be opened; CF2001, CF2002 with a new login the
                source cannot be reached.
        """
        catalog = Catalog.open(self.state)
        try:
            wanted = address(self.uri)
            taken = {connection.name: connection.uri for connection in catalog.connections()}
            for name, uri in taken.items():
                if _scheme(uri) in schemes() and address(uri) == wanted:
                    if self.own and uri != self.uri:
                        open_source(name, self.uri).current_position()
                        catalog.alter_connection(name, self.uri)
                    return name
            name = new_connection_name(self.uri, taken)
            open_source(name, self.uri)
            # Another process may do the same now, with the same name.
            catalog.create_connection(name, self.uri, if_not_exists=True)
            return name
        finally:
            catalog.close()

    def table(self, text: str, connection: str) -> str:
        """A table as ``connection.schema.table``, which may lack the connection.

        Raises:
            ChangefeedError: CF1101, it has not two or three parts.
        """
        number = len(table_parts(text))
        if text and number not in (2, 3):
            raise ChangefeedError(
                Code.NAME_UNKNOWN,
                f"{text!r} does not name a table of a source",
                hint="write schema.table, for example public.orders.",
            )
        return f"{name_sql(connection)}.{text}" if number == 2 else text

    def retry(self, reader: str) -> None:
        """Let a reader go on that has failed because the source could not be used.

        A query that is started again is the user's word that this was mended.
        """
        catalog = Catalog.open(self.state)
        try:
            job = catalog.find_job(reader) if reader else None
            if job is None or job.status is not Status.FAILED:
                return
            if (job.error_code or "").startswith("CF20"):
                Interpreter(catalog).execute(
                    nodes.ResumeChangefeed((nodes.FeedRef(reader),)), Session(client="reader")
                )
        finally:
            catalog.close()


def own_directory(uri: str) -> Path:
    """Where the state of a source is by default: by kind, server and database, without the login.

    Raises:
        ChangefeedError: CF1201, the URI is malformed.
    """
    found = address(uri)
    parts = (found.kind, found.server or "localhost", found.database or _NO_DATABASE)
    return Path(data_folder(), "sources", *(_folder(part) for part in parts))


def _folder(name: str) -> str:
    return name if name == _NO_DATABASE else folder_name(name, safe=":,[]")


def _scheme(uri: str) -> str:
    return uri.partition("://")[0].lower()

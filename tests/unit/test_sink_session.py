"""Which sink objects a feed makes, and who may write to them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from changefeed.catalog import Catalog
from changefeed.feeds.feed import Feed
from changefeed.feeds.sink_session import Outlet
from changefeed.spark.session import SparkEngine
from sinks.base import Sink


@pytest.mark.parametrize("installed", [True, False])
def test_executors_write_only_where_spark_is_installed(tmp_path: Path, installed: bool) -> None:
    catalog = cast(Catalog, SimpleNamespace(directory=str(tmp_path)))
    engine = cast(SparkEngine, SimpleNamespace(installed=installed))
    outlet = Outlet(catalog, cast(Feed, None), "node", engine)
    sink = cast(Sink, SimpleNamespace(capabilities=SimpleNamespace(executor=True)))
    assert outlet.in_workers(sink) is installed

"""``bigquery://project/dataset``: what the URI of a BigQuery sink says.

A table takes 1,500 load jobs a day, failed ones too, so rounds are ``load_interval`` seconds
apart; changes gather in the change log meanwhile.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Mapping
from pathlib import Path

from changefeed.errors import ChangefeedError
from changefeed.events import Resolved
from changefeed.uri import SinkURL
from sinks.warehouse.sink import WarehouseSink

#: Seconds between rounds: 960 load jobs a day and table.
INTERVAL = 90


class BigQuerySink(WarehouseSink):
    """``bigquery://project/dataset?location=&credentials=&gcs_bucket=&load_interval=``."""

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        """Read the URI.

        Raises:
            ChangefeedError: it is malformed, or the credentials are no key of a service account.
        """
        url = SinkURL(uri)
        project, dataset = url.host, url.path.strip("/")
        if not project or not dataset or "/" in dataset:
            raise ChangefeedError(
                "CF1201",
                "a BigQuery sink is a project and a dataset",
                hint="write it as bigquery://project/dataset",
            )
        interval = url.take_int("load_interval", INTERVAL, least=0, most=86_400)
        # Google's libraries take a second to import: not before somebody wants this sink.
        from sinks.warehouse.bigquery_client import BigQueryWarehouse

        warehouse = BigQueryWarehouse(
            project,
            dataset,
            location=url.take_str("location"),
            credentials=_key(url.take_str("credentials")),
            endpoint=url.take_str("api_endpoint"),
            bucket=url.take_str("gcs_bucket", "") or "",
        )
        url.finish()
        super().__init__(warehouse, options)
        self.pace = self._interval = float(INTERVAL if interval is None else interval)
        self._resolved_at = 0.0

    def resolved(self, mark: Resolved, payload: bytes) -> None:
        """As in the core, but not oftener than rounds: each is a job that costs and counts."""
        now = time.monotonic()
        if self._resolved_at and now - self._resolved_at < self._interval:
            return
        super().resolved(mark, payload)
        self._resolved_at = now

    def _adapt(self, seconds: float) -> None:
        """The interval is what the quota allows; a merge that takes long makes it longer."""
        self.pace = max(self._interval, seconds)


def _key(given: str | None) -> str | None:
    """The JSON text of a service account's key: given as a path or in base 64.

    Raises:
        ChangefeedError: CF1207, it is neither; nothing of it is said.
    """
    if not given:
        return None
    try:
        text = (
            Path(given).read_text()
            if given.startswith(("/", "~"))
            else base64.b64decode(given.replace("-", "+").replace("_", "/"), validate=True).decode()
        )
        if not isinstance(json.loads(text), dict):
            raise ValueError("not an object")
    except (OSError, ValueError, binascii.Error):
        raise ChangefeedError(
            "CF1207",
            "param credentials must be a service account's key",
            hint="give the path of its JSON file, or the file's content in base 64; leave it out "
            "to use what the machine is given.",
        ) from None
    return text

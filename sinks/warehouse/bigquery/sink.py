"""``bigquery://project/dataset``: what the URI of a BigQuery sink says.

A table takes 1,500 load jobs a day, failed ones too, so rounds are ``load_interval`` seconds
apart; changes gather in the change log meanwhile.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from changefeed.core.errors import ChangefeedError
from changefeed.core.settings import Parameter, ParameterKind, Settings, setting
from changefeed.core.uri import invalid_uri
from sinks.base import PartPlace
from sinks.warehouse.parts import PartsSink
from sinks.warehouse.sink import PacedSink

#: Seconds between rounds: 960 load jobs a day and table.
INTERVAL = 90


def _service_account(text: str) -> str | None:
    """The JSON text of a service account's key, of which no error says anything."""
    if not text:
        return None
    try:
        key = (
            Path(text).read_text()
            if text.startswith(("/", "~"))
            else base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True).decode()
        )
        if not isinstance(json.loads(key), dict):
            raise ValueError("not an object")
    except (OSError, ValueError, binascii.Error):
        raise ValueError(
            "must be a service account's key",
            "give the path of its JSON file, or the file's content in base 64; leave it out "
            "to use the machine's own login.",
        ) from None
    return key


def credentials() -> Any:
    """The field for the parameter ``credentials`` of Google's services: the JSON text of a key."""
    return setting(
        None,
        "A service account's key: the path of its JSON file, or its content in base 64.",
        shown="the machine's own login",
        secret=True,
        convert=_service_account,
    )


@dataclass(frozen=True, kw_only=True)
class BigQuerySettings(Settings):
    """``bigquery://project/dataset``."""

    location: str | None = setting(None, "Where a missing dataset is created.")
    credentials: str | None = credentials()
    gcs_bucket: str = setting("", "Files are loaded from this bucket.", shown="sent directly")
    load_interval: int = setting(INTERVAL, "Seconds between two rounds.", most=86_400)
    api_endpoint: str | None = setting(
        None, "Another server, such as an emulator.", ParameterKind.URL
    )

    def check(self) -> Iterator[ChangefeedError]:
        if not self.uri.host or not self.uri.database or "/" in self.uri.database:
            yield invalid_uri(
                "a BigQuery sink is a project and a dataset",
                "write it as bigquery://project/dataset",
            )


class BigQuerySink(PartsSink, PacedSink):
    """Tables of a BigQuery dataset."""

    parameters: ClassVar[tuple[Parameter, ...]] = BigQuerySettings.parameters()

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        settings = BigQuerySettings.read(uri)
        # Google's libraries take a second to import: only a sink of this kind needs them.
        from sinks.warehouse.bigquery.client import BigQueryWarehouse

        warehouse = BigQueryWarehouse(
            settings.uri.host,
            settings.uri.database,
            location=settings.location,
            credentials=settings.credentials,
            endpoint=settings.api_endpoint,
            bucket=settings.gcs_bucket,
        )
        super().__init__(warehouse, options, float(settings.load_interval))
        if not settings.gcs_bucket:
            self.capabilities = replace(  # type: ignore[misc]
                type(self).capabilities, loads_parts=PartPlace.NONE
            )

"""``bigquery://project/dataset``: what the URI of a BigQuery sink says.

A table takes 1,500 load jobs a day, failed ones too, so rounds are ``load_interval`` seconds
apart; changes gather in the change log meanwhile.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.parameters import Parameter, ParameterKind
from changefeed.core.uri import SinkURL
from sinks.warehouse.paced import PacedSink, take_interval

#: Seconds between rounds: 960 load jobs a day and table.
INTERVAL = 90

CREDENTIALS = Parameter(
    "credentials",
    "A service account's key: the path of its JSON file, or its content in base 64.",
    default="the machine's own login",
    secret=True,
)


class BigQuerySink(PacedSink):
    """``bigquery://project/dataset?location=&credentials=&gcs_bucket=&load_interval=``."""

    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("location", "Where a missing dataset is created."),
        CREDENTIALS,
        Parameter("gcs_bucket", "Files are loaded from this bucket.", default="sent directly"),
        Parameter(
            "load_interval",
            "Seconds between two rounds.",
            ParameterKind.NUMBER,
            default=str(INTERVAL),
        ),
        Parameter("api_endpoint", "Another server, such as an emulator.", ParameterKind.URL),
    )

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        """Read the URI.

        Raises:
            ChangefeedError: it is malformed, or the credentials are no key of a service account.
        """
        url = SinkURL(uri, self.parameters)
        project, dataset = url.host, url.path.strip("/")
        if not project or not dataset or "/" in dataset:
            raise ChangefeedError(
                Code.INVALID_URI,
                "a BigQuery sink is a project and a dataset",
                hint="write it as bigquery://project/dataset",
            )
        interval = take_interval(url, INTERVAL)
        # Google's libraries take a second to import: not before somebody wants this sink.
        from sinks.warehouse.bigquery.client import BigQueryWarehouse

        warehouse = BigQueryWarehouse(
            project,
            dataset,
            location=url.take_str("location"),
            credentials=service_account_key(url.take_str("credentials")),
            endpoint=url.take_str("api_endpoint"),
            bucket=url.take_str("gcs_bucket", "") or "",
        )
        url.finish()
        super().__init__(warehouse, options, interval)


def service_account_key(given: str | None) -> str | None:
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
            Code.INVALID_PARAMETER,
            "param credentials must be a service account's key",
            hint="give the path of its JSON file, or the file's content in base 64; leave it out "
            "to use the machine's own login.",
        ) from None
    return text

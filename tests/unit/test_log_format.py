"""Lines of the log as JSON objects."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import logger as spark_logger

from changefeed.core.errors import ChangefeedError
from changefeed.core.telemetry import LogFormat, log, log_to


class Lines:
    """What a log of JSON lines has."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[Lines]:
    handler = log_to(tmp_path / "node.log", form=LogFormat.JSON)
    yield Lines(tmp_path / "node.log")
    log.removeHandler(handler)
    handler.close()


def test_a_line_names_what_it_is_about(lines: Lines) -> None:
    log.error("feed %s: table %s failed: %s %s", "f", "public.a", "CF2106", "was\ndropped")
    log.warning("source %s: %s%s %s", "shop", "doing: ", "CF2001", "refused")
    log.warning("capture of %s: %s", "shop", "100 %% of it")
    log.info("%d workers of a scan have not ended yet", 3)
    failed, refused, said, plain = lines.read()
    assert {"feed": "f", "table": "public.a", "code": "CF2106"}.items() <= failed.items()
    assert failed["message"] == "feed f: table public.a failed: CF2106 was\ndropped"
    assert (failed["level"], failed["logger"]) == ("ERROR", "changefeed")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", failed["time"])
    assert (refused["source"], refused["code"], "feed" in refused) == ("shop", "CF2001", False)
    assert (said["source"], said["message"]) == ("shop", "capture of shop: 100 %% of it")
    assert plain["message"] == "3 workers of a scan have not ended yet"
    assert not {"feed", "table", "source", "code"} & plain.keys()


def test_the_frames_of_an_error_are_a_field(lines: Lines) -> None:
    try:
        raise ChangefeedError("CF9001", "why")
    except ChangefeedError as error:
        log.error("http: %s", "GET", exc_info=error)
    (line,) = lines.read()
    assert line["exception"].startswith("Traceback") and line["message"] == "http: GET"


def test_sparks_own_json_logger_changes_nothing(
    lines: Lines, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = spark_logger.PySparkLogger.getLogger("theirs")
    theirs.addHandler(logging.StreamHandler())
    theirs.warning("one of Spark", column="a")
    log.info("feed %s: dropped", "f")
    (line,) = lines.read()
    assert (line["feed"], line["message"]) == ("f", "feed f: dropped")
    assert "feed f" not in capsys.readouterr().err

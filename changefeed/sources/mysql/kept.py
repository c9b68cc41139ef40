"""What a stream knows and a later one needs: files of JSON in the folder that lives as long as the
change log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from changefeed.core.durable import read_durable, replace_durably
from changefeed.core.errors import ChangefeedError, Code

T = TypeVar("T")


def read_kept(path: Path, what: str, parse: Callable[[Any], list[T]]) -> list[T]:
    """What the file has, by ``parse``; nothing if there is no file.

    Raises:
        ChangefeedError: CF3001 the file is not what it should be; ``what`` names its content.
    """
    try:
        return parse(json.loads(read_durable(path)))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise ChangefeedError(Code.LOG_DAMAGED, f"{path} has no {what} that can be read") from error


def write_kept(path: Path, content: Any) -> None:
    """Replace the file durably.

    Raises:
        ChangefeedError: CF3004 it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_durably(path, json.dumps(content))
    except OSError as error:
        raise ChangefeedError(
            Code.LOG_NOT_WRITABLE, f"cannot write {path}: {error.strerror}"
        ) from error

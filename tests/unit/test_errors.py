"""The table of error codes, and that everything which names a code names one of them."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from changefeed.core import error_docs
from changefeed.core.errors import Action, ChangefeedError, Code, Scope

ROOT = Path(__file__).parents[2]
PRODUCT = ("changefeed", "grammar", "shell", "sinks")


def sources() -> list[Path]:
    return [file for package in PRODUCT for file in (ROOT / package).rglob("*.py")]


def test_every_number_in_the_source_is_a_code() -> None:
    known = {code.number for code in Code}
    found = {
        (file.relative_to(ROOT).as_posix(), number)
        for file in sources()
        for number in re.findall(r"\bCF\d{4}\b", file.read_text("utf-8"))
    }
    assert len(found) > 300
    assert {(where, number) for where, number in found if number not in known} == set()


def test_no_code_is_compared_as_text() -> None:
    """A number is opaque to a reader, and a wrong one would only never be equal."""
    compared = re.compile(r"""(==|!=|\bin) [\[({]?"CF\d{4}"|frozenset\(\{?\s*"CF\d{4}""")
    found = {
        file.relative_to(ROOT).as_posix()
        for file in sources()
        if compared.search(file.read_text("utf-8"))
    }
    assert found == set()


def test_every_code_is_raised_or_reported_somewhere() -> None:
    text = "\n".join(f.read_text("utf-8") for f in sources() if f.name != "errors.py")
    unused = {code for code in Code if f'"{code.number}"' not in text and code.name not in text}
    assert unused == set()


def test_an_error_has_the_action_scope_and_hint_of_its_code() -> None:
    error = ChangefeedError("CF2106", "another table")
    assert error.code is Code.TABLE_REPLACED
    assert (error.action, error.scope) == (Action.STOP, Scope.TABLE)
    assert error.hint == Code.TABLE_REPLACED.hint
    assert ChangefeedError(Code.TABLE_REPLACED, "x").code is Code.TABLE_REPLACED


def test_an_unknown_code_cannot_be_raised() -> None:
    with pytest.raises(KeyError):
        ChangefeedError("CF0000", "x")


def test_a_stored_number_of_another_version_is_no_code() -> None:
    assert Code.stored("CF5003") is Code.SINK_REFUSED_DATA
    assert Code.stored("CF0000") is None
    assert Code.stored(None) is None


def test_a_code_survives_pickling_into_a_worker() -> None:
    assert pickle.loads(pickle.dumps(Code.SPARK_FAILED)) is Code.SPARK_FAILED


def test_every_code_has_its_place_in_the_page() -> None:
    page = error_docs.markdown()
    assert [code.number for code in Code if f"| {code.number} |" not in page] == []

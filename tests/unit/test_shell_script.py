"""Scripts taken apart; settings; exit statuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from changefeed.core.errors import ChangefeedError, Code
from shell.exits import Exit, exit_status
from shell.script import ScriptItem, items
from shell.settings import TABLE, ScriptOnError, ShellSettings, change


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def test_statements_know_their_line() -> None:
    text = "USE a;\n\n-- a comment\nSHOW\n  TABLES; SHOW JOBS;\n"
    assert list(items(lines(text))) == [
        ScriptItem("USE a", 1),
        ScriptItem("SHOW\n  TABLES", 4),
        ScriptItem("SHOW JOBS", 5),
    ]


def test_the_last_statement_needs_no_semicolon() -> None:
    assert [item.text for item in items(["SHOW JOBS"])] == ["SHOW JOBS"]


def test_a_local_command_is_one_line_and_not_inside_a_statement() -> None:
    text = "\\set format csv\nCREATE CHANGEFEED FOR t INTO 'file:///a\n\\x\n';\n  \\x on\n"
    found = list(items(lines(text)))
    assert [(item.local, item.line) for item in found] == [(True, 1), (False, 2), (True, 5)]
    assert found[1].text.endswith("\\x\n'")
    assert found[2].text == "\\x on"


def test_a_statement_runs_before_the_next_line_is_read() -> None:
    def pipe() -> Iterator[str]:
        yield "SHOW JOBS;\n"
        raise AssertionError("read on before the first statement was taken")

    assert next(iter(items(pipe()))).text == "SHOW JOBS"


@pytest.mark.parametrize("text", ["", "\n\n", "-- nothing\n", ";;\n", "/* a\nb */"])
def test_nothing_to_run(text: str) -> None:
    assert list(items(lines(text))) == []


@pytest.mark.parametrize("row", TABLE.values(), ids=lambda row: row.name)
def test_settings_read_what_they_show(row: object) -> None:
    settings = ShellSettings()
    name = getattr(row, "name")  # noqa: B009
    for value in TABLE[name].values or ("3",):
        change(settings, name, value)
        assert TABLE[name].shown(settings) == value


def test_a_setting_or_value_that_is_none() -> None:
    with pytest.raises(ChangefeedError) as unknown:
        change(ShellSettings(), "formt", "csv")
    assert unknown.value.hint == 'did you mean "format"?'
    with pytest.raises(ChangefeedError) as wrong:
        change(ShellSettings(), "on_error", "maybe")
    assert wrong.value.hint == "it is stop or continue."
    with pytest.raises(ChangefeedError, match="watch cannot be"):
        change(ShellSettings(), "watch", "-1")


def test_a_change_is_seen() -> None:
    settings = ShellSettings()
    change(settings, "on_error", "CONTINUE")
    assert settings.on_error is ScriptOnError.CONTINUE


def test_every_code_has_an_exit_status() -> None:
    statuses = {code: exit_status(ChangefeedError(code, "x")) for code in Code}
    assert statuses[Code.SYNTAX_ERROR] is Exit.STATEMENT
    assert statuses[Code.TIMED_OUT] is Exit.TIMEOUT
    assert statuses[Code.SOURCE_UNREACHABLE] is Exit.CONNECTION
    assert statuses[Code.STATE_HELD_BY_ANOTHER_NODE] is Exit.CONNECTION
    assert Exit.OK not in statuses.values()

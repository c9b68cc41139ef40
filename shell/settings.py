"""What ``\\set`` and the flags adjust: one row a setting, read by both and by completion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from changefeed.core.errors import ChangefeedError, Code
from grammar.spelling import did_you_mean
from shell.render.formats import OutputFormat


class ScriptOnError(StrEnum):
    """What a failed statement of a script does to those after it."""

    STOP = "stop"
    CONTINUE = "continue"


class Keys(StrEnum):
    """What the keys of the prompt do."""

    EMACS = "emacs"
    VI = "vi"


class Vertical(StrEnum):
    """When a table is shown one column a line."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(slots=True)
class ShellSettings:
    """The shell's settings; :data:`TABLE` describes them."""

    format: OutputFormat = OutputFormat.TABLE
    vertical: Vertical = Vertical.AUTO
    timing: bool = False
    on_error: ScriptOnError = ScriptOnError.STOP
    confirm: bool = True
    progress: bool = True
    watch: float = 2.0
    pager: bool = True
    keys: Keys = Keys.EMACS


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: its name, what it does, the values to offer, how a text becomes a value."""

    name: str
    summary: str
    values: tuple[str, ...]
    read: Callable[[str], Any]

    def shown(self, settings: ShellSettings) -> str:
        """The value it has now, as it is written."""
        value = getattr(settings, self.name)
        if isinstance(value, bool):
            return "on" if value else "off"
        return f"{value:g}" if isinstance(value, float) else str(value)


def _switch(text: str) -> bool:
    words = {"on": True, "true": True, "yes": True, "1": True}
    words |= {"off": False, "false": False, "no": False, "0": False}
    return words[text.lower()]


def seconds(text: str) -> float:
    """A number of seconds above zero.

    Raises:
        ValueError: it is none.
    """
    number = float(text.removesuffix("s"))
    if not 0 < number < 1e6:
        raise ValueError(text)
    return number


_ON_OFF = ("on", "off")

#: Every setting, by name.
TABLE: dict[str, Setting] = {
    row.name: row
    for row in (
        Setting(
            "format",
            "How results are written.",
            tuple(OutputFormat),
            lambda text: OutputFormat(text.lower()),
        ),
        Setting(
            "vertical",
            "Show rows with one column per line (\\x); auto only for results designed for it.",
            tuple(Vertical),
            lambda text: Vertical(text.lower()),
        ),
        Setting("timing", "Print the duration of each statement (\\timing).", _ON_OFF, _switch),
        Setting(
            "on_error",
            "Whether a script continues after a failed statement.",
            tuple(ScriptOnError),
            lambda text: ScriptOnError(text.lower()),
        ),
        Setting("confirm", "Ask before DROP at the prompt.", _ON_OFF, _switch),
        Setting("progress", "Show the initial scan of a new feed.", _ON_OFF, _switch),
        Setting("watch", "Seconds between two runs of \\watch.", (), seconds),
        Setting(
            "pager", "Show results that are longer than the screen in $PAGER.", _ON_OFF, _switch
        ),
        Setting(
            "keys", "Editing keys of the prompt.", tuple(Keys), lambda text: Keys(text.lower())
        ),
    )
}


def change(settings: ShellSettings, name: str, text: str) -> None:
    """Give a setting a value.

    Raises:
        ChangefeedError: CF1101 no such setting, CF1204 no value of it.
    """
    row = TABLE.get(name)
    if row is None:
        near = did_you_mean(name, TABLE)
        hint = f'did you mean "{near}"?' if near else "\\set lists the settings."
        raise ChangefeedError(Code.NAME_UNKNOWN, f'there is no setting "{name}"', hint=hint)
    try:
        setattr(settings, name, row.read(text))
    except (ValueError, KeyError):
        allowed = f"it is {' or '.join(row.values)}." if row.values else "it is a number above 0."
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE, f'{name} cannot be "{text}"', hint=allowed
        ) from None

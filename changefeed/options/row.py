"""The definition of an option: a row of the table (:mod:`.table`), or of a sink.

From a row come parsing and type, the error and its suggestion, help, completion, the docs page,
redaction, what ALTER may change and what SHOW CREATE prints.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from changefeed.core.secret_names import is_secret
from changefeed.options.types import OptionType, ValueRule
from changefeed.options.values import Feature

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class OptionRow(Generic[T]):
    """One option.

    Attributes:
        name: as it is written.
        type: reads its value.
        default: the typed value when it is not given.
        group: heading in help and docs.
        summary: what it does, one sentence.
        example: as it stands in a WITH list.
        shown_default: the default in words; empty for a flag.
        feature: sinks that have it take the option; None is every sink.
        alterable: ALTER CHANGEFEED may SET and UNSET it.
        secret: its value is never shown.
    """

    name: str
    type: OptionType[T]
    default: T
    group: str
    summary: str
    example: str
    shown_default: str
    feature: Feature | None
    alterable: bool
    secret: bool

    @property
    def values(self) -> tuple[str, ...]:
        """The values to offer for completion."""
        return self.type.values

    @property
    def takes_value(self) -> bool:
        """Whether a value may follow the name."""
        return self.type.takes is not ValueRule.NOTHING

    def fits(self, features: Collection[Feature]) -> bool:
        """A sink with these features takes the option."""
        return self.feature is None or self.feature in features


#: Every option by name, in the order of help and docs.
OPTIONS: dict[str, OptionRow[Any]] = {}

#: The heading of options that a sink brings.
OWN_GROUP = "Of the sink"


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """The options under one heading of help and docs."""

    heading: str

    def option(
        self,
        name: str,
        type: OptionType[T],
        default: T,
        *,
        summary: str,
        example: str = "",
        shown: str = "",
        feature: Feature | None = None,
        alterable: bool = True,
        secret: bool = False,
    ) -> OptionRow[T]:
        """Add a row to the table; the example of a flag is its name.

        Raises:
            ValueError: the table has a row of that name.
        """
        if name in OPTIONS:
            raise ValueError(f"option {name} is defined twice")
        group, example = self.heading, example or name
        row = OptionRow(
            name, type, default, group, summary, example, shown, feature, alterable, secret
        )
        OPTIONS[name] = row
        return row


def own_option(
    name: str,
    type: OptionType[T],
    default: T,
    *,
    summary: str,
    example: str,
    shown: str = "",
    alterable: bool = True,
    secret: bool = False,
) -> OptionRow[T]:
    """A row that one sink brings (``Capabilities.options``); it is not in the table.

    Raises:
        ValueError: there is an option of that name, or ``secret`` and the name say different
            things: listings that do not know the sink hide values by their names.
    """
    if name in OPTIONS:
        raise ValueError(f"option {name} is every sink's")
    if secret != is_secret(name):
        raise ValueError(f"option {name}: its name does not say what secret={secret} says")
    return OptionRow(
        name, type, default, OWN_GROUP, summary, example, shown, None, alterable, secret
    )

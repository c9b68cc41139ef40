"""The parameters that the URI of a sink takes, declared once.

A declaration determines what the sink may read, the error that lists the known parameters,
completion, and the page ``docs/sink-parameters.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from changefeed.core.secret_names import is_secret


class ParameterKind(StrEnum):
    """How the value of a parameter is written."""

    TEXT = "text"
    FLAG = "true or false"
    NUMBER = "number"
    CHOICE = "choice"
    SIZE = "size"
    DURATION = "duration"
    BASE64 = "base 64"
    URL = "URL"
    PATH = "path"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a sink's URI.

    Attributes:
        name: the name in the URI; ``fs.*`` stands for all parameters that begin with ``fs.``.
        summary: what it does, one sentence.
        kind: how its value is written.
        values: the choices of a :attr:`ParameterKind.CHOICE`, the default first.
        default: the default as text; empty if the parameter has none.
        secret: its value is never shown. Redaction uses only names, so that every listing hides
        the value: the name of a secret must say that it is one.
        schemes: the schemes of the sink that take the parameter; empty means all.

    Raises:
        ValueError: ``secret`` contradicts the name, or a choice has no values.
    """

    name: str
    summary: str
    kind: ParameterKind = ParameterKind.TEXT
    values: tuple[str, ...] = ()
    default: str = ""
    secret: bool = False
    schemes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.begins and self.secret != is_secret(self.name):
            said = "is hidden by its name" if is_secret(self.name) else "would be shown"
            raise ValueError(
                f"parameter {self.name} has secret={self.secret} but {said}: call a secret "
                "..password, ..token, ..secret or ..key, and nothing else"
            )
        if (self.kind is ParameterKind.CHOICE) != bool(self.values):
            raise ValueError(f"parameter {self.name}: a choice, and nothing else, has values")

    @property
    def begins(self) -> bool:
        """Whether it stands for all parameters whose name begins with its prefix."""
        return self.name.endswith("*")

    @property
    def written(self) -> str:
        """The form of its value, as text."""
        return ", ".join(self.values) or self.kind.value

    def means(self, name: str) -> bool:
        """Whether the declaration covers a parameter with this name."""
        return name.startswith(self.name[:-1]) if self.begins else name == self.name


def of_scheme(declared: Sequence[Parameter], scheme: str) -> tuple[Parameter, ...]:
    """The parameters that URIs of a scheme take."""
    return tuple(one for one in declared if not one.schemes or scheme in one.schemes)

"""Which options need or exclude each other, and why: one table of relations."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from changefeed.core.formats import TRAITS, formats_with
from changefeed.core.shapes import Deletes, Envelope, Unsent
from changefeed.options.row import OptionRow
from changefeed.options.table import (
    AVRO_SCHEMA_PREFIX,
    CONFLUENT_SCHEMA_REGISTRY,
    DEAD_LETTER_LIMIT,
    DEAD_LETTER_SHARE,
    DELETES,
    DELIVERY,
    DIFF,
    ENCODE_JSON_VALUE_NULL_AS_OBJECT,
    END_TIME,
    ENRICHED_PROPERTIES,
    ENVELOPE,
    FORMAT,
    INITIAL_SCAN,
    INITIAL_SCAN_ONLY,
    KEY_COLUMN,
    KEY_IN_VALUE,
    MVCC_TIMESTAMP,
    NO_INITIAL_SCAN,
    ON_ROW_ERROR,
    RESOLVED,
    ROW_IMAGES,
    ROW_IMAGES_MAX_DISK,
    SCHEMAS_ENABLE,
    TOPIC_IN_VALUE,
    TRANSACTION_METADATA,
    TRANSACTION_TOPIC,
    UNORDERED,
    UNSENT_VALUES,
    UPDATED,
    VERIFY,
    VERIFY_MAX_RATE,
    VERIFY_REPAIR,
)
from changefeed.options.types import Choice, Flag
from changefeed.options.values import Guarantee, InitialScan, OnRowError, RowImages


class GivenOptions(Protocol):
    """What a relation needs of options: typed values by row, and the names that were given."""

    def __getitem__(self, row: OptionRow[Any], /) -> Any: ...
    @property
    def given(self) -> frozenset[str]: ...


@dataclass(frozen=True, slots=True)
class Term:
    """A condition on one option: it is given (and on), or has one of ``values``."""

    row: OptionRow[Any]
    values: tuple[StrEnum, ...] = ()

    def holds(self, options: GivenOptions) -> bool:
        """Whether the options meet the condition."""
        value = options[self.row]
        if self.values:
            return value in self.values
        if isinstance(self.row.type, Flag):
            return bool(value)
        return self.row.name in options.given

    def named(self, options: GivenOptions) -> str:
        """The option as these options have it, for a message."""
        if isinstance(self.row.type, Choice) and self.row is not INITIAL_SCAN:
            return f"{self.row.name}={options[self.row]}"
        if self.row is INITIAL_SCAN:
            return f"{self.row.name}='{options[self.row]}'"
        return self.row.name

    def written(self) -> str:
        """The condition for the docs."""
        if not self.values:
            return f"`{self.row.name}`"
        return f"`{self.row.name}` = " + " or ".join(f"`{value}`" for value in self.values)


@dataclass(frozen=True, slots=True)
class OptionRelation:
    """Two conditions, the sentence when they clash, and why they do.

    ``excludes``: both hold is wrong. Else: the first without the second is wrong.
    """

    first: Term
    second: Term
    excludes: bool
    message: str
    because: str

    def broken(self, options: GivenOptions) -> bool:
        """Whether the options break the rule."""
        return self.first.holds(options) and self.second.holds(options) == self.excludes


#: Every relation, in the order problems are reported.
RELATIONS: list[OptionRelation] = []


def _term(side: Term | OptionRow[Any]) -> Term:
    return side if isinstance(side, Term) else Term(side)


def REQUIRES(row: OptionRow[Any], needed: OptionRow[Any], *, because: str) -> None:
    """``row`` can be used only together with ``needed``."""
    RELATIONS.append(
        OptionRelation(
            Term(row), Term(needed), False, f"{row.name} requires the {needed.name} option", because
        )
    )


def EXCLUDES(
    first: Term | OptionRow[Any],
    second: Term | OptionRow[Any],
    *,
    because: str,
    message: str = "cannot specify both {first} and {second}",
) -> None:
    """``first`` and ``second`` must not both hold; ``message`` may name them as ``{first}``."""
    RELATIONS.append(OptionRelation(_term(first), _term(second), True, message, because))


def ONLY_WITH(
    row: Term | OptionRow[Any],
    needed: OptionRow[Any],
    *values: StrEnum,
    because: str,
    message: str = "",
) -> None:
    """``row`` means something only when ``needed`` has one of ``values``; the first is named."""
    text = message or f"{{first}} is only usable with {needed.name}={values[0]}"
    RELATIONS.append(OptionRelation(_term(row), Term(needed, values), False, text, because))


_W, _R, _B, _E = Envelope.WRAPPED, Envelope.ROW, Envelope.BARE, Envelope.ENRICHED
_C, _D = Envelope.CHANGED, Envelope.DEBEZIUM
_NO_PLACE = "the other envelopes have no place for it"
_TEXT = formats_with(lambda traits: traits.text)
_SCHEMAS = formats_with(lambda traits: traits.schemas)
_ONE_SCAN = "a scan alone has one timestamp and no changes"

REQUIRES(VERIFY_REPAIR, VERIFY, because="nothing looks for rows to repair without it")
REQUIRES(VERIFY_MAX_RATE, VERIFY, because="it is the rate of these comparisons")
REQUIRES(
    KEY_COLUMN,
    UNORDERED,
    because="messages of one row may then go to several partitions, where their order is lost",
)
EXCLUDES(
    RESOLVED,
    UNORDERED,
    message="resolved timestamps cannot be guaranteed to be correct in unordered mode",
    because="an older change of a row may arrive after the timestamp that covers it",
)
for _limit in (DEAD_LETTER_LIMIT, DEAD_LETTER_SHARE):
    ONLY_WITH(
        _limit, ON_ROW_ERROR, OnRowError.DEAD_LETTER, because="without it there are no dead letters"
    )
EXCLUDES(
    Term(ON_ROW_ERROR, (OnRowError.DEAD_LETTER,)),
    Term(DELIVERY, (Guarantee.EXACTLY_ONCE,)),
    message="{first} is incompatible with {second}",
    because="to find a row that is refused, the rows beside it are sent again",
)
EXCLUDES(
    Term(ON_ROW_ERROR, (OnRowError.DEAD_LETTER,)),
    TRANSACTION_METADATA,
    message="{first} is incompatible with {second}",
    because="the end of a transaction says how many changes it has, and a dead letter is missing",
)
EXCLUDES(INITIAL_SCAN, NO_INITIAL_SCAN, because="they are two spellings of one option")
EXCLUDES(INITIAL_SCAN, INITIAL_SCAN_ONLY, because="they are two spellings of one option")
EXCLUDES(
    INITIAL_SCAN_ONLY,
    NO_INITIAL_SCAN,
    message="cannot specify both initial_scan='only' and no_initial_scan",
    because="they are two spellings of one option",
)
for _changing in (END_TIME, RESOLVED, DIFF, MVCC_TIMESTAMP, UPDATED):
    EXCLUDES(Term(INITIAL_SCAN, (InitialScan.ONLY,)), _changing, because=_ONE_SCAN)
EXCLUDES(
    Term(INITIAL_SCAN, (InitialScan.ONLY,)),
    Term(DELETES, (Deletes.ONLY,)),
    because="a scan alone has no deletes",
)
ONLY_WITH(DIFF, ENVELOPE, _W, _E, _D, because=_NO_PLACE)
ONLY_WITH(KEY_IN_VALUE, ENVELOPE, _W, _B, _E, because=_NO_PLACE)
ONLY_WITH(TOPIC_IN_VALUE, ENVELOPE, _W, _B, because=_NO_PLACE)
ONLY_WITH(UPDATED, ENVELOPE, _W, _R, _B, _E, _C, because="there is no value to hold it")
ONLY_WITH(MVCC_TIMESTAMP, ENVELOPE, _W, _R, _B, _E, _C, because="there is no value to hold it")
ONLY_WITH(ENRICHED_PROPERTIES, ENVELOPE, _E, because=_NO_PLACE)
ONLY_WITH(SCHEMAS_ENABLE, ENVELOPE, _D, because="the other envelopes are not Kafka Connect's")
ONLY_WITH(SCHEMAS_ENABLE, FORMAT, *_TEXT, because="the registry has the schemas of the others")
EXCLUDES(
    Term(ENVELOPE, (_D,)),
    Term(FORMAT, formats_with(lambda traits: not traits.debezium)),
    message="{first} is incompatible with {second}",
    because="Debezium's messages are written as JSON or Avro",
)
EXCLUDES(
    Term(ENVELOPE, (_D,)),
    ENCODE_JSON_VALUE_NULL_AS_OBJECT,
    because="Debezium's messages hold json as text, where null is a text",
)
ONLY_WITH(
    ENCODE_JSON_VALUE_NULL_AS_OBJECT, FORMAT, *_TEXT, because="the other formats hold json as text"
)
for _never, _because in dict.fromkeys((TRAITS[f].never, TRAITS[f].because) for f in _SCHEMAS):
    EXCLUDES(
        Term(FORMAT, tuple(f for f in _SCHEMAS if TRAITS[f].never == _never)),
        Term(ENVELOPE, _never),
        message="{first} is incompatible with {second}",
        because=_because,
    )
ONLY_WITH(
    TRANSACTION_METADATA,
    ENVELOPE,
    *(_W, _R, _B, _E, _C, _D),
    message="{first} is incompatible with envelope=key_only",
    because="there is no value to hold it",
)
ONLY_WITH(
    TRANSACTION_METADATA,
    FORMAT,
    *_TEXT,
    because="the schemas of the other formats have no place for it",
)
EXCLUDES(
    Term(INITIAL_SCAN, (InitialScan.ONLY,)),
    TRANSACTION_METADATA,
    because="an initial scan belongs to no transaction",
)
EXCLUDES(
    TRANSACTION_METADATA,
    Term(DELIVERY, (Guarantee.EXACTLY_ONCE,)),
    message="{first} is incompatible with {second}",
    because="the target keeps progress per table, and the begin and the end of a transaction "
    "belong to no table",
)
REQUIRES(TRANSACTION_TOPIC, TRANSACTION_METADATA, because="nothing else is sent to that topic")
_OMIT = Term(UNSENT_VALUES, (Unsent.OMIT,))
ONLY_WITH(
    _OMIT,
    FORMAT,
    *_TEXT,
    because="a record has all its fields: an omitted one could not be distinguished from NULL",
)
EXCLUDES(
    _OMIT,
    Term(ENVELOPE, (_D,)),
    message="{first} is incompatible with {second}",
    because="Debezium's messages have all columns, and a placeholder of their own",
)
_STORED = Term(ROW_IMAGES, (RowImages.STORE,))
for _no_scan in (InitialScan.NO, InitialScan.ONLY):
    EXCLUDES(
        _STORED,
        Term(INITIAL_SCAN, (_no_scan,)),
        because="the copy begins with a scan of the table, and is for the changes after it",
    )
ONLY_WITH(ROW_IMAGES_MAX_DISK, ROW_IMAGES, RowImages.STORE, because="nothing else keeps row images")
_NO_SCHEMA = "the other formats have no schema"
for _schemas in (CONFLUENT_SCHEMA_REGISTRY, AVRO_SCHEMA_PREFIX):
    ONLY_WITH(
        _schemas,
        FORMAT,
        *_SCHEMAS,
        message="{first} is only usable with " + " or ".join(f"format={f}" for f in _SCHEMAS),
        because=_NO_SCHEMA,
    )
for _format in formats_with(lambda traits: traits.row_alone):
    _traits = TRAITS[_format]
    if _traits.line:
        ONLY_WITH(
            Term(FORMAT, (_format,)),
            INITIAL_SCAN,
            InitialScan.ONLY,
            message=f"format={_format} is only usable with initial_scan_only",
            because=f"a line of {_format} cannot say that a row was changed or deleted",
        )
    EXCLUDES(
        Term(FORMAT, (_format,)),
        Term(ENVELOPE, _traits.never),
        message="{first} is incompatible with {second}",
        because=_traits.because,
    )
    for _other in (KEY_IN_VALUE, TOPIC_IN_VALUE):
        EXCLUDES(
            Term(FORMAT, (_format,)),
            _other,
            message="{first} is incompatible with {second}",
            because=_traits.row_alone,
        )

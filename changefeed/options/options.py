"""The options of one changefeed: checked, typed, stored and shown.

Everything is read from the table in :mod:`changefeed.options.table` (re-exported here) and the
relations in :mod:`changefeed.options.relations`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, overload

from changefeed.core.clock import Clock, SystemClock, Timestamp
from changefeed.core.errors import ChangefeedError, Code, Span, raise_all
from changefeed.core.formats import TRAITS, Format
from changefeed.core.quantities import parse_duration
from changefeed.core.shapes import Deletes, Envelope, MessageValue
from changefeed.options.masking import mask_statement
from changefeed.options.relations import RELATIONS
from changefeed.options.row import OPTIONS, OptionRow
from changefeed.options.table import (
    COMPRESSION,
    CURSOR,
    DELETES,
    DELIVERY,
    DIFF,
    END_TIME,
    ENVELOPE,
    FORMAT,
    INITIAL_SCAN,
    INITIAL_SCAN_ONLY,
    KAFKA_SINK_CONFIG,
    KEY_IN_VALUE,
    MESSAGE_VALUE,
    MIN_CHECKPOINT_FREQUENCY,
    NO_INITIAL_SCAN,
    RESOLVED,
    ROW_IMAGES,
    SCHEMA_CHANGE_EVENTS,
    SCHEMA_CHANGE_POLICY,
    TOPIC_IN_VALUE,
    redact_option,
)
from changefeed.options.types import OptionType, ValueRule
from changefeed.options.values import Feature, Guarantee, InitialScan, RowImages, SchemaChangePolicy
from grammar import foreign, nodes
from grammar.spelling import did_you_mean

__all__ = ["OptionReader", "Options", "SinkAbilities", "alter_options"]
__all__ += ["parse_add_options", "parse_new_cursor", "parse_options", "read_duration"]
__all__ += ["rows_of", "to_span"]

T = TypeVar("T")


class SinkAbilities(Protocol):
    """What the check of options needs of a sink: a part of ``sinks.base.Capabilities``."""

    @property
    def formats(self) -> tuple[str, ...]: ...
    @property
    def envelopes(self) -> tuple[str, ...]: ...
    @property
    def key_in_value(self) -> bool: ...
    @property
    def topic_in_value(self) -> bool: ...
    @property
    def exactly_once(self) -> bool: ...
    @property
    def resolved(self) -> bool: ...
    @property
    def compressions(self) -> tuple[str, ...]: ...
    @property
    def owns_targets(self) -> bool: ...
    @property
    def features(self) -> frozenset[Feature]: ...
    @property
    def options(self) -> tuple[OptionRow[Any], ...]: ...


def rows_of(sink: SinkAbilities | None) -> dict[str, OptionRow[Any]]:
    """The options that feeds into a sink can have: the general ones that it takes, and its own.

    Without a sink they are all options of the table.
    """
    if sink is None:
        return OPTIONS
    own = {row.name: row for row in sink.options}
    return {name: row for name, row in OPTIONS.items() if row.fits(sink.features)} | own


def _known(sink: SinkAbilities | None) -> dict[str, OptionRow[Any]]:
    """All options of the table, also those that the sink does not take, and the sink's own."""
    return OPTIONS | {row.name: row for row in sink.options} if sink is not None else OPTIONS


class Options(Mapping[str, Any]):
    """The options of one feed: every option's typed value, given or default.

    ``options[RESOLVED]`` is typed by the row; ``options["resolved"]`` is the same value.
    """

    def __init__(
        self,
        raw: Mapping[str, str],
        values: Mapping[str, object],
        abilities: SinkAbilities | None = None,
    ) -> None:
        """``raw`` is what was given; ``values`` the typed values of the same names."""
        self._raw = dict(raw)
        self._values: dict[str, object] = {
            **{row.name: row.default for row in _known(abilities).values()},
            **values,
        }
        self._imply(abilities)

    def _imply(self, abilities: SinkAbilities | None) -> None:
        values, raw = self._values, self._raw
        if raw.get(ENVELOPE.name, "").strip().lower() == "diff":
            values[DIFF.name] = True
        if ENVELOPE.name not in raw and abilities is not None and abilities.envelopes:
            values[ENVELOPE.name] = Envelope(abilities.envelopes[0])
        if INITIAL_SCAN.name not in raw:
            if NO_INITIAL_SCAN.name in raw or CURSOR.name in raw:
                values[INITIAL_SCAN.name] = InitialScan.NO
            if INITIAL_SCAN_ONLY.name in raw:
                values[INITIAL_SCAN.name] = InitialScan.ONLY
        self._keeps_rows = abilities is not None and abilities.owns_targets
        self._carries_bytes = abilities is not None and MESSAGE_VALUE.fits(abilities.features)
        envelopes = (Envelope.WRAPPED, Envelope.BARE, Envelope.ENRICHED)
        row_alone = TRAITS[Format(str(values[FORMAT.name]))].row_alone
        has_place = values[ENVELOPE.name] in envelopes and not row_alone
        if abilities is not None and abilities.key_in_value and has_place:
            values[KEY_IN_VALUE.name] = True
        if abilities is not None and abilities.topic_in_value and has_place:
            # The enriched envelope has no place for it; its source names the table.
            values[TOPIC_IN_VALUE.name] = values[ENVELOPE.name] is not Envelope.ENRICHED

    @overload
    def __getitem__(self, key: OptionRow[T]) -> T: ...
    @overload
    def __getitem__(self, key: str) -> Any: ...
    def __getitem__(self, key: OptionRow[Any] | str) -> Any:
        return self._values[key if isinstance(key, str) else key.name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Options({self.display()})"

    @property
    def given(self) -> frozenset[str]:
        """The names of the options that the statement had."""
        return frozenset(self._raw)

    @property
    def message_value(self) -> MessageValue:
        """What the value of a logical message is; without the option, the content where it fits."""
        chosen = self[MESSAGE_VALUE]
        if chosen is not None:
            return chosen
        enveloped = self[ENVELOPE] in (Envelope.DEBEZIUM, Envelope.KEY_ONLY)
        fits = self._carries_bytes and not enveloped and TRAITS[Format(self[FORMAT].value)].text
        return MessageValue.CONTENT if fits else MessageValue.ROW

    @property
    def keeps_rows(self) -> bool:
        """The sink has a row or a document for each key."""
        return self._keeps_rows

    @property
    def needs_before(self) -> bool:
        """Messages are made of the whole row before a change, too."""
        return bool(self[DIFF]) or self[ENVELOPE] is Envelope.CHANGED

    @property
    def stores_images(self) -> bool:
        """Row images of its tables are kept in addition to the change log."""
        return self[ROW_IMAGES] is RowImages.STORE

    @property
    def needs_logged_before(self) -> bool:
        """As :attr:`needs_before`, and nothing but the source's log has those rows."""
        return self.needs_before and not self.stores_images

    @property
    def notes(self) -> tuple[str, ...]:
        """Notices about options that are valid but doubtful."""
        return tuple(note for look in _NOTES if (note := look(self)))

    def to_dict(self) -> dict[str, str]:
        """The form for the job table; an option without a value has the empty text.

        Contains secrets. Times relative to the statement are instants here.
        """
        return dict(self._raw)

    @classmethod
    def from_dict(
        cls, stored: Mapping[str, str], *, abilities: SinkAbilities | None = None
    ) -> Options:
        """Options as the job table kept them; relations and sink were checked when stored.

        Without ``abilities`` an option that is not in the table stays a text: it may be the sink's.

        Raises:
            ChangefeedError: CF1203 or CF1204, for a table that another version wrote.
        """
        reading = OptionReader(SystemClock(), "", sink=abilities, stored=True)
        for name, text in stored.items():
            if abilities is None and name not in OPTIONS:
                reading.raw[name] = reading.values[name] = text
            else:
                reading.take(name, text, None, None)
        raise_all(reading.problems)
        return cls(reading.raw, reading.values, abilities)

    def display(self) -> dict[str, str]:
        """The given options, with secrets redacted and instants as dates where those are exact."""
        return {name: _shown(name, text) for name, text in self._raw.items()}

    def nodes(self) -> tuple[nodes.Option, ...]:
        """The given options as syntax, with secrets redacted, for SHOW CREATE."""
        return tuple(
            nodes.Option(name, nodes.Literal(text) if text else None)
            for name, text in self.display().items()
        )


def _shown(name: str, text: str) -> str:
    row = OPTIONS.get(name)
    if row is not None and text and not row.secret:
        text = row.type.shown(text)
    return redact_option(name, text)


def _rare_checkpoints(options: Options) -> str:
    if options[MIN_CHECKPOINT_FREQUENCY] < 0.5:
        return "min_checkpoint_frequency below 500ms costs more than it saves"
    return ""


def _events_without_policy(options: Options) -> str:
    ignored = options[SCHEMA_CHANGE_POLICY] is SchemaChangePolicy.IGNORE
    if ignored and SCHEMA_CHANGE_EVENTS.name in options.given:
        return "schema_change_events has no effect with schema_change_policy = 'ignore'"
    return ""


_NOTES = (_rare_checkpoints, _events_without_policy)


# ------------------------------------------------------------------------------- parsing


#: The schemes of the sinks that have a feature.
Takers = Callable[[Feature], Sequence[str]]


class OptionReader:
    """Turns names and texts into typed values; problems are collected, not raised."""

    def __init__(
        self,
        clock: Clock,
        text: str,
        *,
        scheme: str = "",
        sink: SinkAbilities | None = None,
        takers: Takers | None = None,
        stored: bool = False,
        beside: Collection[str] = (),
    ) -> None:
        self.clock = clock
        self.beside = beside
        self.sink = sink
        self.rows = _known(sink)
        self.takers = takers
        self.text = mask_statement(text)
        self.scheme = scheme
        self.stored = stored
        self.raw: dict[str, str] = {}
        self.values: dict[str, object] = {}
        self.spans: dict[str, Span | None] = {}
        self.problems: list[ChangefeedError] = []

    def problem(
        self, code: str, message: str, span: Span | None, hint: str = "", detail: str = ""
    ) -> None:
        self.problems.append(
            ChangefeedError(
                code, message, detail=detail, hint=hint, span=span, text=self.text or None
            )
        )

    def take_node(self, node: nodes.Option) -> None:
        span = to_span(node.span)
        if node.name in self.spans:
            self.problem(
                Code.OPTIONS_CONTRADICT, f'option "{node.name}" specified multiple times', span
            )
            return
        self.spans[node.name] = span
        value = node.value
        row = self.rows.get(node.name)
        if row is None:
            self.problem(
                Code.UNKNOWN_OPTION, f'invalid option "{node.name}"', span, self.suggest(node.name)
            )
        elif value is None and row.type.takes is ValueRule.VALUE:
            self.problem(
                Code.INVALID_OPTION_VALUE,
                f'option "{row.name}" requires a value',
                span,
                f"write {row.example}",
            )
        elif value is not None and not row.takes_value:
            self.problem(
                Code.INVALID_OPTION_VALUE,
                f'option "{row.name}" does not take a value',
                to_span(value.span) or span,
                f"write {row.name} alone, or leave it out",
            )
        else:
            value_span = span if value is None else to_span(value.span) or span
            self.take(row.name, "" if value is None else value.text, value, value_span)

    def take(self, name: str, text: str, value: nodes.Literal | None, span: Span | None) -> None:
        row = self.rows.get(name)
        if row is None:
            self.problem(Code.UNKNOWN_OPTION, f'invalid option "{name}"', span, self.suggest(name))
            return
        if row.type.takes is ValueRule.VALUE and not text.strip():
            self.problem(Code.INVALID_OPTION_VALUE, f'option "{name}" requires a value', span)
            return
        reader: OptionType[object] = row.type.again() if self.stored else row.type
        try:
            typed = reader.read(name, text, self.clock)
        except ValueError as error:
            self.problem(Code.INVALID_OPTION_VALUE, str(error), span, self.suggest_value(row, text))
            return
        self.values[name] = typed
        self.raw[name] = row.type.stored(text, typed)

    def suggest(self, name: str) -> str:
        if known_elsewhere := foreign.option(name):
            return known_elsewhere
        fitting = [*rows_of(self.sink), *self.beside]
        near = did_you_mean(name, fitting) or did_you_mean(name, self.rows)
        sink = f" of a {self.scheme} sink" if self.scheme else ""
        listed = f"\\h CREATE CHANGEFEED lists the options{sink}."
        return f'did you mean "{near}"? {listed}' if near else listed

    def suggest_value(self, row: OptionRow[Any], text: str) -> str:
        near = did_you_mean(text, row.values) if row.values else None
        return f"did you mean '{near}'?" if near else f"for example: {row.example}"


def to_span(span: nodes.Span | None) -> Span | None:
    """A span of the syntax as one of an error."""
    return None if span is None else Span(span.start, span.end)


def read_duration(name: str, value: nodes.Literal, example: str) -> float:
    """The seconds of a duration that a statement has outside of its options.

    Raises:
        ChangefeedError: CF1204.
    """
    try:
        return parse_duration(value.text)
    except ValueError as error:
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE,
            f"{name}: {error}",
            hint=f"write it as '{example}'.",
            span=to_span(value.span),
        ) from None


def parse_options(
    options: Sequence[nodes.Option],
    *,
    scheme: str = "",
    capabilities: SinkAbilities | None = None,
    takers: Takers | None = None,
    text: str = "",
    clock: Clock | None = None,
    beside: Collection[str] = (),
) -> Options:
    """Check the options of a statement and type them.

    Args:
        options: the WITH list.
        scheme: of the sink's URI, ``external`` resolved; empty for a sinkless feed.
        capabilities: what the sink can do; None checks nothing of it.
        takers: the schemes of the sinks with a feature, for the errors.
        text: the statement, for the errors.
        clock: its time is what intervals count from.
        beside: names of options of the same list that other code reads, for suggestions.

    Raises:
        ChangefeedError: every problem at once: CF1203 unknown, CF1204 value, CF1205 relations,
            CF1206 the sink cannot.
    """
    reading = OptionReader(
        clock or SystemClock(), text, scheme=scheme, sink=capabilities, takers=takers, beside=beside
    )
    for node in options:
        reading.take_node(node)
    return _finish(reading)


def _finish(reading: OptionReader) -> Options:
    result = Options(reading.raw, reading.values, reading.sink)
    _check_sink(result, reading, reading.sink)
    _check_relations(result, reading)
    _check_times(result, reading)
    _check_compression(result, reading)
    raise_all(sorted(reading.problems, key=_place))
    return result


def _place(problem: ChangefeedError) -> int:
    return problem.span.start if problem.span else -1


def _check_sink(options: Options, reading: OptionReader, sink: SinkAbilities | None) -> None:
    if sink is None:
        return
    for name in reading.raw:
        row = reading.rows.get(name)
        if row is None:  # another sink brought it
            _refuse(reading, name, f"option {name}")
        elif not row.fits(sink.features):
            _refuse(reading, name, f"option {name}", row.feature)
    if RESOLVED.name in options.given and not sink.resolved:
        _refuse(reading, RESOLVED.name, f"option {RESOLVED.name}")
    if options[DELIVERY] is Guarantee.EXACTLY_ONCE and not sink.exactly_once:
        reading.problem(
            Code.OPTION_DOES_NOT_FIT_SINK,
            "this sink is incompatible with delivery=exactly_once",
            reading.spans.get(DELIVERY.name),
            "leave it out: every change arrives at least once, and after a crash or an outage "
            "some arrive again, with the same key and timestamp.",
            detail="it cannot commit rows and progress in one step, nor tell a repeated row",
        )
    if options[DELETES] is Deletes.SOFT and Feature.MERGED_TABLES not in sink.features:
        what = f"{DELETES.name}={Deletes.SOFT}"
        _refuse(reading, DELETES.name, what, Feature.MERGED_TABLES)
    able: tuple[tuple[OptionRow[Any], tuple[str, ...]], ...] = (
        (ENVELOPE, sink.envelopes),
        (FORMAT, sink.formats),
        (COMPRESSION, ("none", *sink.compressions)),
    )
    for row, values in able:
        if row.name in options.given and values and options[row] not in values:
            known = tuple(value for value in values if value in row.values)
            _refuse(reading, row.name, f"{row.name}={options[row]}", None, known)


def _refuse(
    reading: OptionReader,
    name: str,
    what: str,
    feature: Feature | None = None,
    values: Sequence[str] = (),
) -> None:
    hint = f"it takes {name} = {' or '.join(repr(value) for value in values)}" if values else ""
    if feature is not None:
        hint = f"it is for sinks with {feature.value}"
        if reading.takers is not None:
            hint += f": {', '.join(sorted(reading.takers(feature)))}"
    span = reading.spans.get(name)
    reading.problem(
        Code.OPTION_DOES_NOT_FIT_SINK, f"this sink is incompatible with {what}", span, hint
    )


#: Options that another one stands for: where to point when the other was written.
_IMPLIED_BY = {
    DIFF.name: (ENVELOPE.name,),
    INITIAL_SCAN.name: (INITIAL_SCAN_ONLY.name, NO_INITIAL_SCAN.name, CURSOR.name),
}


def _check_relations(options: Options, reading: OptionReader) -> None:
    for relation in RELATIONS:
        if not relation.broken(options):
            continue
        message = relation.message.format(
            first=relation.first.named(options), second=relation.second.named(options)
        )
        sides = (relation.second.row.name, relation.first.row.name)
        names = [name for side in sides for name in (side, *_IMPLIED_BY.get(side, ()))]
        span = next((found for name in names if (found := reading.spans.get(name))), None)
        reading.problem(Code.OPTIONS_CONTRADICT, message, span, detail=relation.because)


def _check_times(options: Options, reading: OptionReader) -> None:
    """CockroachDB compares with the statement's time: the cursor, or now without one."""
    end = options[END_TIME]
    if end is None or END_TIME.name not in reading.spans:
        return
    cursor = options[CURSOR]
    start = cursor if isinstance(cursor, Timestamp) else reading.clock.now()
    if end < start:
        reading.problem(
            Code.OPTIONS_CONTRADICT,
            f"specified end time {end} cannot be less than statement time {start}",
            reading.spans.get(END_TIME.name),
        )


def _check_compression(options: Options, reading: OptionReader) -> None:
    if COMPRESSION.name in options.given and options[KAFKA_SINK_CONFIG].compression:
        reading.problem(
            Code.OPTIONS_CONTRADICT,
            "cannot specify both compression and Compression of kafka_sink_config",
            reading.spans.get(COMPRESSION.name),
            detail="they are two spellings of one option",
        )


# ------------------------------------------------------------------------------- ALTER


def alter_options(
    current: Options,
    changes: Sequence[nodes.Option] = (),
    removed: Sequence[nodes.Name] = (),
    *,
    scheme: str = "",
    capabilities: SinkAbilities | None = None,
    takers: Takers | None = None,
    text: str = "",
    clock: Clock | None = None,
) -> Options:
    """The options after ``SET changes`` and ``UNSET removed``; ``current`` is not changed.

    Raises:
        ChangefeedError: CF1205 for an option that ALTER may not change, else as
            :func:`parse_options`.
    """
    reading = OptionReader(
        clock or SystemClock(), text, scheme=scheme, sink=capabilities, takers=takers
    )
    for node in changes:
        if _may_alter(node.name, node.span, "alter", reading):
            reading.take_node(node)
    for gone in removed:
        if gone.text in reading.spans:
            reading.problem(
                Code.OPTIONS_CONTRADICT,
                f'option "{gone.text}" specified multiple times',
                to_span(gone.span),
            )
        _may_alter(gone.text, gone.span, "unset", reading)
    dropped = {gone.text for gone in removed}
    kept = {key: text for key, text in current.to_dict().items() if key not in dropped}
    for name, stored in kept.items():
        if name not in reading.spans:
            reading.raw[name] = stored
            reading.values[name] = current[name]
    return _finish(reading)


def _may_alter(name: str, span: nodes.Span | None, verb: str, reading: OptionReader) -> bool:
    row = reading.rows.get(name)
    if name == "sink":
        hint = "a feed keeps a sink: ALTER CHANGEFEED ... INTO 'uri' moves it"
        reading.problem(
            Code.OPTIONS_CONTRADICT, f'cannot {verb} option "sink"', to_span(span), hint
        )
        return False
    if row is None:
        if verb == "unset":
            reading.problem(
                Code.UNKNOWN_OPTION,
                f'invalid option "{name}"',
                to_span(span),
                reading.suggest(name),
            )
        return True
    if row.alterable and not (row is CURSOR and verb == "unset"):
        return True
    hint = "it belongs to the start of a feed: DROP the feed and CREATE it again."
    reading.problem(Code.OPTIONS_CONTRADICT, f'cannot {verb} option "{name}"', to_span(span), hint)
    return False


def parse_new_cursor(option: nodes.Option, *, text: str = "", clock: Clock) -> Timestamp:
    """The ``cursor`` of ``ALTER CHANGEFEED .. SET``.

    Raises:
        ChangefeedError: a wrong value; CF1303 the offset of a connector.
    """
    reading = OptionReader(clock, text)
    reading.take_node(option)
    cursor = _finish(reading)[CURSOR]
    if isinstance(cursor, Timestamp):
        return cursor
    raise ChangefeedError(
        Code.NOT_SUPPORTED,
        "a feed begins at a connector's offset once, when it is created",
        hint="give a time: cursor = '-1h'",
        span=to_span(option.span),
    )


def parse_add_options(options: Sequence[nodes.Option], *, text: str = "") -> InitialScan:
    """The WITH list of ``ALTER CHANGEFEED .. ADD``: whether the new tables are scanned.

    Raises:
        ChangefeedError: another option, or a wrong value.
    """
    allowed = {INITIAL_SCAN.name, NO_INITIAL_SCAN.name, INITIAL_SCAN_ONLY.name}
    reading = OptionReader(SystemClock(), text)
    for node in options:
        if node.name in OPTIONS and node.name not in allowed:
            hint = "ADD takes initial_scan only; SET changes the feed's options"
            reading.problem(
                Code.OPTIONS_CONTRADICT,
                f'option "{node.name}" is not allowed with ADD',
                to_span(node.span),
                hint,
            )
        else:
            reading.take_node(node)
    return _finish(reading)[INITIAL_SCAN]

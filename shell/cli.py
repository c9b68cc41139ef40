"""The command line. ``--help`` and ``--version`` load nothing of changefeed."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

import click

from changefeed import __version__
from changefeed.core.errors import ChangefeedError
from changefeed.core.loading import loading
from changefeed.core.telemetry import LogFormat
from changefeed.spark.settings import EngineOption, SparkSettings, check_staging, parse_property
from shell.exits import Exit, exit_status
from shell.render.formats import OutputFormat

if TYPE_CHECKING:
    from shell.diagnostics import Diagnostics

_ORDER = "shell.cli.order"

_EPILOG = (
    "Exit status: 0 ok, 1 a statement failed, 2 wrong flags, or something to do (apply --plan), "
    "3 state, source or sink not reachable, 4 timed out, 5 something differs (VERIFY, "
    "log verify), 130 interrupted, 141 reader of the output gone, 143 terminated. "
    "\\h at the prompt lists the statements."
)

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class StateChoice:
    """Which state, and how Spark runs if it runs here."""

    state: str | None
    spark: SparkSettings
    max_memory: int | None = None
    max_disk: int | None = None

    def over(self, other: StateChoice) -> StateChoice:
        """These where they are given, else the other's."""
        return StateChoice(
            self.state or other.state,
            self.spark.over(other.spark),
            self.max_memory or other.max_memory,
            self.max_disk or other.max_disk,
        )

    @property
    def directory(self) -> str:
        """What names the state: a flag, before the environment."""
        from shell.places import default_state

        return self.state or os.environ.get("CHANGEFEED_STATE") or default_state()


class _ClosedPipe(Exception):
    """The reader of standard output closed the pipe."""


class _OrderedGroup(click.Group):
    """Keeps the order of the flags: ``-c`` and ``-f`` run as they were given.

    A closed pipe leaves it as an exception that click does not know: click would end the process
    with status 1.
    """

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*args, **extra)
        except BrokenPipeError as error:
            raise _ClosedPipe from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ClosedPipe from error

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(list(args))
            ctx.meta[_ORDER] = [parameter.name for parameter in order]
        return super().parse_args(ctx, args)


def _properties(
    context: click.Context, parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    try:
        return tuple(parse_property(text) for text in value)
    except ChangefeedError as error:
        raise click.BadParameter(f"{error.message}; {error.hint}", context, parameter) from error


def _reference(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    from changefeed.api import require_reference

    try:
        return require_reference(value)
    except ChangefeedError as error:
        raise click.BadParameter(f"{error.message}; {error.hint}", context, parameter) from error


def _key_option(command: F) -> F:
    """``--state-key``, for this process and its children, each of which opens the state."""

    @functools.wraps(command)
    def keyed(*args: Any, state_key: str | None, **given: Any) -> Any:
        if state_key is not None:
            from changefeed.api import STATE_KEY_VARIABLE

            os.environ[STATE_KEY_VARIABLE] = state_key
        return command(*args, **given)

    option = click.option(
        "--state-key",
        metavar="REFERENCE",
        callback=_reference,
        help="Where the key is that encrypts the secrets of the state: ${file:/path}, ${env:NAME} "
        "or ${exec:command} (default: $CHANGEFEED_STATE_KEY, else they are not encrypted).",
    )
    return cast(F, option(keyed))


def _size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Bytes, as options of changefeeds write them: ``512MiB``, ``10GB``."""
    if value is None:
        return None
    from changefeed.options import parse_size

    try:
        size = parse_size(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}; write 512MiB or 10GB", context, parameter) from error
    if not size:
        raise click.BadParameter("the size must be greater than 0", context, parameter)
    return size


def _duration(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> float | None:
    """Seconds of ``10s`` or ``1m``."""
    if value is None:
        return None
    from changefeed.options import parse_duration

    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}; write 10s or 1m", context, parameter) from error


def _url(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """``http://host:port`` or ``https://..``, without a password."""
    if value is None:
        return None
    try:
        parts = urlsplit(value)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment:
        raise click.BadParameter("write http://host:port or https://host", context, parameter)
    if parts.username is not None:
        raise click.BadParameter(
            "the token does not belong into the URL: set CHANGEFEED_TOKEN or give --token-file",
            context,
            parameter,
        )
    return value


def _staging(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value:
        try:
            check_staging(value)
        except ChangefeedError as error:
            raise click.BadParameter(f"{error.message}; {error.hint}", context, parameter) from None
    return value


def _place_options(command: F) -> F:
    for option in (
        click.option(
            "--conf",
            metavar="NAME=VALUE",
            multiple=True,
            callback=_properties,
            help="A Spark property, as spark-submit takes it; may be repeated.",
        ),
        click.option(
            "--max-disk",
            "--max-disk-changefeed-storage",
            "max_disk",
            metavar="SIZE",
            callback=_size,
            help="The largest size of a source's change log on disk; above it reading waits "
            "(default: all but a reserve of the disk).",
        ),
        click.option(
            "--max-memory",
            "--max-changefeed-memory",
            "max_memory",
            metavar="SIZE",
            callback=_size,
            help="Memory limit for messages that feeds share (default: 64MiB).",
        ),
        click.option(
            "--engine",
            type=click.Choice([option.value for option in EngineOption]),
            default=EngineOption.AUTO.value,
            help="Where scans, backlogs and queries run for feeds that do not set engine "
            "(default: auto).",
        ),
        click.option("--heap", metavar="SIZE", help="Memory of Spark's JVM, as 2g."),
        click.option(
            "--master",
            "--spark",
            "master",
            metavar="URL|local|existing",
            help="Spark's master, the sc:// URL of a Spark Connect server, or existing for the "
            "session of this process (default: local, this machine).",
        ),
        click.option(
            "--staging",
            metavar="DIR|URL",
            envvar="CHANGEFEED_STAGING",
            callback=_staging,
            help="Where Spark's executors find the rows that the node prepared, if they cannot "
            "read its state: a directory, s3:// or hdfs:// (default: $CHANGEFEED_STAGING, "
            "else the state).",
        ),
        click.option(
            "--state",
            metavar="DIR|URL",
            help="Where the state is: a directory, or a postgresql:// URL "
            "(default: $CHANGEFEED_STATE, else the user's data folder).",
        ),
        _key_option,
    ):
        command = option(command)
    return command


@click.group(
    cls=_OrderedGroup,
    invoke_without_command=True,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("-c", "--command", "commands", multiple=True, metavar="STMT", help="Run statements.")
@click.option(
    "-f", "--file", "files", multiple=True, metavar="FILE", help="Run a file; - is standard input."
)
@click.option(
    "--format",
    "form",
    type=click.Choice([form.value for form in OutputFormat]),
    help="How results are written (default: table on a terminal, else csv).",
)
@_place_options
@click.option(
    "--url",
    metavar="URL",
    callback=_url,
    help="Run the statements at a node elsewhere, which serves this address by --http.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="With --url: the file that has the user's token (default: $CHANGEFEED_TOKEN).",
)
@click.option("--source", metavar="NAME|URI", help="The source of unqualified table names.")
@click.option(
    "--on-error",
    type=click.Choice(["stop", "continue"]),
    default="stop",
    show_default=True,
    help="Whether to stop after a failed statement or continue.",
)
@click.option("--timing", is_flag=True, help="Print the duration of each statement.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before DROP.")
@click.version_option(__version__, "--version", "-V", message="changefeed %(version)s")
@click.pass_context
def cli(
    context: click.Context,
    commands: tuple[str, ...],
    files: tuple[str, ...],
    form: str | None,
    state: str | None,
    master: str | None,
    heap: str | None,
    conf: tuple[tuple[str, str], ...],
    engine: str,
    staging: str | None,
    max_memory: int | None,
    max_disk: int | None,
    url: str | None,
    token_file: str | None,
    source: str | None,
    on_error: str,
    timing: bool,
    yes: bool,
) -> None:
    """Changefeeds by SQL. Without -c, -f or a pipe this opens the prompt."""
    spark = SparkSettings(master, heap, conf, EngineOption(engine), staging)
    place = StateChoice(state, spark, max_memory, max_disk)
    context.obj = place
    if context.invoked_subcommand is not None:
        for unwanted, flags in ((commands or files, "-c and -f do"), (url, "--url does")):
            if unwanted:
                raise click.UsageError(f"{flags} not go with {context.invoked_subcommand}")
        return
    token = _token(url, token_file, place)
    # Loaded on use: --help and --version need nothing of it.
    with loading():
        from shell.open import Request, open_shell

    given = {"commands": iter(commands), "files": iter(files)}
    inputs = [(name, next(given[name])) for name in context.meta.get(_ORDER, ()) if name in given]
    context.exit(
        open_shell(
            Request(
                place.directory,
                inputs=tuple(inputs),
                format=None if form is None else OutputFormat(form),
                source=source,
                go_on=on_error == "continue",
                timing=timing,
                sure=yes,
                spark=place.spark,
                max_memory=place.max_memory,
                max_disk=place.max_disk,
                url=url,
                token=token,
            )
        )
    )


def _token(url: str | None, file: str | None, place: StateChoice) -> str:
    """The token of ``--url``: from a file or the environment, as every user of the machine sees the
    command line."""
    if url is None:
        if file is not None:
            raise click.UsageError("--token-file goes with --url")
        return ""
    if replace(place, spark=SparkSettings()) != StateChoice(None, SparkSettings()):
        raise click.UsageError("--state, --max-memory and --max-disk do not go with --url")
    if file is None:
        return os.environ.get("CHANGEFEED_TOKEN", "").strip()
    try:
        return Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.FileError(file, getattr(error, "strerror", None) or "not a text") from error


def _address(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, int] | None:
    """``host:port``, or a port of this machine."""
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise click.BadParameter(f"{value!r} is not host:port", context, parameter)
    return host.strip("[]") or "127.0.0.1", int(port)


@cli.command()
@_place_options
@click.option(
    "--log",
    "logs",
    metavar="URL|DIR",
    envvar="CHANGEFEED_LOG",
    help="Keep the change logs in an object store, so that any node can go on after this one: "
    "s3://, gs://, azure:// or a directory that all nodes see; local moves them back to this "
    "machine. The state remembers it (default: $CHANGEFEED_LOG, else what the state remembers, "
    "else this machine).",
)
@click.option(
    "--lease",
    metavar="DURATION",
    callback=_duration,
    help="How long a node may be silent before another takes its sources, 3s to 60s; the state "
    "remembers it, and nodes take it up when they start (default: 10s).",
)
@click.option(
    "--max-copies",
    metavar="SIZE",
    callback=_size,
    help="Of a source's shared log (--log): how much of the store this node keeps on its disk; "
    "beyond it the oldest copies go, and are fetched again for a reader (default: all that the "
    "node had or read).",
)
@click.option(
    "--max-feeds",
    type=click.IntRange(min=1),
    help="How many feeds this node has room for: where other nodes share the logs (--log), they "
    "run those beyond. Without other nodes it runs all (default: 50 for each core).",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    callback=_address,
    help="Serve the status page, /metrics and the probes there, and the HTTP API on an address of "
    "this machine, or with --http-cert and --http-key.",
)
@click.option(
    "--pg",
    metavar="HOST:PORT",
    callback=_address,
    help="Serve PostgreSQL's protocol there, for psql, drivers and Grafana: on an address of this "
    "machine, or with --http-cert and --http-key.",
)
@click.option(
    "--http-cert",
    metavar="FILE",
    help="The certificate of --http and --pg with its chain, as PEM.",
)
@click.option(
    "--http-key",
    metavar="FILE",
    help="The key of --http-cert, as PEM.",
)
@click.option(
    "--http-login", is_flag=True, help="Ask for the token of a user on this machine, too."
)
@click.option(
    "--alert",
    "alerts",
    multiple=True,
    metavar="URI",
    envvar="CHANGEFEED_ALERT",
    help="Send alerts there: webhook-https://HOST/PATH (Alertmanager's format, or Slack's), "
    "smtp://HOST?from=..&to=.. or smtps://. changefeed alert URI tries it.",
)
@click.option(
    "--openlineage",
    metavar="URI",
    envvar="CHANGEFEED_OPENLINEAGE",
    help="Send runs of feeds and the lineage of their columns as OpenLineage's events there: "
    "webhook-https://HOST/api/v1/lineage or kafka://HOST:9092?topic=NAME.",
)
@click.option(
    "--otlp",
    metavar="URL",
    envvar="CHANGEFEED_OTLP",
    help="Send metrics and traces to OpenTelemetry's collector there, by OTLP over HTTP: "
    "http://HOST:4318. Needs changefeed[otlp].",
)
@click.option(
    "--log-format",
    type=click.Choice([form.value for form in LogFormat]),
    default=LogFormat.TEXT.value,
    show_default=True,
    help="The lines on standard error and of node.log: text, or one JSON object each.",
)
@click.pass_context
def start(
    context: click.Context,
    state: str | None,
    master: str | None,
    heap: str | None,
    conf: tuple[tuple[str, str], ...],
    engine: str,
    staging: str | None,
    max_memory: int | None,
    max_disk: int | None,
    logs: str | None,
    lease: float | None,
    max_copies: int | None,
    max_feeds: int | None,
    http: tuple[str, int] | None,
    pg: tuple[str, int] | None,
    http_cert: str | None,
    http_key: str | None,
    http_login: bool,
    alerts: tuple[str, ...],
    openlineage: str | None,
    otlp: str | None,
    log_format: str,
) -> None:
    """Run the feeds as a service, until SIGTERM or SIGINT. Logs to standard error."""
    from shell.service import DoorChoice, serve

    if (http_cert is None) != (http_key is None):
        raise click.UsageError("--http-cert and --http-key go together")
    if http is None and pg is None and (http_cert is not None or http_login):
        raise click.UsageError("--http-cert, --http-key and --http-login go with --http or --pg")
    tls = None if http_cert is None or http_key is None else (http_cert, http_key)
    spark = SparkSettings(master, heap, conf, EngineOption(engine), staging)
    given = StateChoice(state, spark, max_memory, max_disk)
    place = given.over(context.obj)
    context.exit(
        serve(
            place.directory,
            spark=place.spark,
            http=None if http is None else DoorChoice(*http, tls, http_login),
            pg=None if pg is None else DoorChoice(*pg, tls, http_login),
            max_memory=place.max_memory,
            max_disk=place.max_disk,
            logs=logs,
            lease=lease,
            log_format=LogFormat(log_format),
            max_copies=max_copies,
            max_feeds=max_feeds,
            alerts=alerts,
            openlineage=openlineage,
            otlp=otlp,
        )
    )


@cli.command()
@click.argument("uri")
def alert(uri: str) -> None:
    """Send a test alert to URI, as changefeed start --alert URI sends those of the feeds."""
    with loading():
        from changefeed.app import try_alert

    click.echo(f"{try_alert(uri)} took the test alert")


@cli.command()
@click.option(
    "--seconds", type=float, default=15.0, show_default=True, help="Seconds of live changes."
)
@click.option(
    "--source",
    type=click.Choice(["postgresql", "mysql"]),
    help="The server (default: postgresql, or what --folder has); mysql is a MariaDB.",
)
@click.option("--port", type=int, help="Port of the server on 127.0.0.1 (default: a free one).")
@click.option(
    "--keep",
    is_flag=True,
    help="Keep database, state and files, and print the command that continues with them.",
)
@click.option("--shell", "prompt", is_flag=True, help="Open the prompt on the running shop.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --shell: what --keep left, or where to make it.",
)
@click.option(
    "--feeds",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Other statements; they may use the connections shop and lake.",
)
@click.pass_context
def demo(
    context: click.Context,
    seconds: float,
    source: str | None,
    port: int | None,
    keep: bool,
    prompt: bool,
    folder: Path | None,
    feeds: Path | None,
) -> None:
    """A real PostgreSQL or MariaDB with a small shop, and feeds at work on it."""
    from changefeed.demo import run, trial
    from shell.signals import end_cleanly

    if folder is not None and not prompt:
        raise click.UsageError("--folder goes with --shell")
    if feeds is not None and prompt:
        raise click.UsageError("--feeds does not go with --shell: \\i runs a file at the prompt")
    end_cleanly()
    if prompt:
        from shell.open import Request, open_shell

        with trial(source=source, port=port, keep=keep, folder=folder) as state:
            form = context.find_root().params.get("form")
            chosen = None if form is None else OutputFormat(form)
            status = open_shell(Request(state, format=chosen, source="shop"))
        context.exit(status)
    context.exit(run(seconds=seconds, source=source, port=port, keep=keep, feeds=feeds))


@cli.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("extract")
@click.argument("date")
@click.option(
    "--conf",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_properties,
    help="A Spark property, as spark-submit takes it; may be repeated.",
)
@click.option("--heap", metavar="SIZE", help="Memory of Spark's JVM, as 2g.")
@click.option("--master", metavar="URL", help="Spark's master (default: this machine).")
@click.pass_context
def dataset(
    context: click.Context,
    config: Path,
    extract: str,
    date: str,
    conf: tuple[tuple[str, str], ...],
    heap: str | None,
    master: str | None,
) -> None:
    """Compare EXTRACT with the dataset of CONFIG, as of DATE (year-month-day).

    EXTRACT is a file, a folder or a glob that Spark reads, or jdbc:URL#table. The current dataset
    is replaced in one step and the net changes become a partition of the history; an extract that
    cannot be compared changes nothing.
    """
    from shell.datasets import compare_dataset
    from shell.signals import end_cleanly

    end_cleanly()
    spark = SparkSettings(master, heap, conf).over(context.obj.spark)
    context.exit(compare_dataset(config, extract, date, spark))


def _state_option(command: F) -> F:
    """``--state`` behind a command, where it wins over the one before it, and its key."""
    place = click.option(
        "--state", metavar="DIR|URL", help="Where the state is (default: as above)."
    )
    return place(_key_option(command))


def _state_of(context: click.Context, state: str | None) -> str:
    given: StateChoice = context.obj
    return replace(given, state=state or given.state).directory


@cli.command()
@click.argument("node", required=False)
@click.option("--undo", is_flag=True, help="Let it take sources again.")
@click.option(
    "--timeout",
    metavar="DURATION",
    default="60s",
    show_default=True,
    callback=_duration,
    help="How long to wait until it has given them away; it goes on draining afterwards.",
)
@_state_option
@click.pass_context
def drain(
    context: click.Context, node: str | None, undo: bool, timeout: float, state: str | None
) -> None:
    """Make NODE give its sources and feeds to the other nodes, and take none, until it is started
    again: before its machine is stopped or upgraded.

    NODE is an id or a host of SHOW NODES; without it, the node of this machine. Works from any
    machine. Exit status 4 if the node is not done in time.
    """
    with loading():
        from changefeed.app import Application
        from shell.signals import end_cleanly

    end_cleanly()
    with Application(_state_of(context, state), must_exist=True) as opened:
        click.echo(opened.undo_drain(node) if undo else opened.drain(node, timeout))


@cli.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--plan", is_flag=True, help="Only print what differs; exit status 2 if anything does."
)
@click.option("--prune", is_flag=True, help="Also drop what the files do not name.")
@_state_option
@click.pass_context
def apply(
    context: click.Context, files: tuple[str, ...], plan: bool, prune: bool, state: str | None
) -> None:
    """Make connections, functions and feeds equal to the CREATE statements of FILEs.

    What is missing is made; what differs is changed, as ALTER does; - is standard input. ${NAME} in
    a string is the value of an environment variable.
    """
    with loading():
        from shell.apply import apply_files
        from shell.signals import end_cleanly

    end_cleanly()
    context.exit(apply_files(_state_of(context, state), files, plan=plan, prune=prune))


@cli.command()
@_state_option
@click.pass_context
def export(context: click.Context, state: str | None) -> None:
    """Print the statements that make what the state has, for changefeed apply.

    Secrets are written as ${NAME}; changefeed apply reads them from the environment.
    """
    with loading():
        from shell.apply import export_state
        from shell.signals import end_cleanly

    end_cleanly()
    context.exit(export_state(_state_of(context, state)))


@cli.group()
def log() -> None:
    """Look after the stored files of a state."""


@log.command()
@_state_option
@click.pass_context
def verify(context: click.Context, state: str | None) -> None:
    """Compare every stored file with its checksums, also while a node runs.

    A row for each kind of file, and one for each file that differs from what was written: how, the
    feeds that need it, and the remedy. A line at the end counts what was read. Exit status 5 if a
    file differs.
    """
    with loading():
        from changefeed.app import Application
        from shell.diagnostics import Diagnostics
        from shell.render.results import render
        from shell.signals import end_cleanly

    end_cleanly()
    form = _chosen_format(context)
    with Application(_state_of(context, state), must_exist=True) as opened:
        result = opened.verify_files()
    render(result, form, sys.stdout)
    said = Diagnostics(as_json=form.structured)
    for notice in result.notices:
        said.notice(notice)
    if result.failure is not None:
        said.error(result.failure)
        context.exit(Exit.DIFFERENCE)


@cli.command()
@click.option(
    "--bundle",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Also write a zip archive for a report of a problem: no secrets, no rows.",
)
@_state_option
@click.pass_context
def doctor(context: click.Context, bundle: Path | None, state: str | None) -> None:
    """Look for problems of this machine, the state, each connection and each feed.

    Changes nothing; works beside a node. Exit status 1 if there is an error, 3 if a server cannot
    be reached.
    """
    with loading():
        from changefeed.app import Application
        from shell.diagnostics import Diagnostics
        from shell.render.results import render
        from shell.signals import end_cleanly

    end_cleanly()
    form = _chosen_format(context)
    with Application(_state_of(context, state), must_exist=True) as opened:
        result = opened.examine()
        render(result, form, sys.stdout)
        if bundle is not None:
            try:
                opened.write_bundle(result, bundle)
            except OSError as error:
                raise click.FileError(str(bundle), error.strerror) from error
            Diagnostics(as_json=form.structured).notice(f"{bundle} has no secrets and no rows")
    context.exit(Exit.OK if result.failure is None else exit_status(result.failure))


@cli.command()
@click.argument("file", type=click.Path(dir_okay=False, writable=True, path_type=Path))
def pack(file: Path) -> None:
    """Write FILE (.tar.gz) for spark-submit --archives: changefeed and the packages that it needs.

    It has what is installed here, without Python itself and Java.
    """
    with loading():
        from changefeed.spark.shipping import pack_application
        from shell.signals import end_cleanly

    end_cleanly()
    try:
        pack_application(file)
    except OSError as error:
        raise click.FileError(str(file), error.strerror) from error


def _chosen_format(context: click.Context) -> OutputFormat:
    chosen = context.find_root().params.get("form")
    return OutputFormat(chosen or ("table" if sys.stdout.isatty() else "csv"))


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(f"changefeed {__version__}")


def main() -> int:
    """Entry point of the ``changefeed`` command; returns the exit status."""
    try:
        status = cli.main(prog_name="changefeed", standalone_mode=False)
    except ChangefeedError as error:
        _diagnostics().error(error)
        return exit_status(error)
    except click.ClickException as error:
        error.show()
        return Exit.USAGE
    except (KeyboardInterrupt, click.Abort):
        return Exit.INTERRUPTED
    except _ClosedPipe:
        # Nobody reads: what is still in the buffer must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.PIPE
    return status if isinstance(status, int) else Exit.OK


def _diagnostics() -> Diagnostics:
    from shell.diagnostics import Diagnostics

    return Diagnostics()

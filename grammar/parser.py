"""Text of one statement -> syntax node.

The Lark tables are built once and kept in the user's cache folder, because building takes
some 80 ms and loading some 10. The cache is a pickle: it is read only from a folder and a
file that belong to this user, and written beside and then renamed, so that processes that
start together cannot read half a file.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from functools import lru_cache
from pathlib import Path

import lark
from lark import Lark

from grammar.build import build
from grammar.nodes import Span, Statement
from grammar.problems import SyntaxProblem, explain, unclosed
from grammar.split import LexemeKind, blank_comments, lexemes

#: The grammar is one text in three files: rules, keywords, terminals.
GRAMMAR_FILES = ("changefeed.lark", "keywords.lark", "terminals.lark")


def parse(text: str) -> Statement:
    """Parse one statement, with or without its final ``;``.

    Spans in the result are offsets into ``text``.

    Raises:
        SyntaxProblem: it is not a statement of the language; says where and what fits.
    """
    _check_closed(text)
    source = blank_comments(text)
    _check_single(source)
    parser = tables()
    try:
        tree = parser.parse(source)
    except lark.UnexpectedInput:
        raise explain(parser, source) from None
    try:
        return build(tree)
    except lark.exceptions.VisitError as wrapped:
        # Lark wraps what a builder raises.
        if isinstance(wrapped.orig_exc, SyntaxProblem):
            raise wrapped.orig_exc from None
        raise


def _check_closed(text: str) -> None:
    for lexeme in lexemes(text):
        if not lexeme.closed:
            raise unclosed(text, lexeme)


def _check_single(source: str) -> None:
    if not source.strip():
        raise SyntaxProblem("there is no statement", Span(0, len(source)), (), "")
    for lexeme in lexemes(source):
        if lexeme.kind is not LexemeKind.SEMICOLON:
            continue
        rest = source[lexeme.end :]
        if rest.strip():
            start = lexeme.end + len(rest) - len(rest.lstrip())
            raise SyntaxProblem(
                "only one statement is expected here", Span(start, len(source.rstrip())), (), ""
            )


def grammar_text() -> str:
    """The whole grammar, as Lark reads it."""
    here = Path(__file__).parent
    return "\n".join((here / name).read_text("utf-8") for name in GRAMMAR_FILES)


@lru_cache(maxsize=1)
def tables() -> Lark:
    """The LALR tables and lexers, from the cache where there is a good one."""
    text = grammar_text()
    cache = _cache_file(text)
    if cache is None:
        return _build_tables(text)
    loaded = _load(cache)
    if loaded is not None:
        return loaded
    built = _build_tables(text)
    _store(built, cache)
    return built


def _build_tables(text: str) -> Lark:
    return Lark(text, parser="lalr", propagate_positions=True, maybe_placeholders=True)


def _cache_file(text: str) -> Path | None:
    """Where the tables of this grammar, Lark and Python belong; None without a private folder."""
    version = f"{lark.__version__} {sys.version} {text}"
    digest = hashlib.sha256(version.encode()).hexdigest()[:16]
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(base) / "changefeed"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder / f"grammar-{digest}.pickle" if _private(folder) else None
    except (OSError, RuntimeError):
        return None


def _private(path: Path) -> bool:
    """Nobody else can have put a pickle there."""
    status = path.stat()
    owned = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    return owned and not status.st_mode & 0o022


def _load(cache: Path) -> Lark | None:
    try:
        if not _private(cache):
            return None
        with cache.open("rb") as file:
            return Lark.load(file)
    except Exception:
        # Absent, or damaged in a way nobody can list: it costs one rebuild, which overwrites it.
        return None


def _store(built: Lark, cache: Path) -> None:
    beside = cache.with_name(f"{cache.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            built.save(file)
        beside.replace(cache)
    except OSError:
        # A full or read-only disk costs the next start some 80 ms, nothing else.
        beside.unlink(missing_ok=True)

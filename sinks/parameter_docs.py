"""The parameters of sinks for people: the page ``docs/sink-parameters.md``.

A test compares the page with :func:`markdown`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from changefeed.core.settings import Parameter, of_scheme
from sinks import registry

_HEAD = """\
# Parameters of sink URIs

What stands behind the `?` of a sink's URI. This page is made from the declarations of the sinks;
`pytest tests/golden --rewrite` writes it again. `EXPLAIN`, listings and logs hide the value of a
parameter that is marked as hidden, and the password of the URI. A value with `&`, `#`, `%` or a
space in it is written percent-encoded.
"""


def markdown() -> str:
    """The page."""
    return _HEAD + "".join(line for schemes in _sinks() for line in _section(schemes))


def _sinks() -> list[list[str]]:
    """The schemes of each built-in sink, hidden spellings left out."""
    found: dict[str, list[str]] = {}
    for scheme in registry.schemes():
        if scheme in registry.BUILT_IN:
            found.setdefault(registry.entry(scheme).location, []).append(scheme)
    return list(found.values())


def _section(schemes: Sequence[str]) -> Iterator[str]:
    rows = dict.fromkeys(one for scheme in schemes for one in registry.parameters(scheme))
    if not rows:
        return
    yield f"\n## {', '.join(f'`{scheme}://`' for scheme in schemes)}\n\n"
    several = len(schemes) > 1
    yield f"| parameter |{' schemes |' * several} value (default) | hidden | what it does |\n"
    yield f"|---|{'---|' * several}---|---|---|\n"
    yield from (_row(one, schemes, several) for one in rows)


def _row(one: Parameter, schemes: Sequence[str], several: bool) -> str:
    default = f" ({one.default})" if one.default else ""
    takers = [scheme for scheme in schemes if of_scheme([one], scheme)]
    cells = [f"`{one.name}`"]
    if several:
        cells.append("all" if takers == list(schemes) else ", ".join(takers))
    hidden = "by name" if one.begins else "yes" if one.secret else "no"
    cells += [f"{one.written}{default}", hidden, one.summary]
    return f"| {' | '.join(cells)} |\n"

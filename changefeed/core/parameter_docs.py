"""The parameters of URIs for people: ``docs/sink-parameters.md`` and ``docs/source-parameters.md``.

A test compares the pages with :func:`markdown`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from changefeed.core.settings import Parameter, of_scheme

_HEAD = """\
# Parameters of {kind} URIs

What stands behind the `?` of a {kind}'s URI. This page is made from the {kind}s' declarations;
`pytest tests/golden --rewrite` writes it again. `EXPLAIN`, listings and logs hide the value of a
parameter that is marked as hidden, and the password of the URI. A value with `&`, `#`, `%` or a
space in it is written percent-encoded.
"""


def markdown(
    kind: str, homes: Mapping[str, str], parameters: Callable[[str], Sequence[Parameter]]
) -> str:
    """The page.

    Args:
        kind: ``sink`` or ``source``.
        homes: scheme -> where its class is; schemes of one class share a table.
        parameters: those that a scheme declares.
    """
    shared: dict[str, list[str]] = {}
    for scheme, home in homes.items():
        shared.setdefault(home, []).append(scheme)
    sections = (line for schemes in shared.values() for line in _section(schemes, parameters))
    return _HEAD.format(kind=kind) + "".join(sections)


def _section(
    schemes: Sequence[str], parameters: Callable[[str], Sequence[Parameter]]
) -> Iterator[str]:
    rows = dict.fromkeys(one for scheme in schemes for one in parameters(scheme))
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

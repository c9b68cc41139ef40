"""``python -m benchmarks``: what can be measured, and running it.

With no words it prints the list; with names it runs those; ``all`` runs everything.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

_HERE = Path(__file__).parent


def available() -> dict[str, str]:
    """Name of each benchmark and the first line of what it says of itself."""
    found = {}
    for file in sorted([*_HERE.glob("*.py"), *_HERE.glob("peers/*.py")]):
        text = file.read_text()
        if 'if __name__ == "__main__"' not in text or file == Path(__file__):
            continue
        name = ".".join(file.relative_to(_HERE).with_suffix("").parts)
        found[name] = text.split('"""')[1].splitlines()[0]
    return found


def main(words: list[str]) -> int:
    """Run the named benchmarks; the rest of ``words`` (from the first option on) is theirs."""
    known = available()
    first_option = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    names, options = words[:first_option], words[first_option:]
    mode = names[1:] if names and names[0] in known else []
    if not names:
        for name, line in known.items():
            print(f"{name:20} {line}")
        print("\nmake bench BENCH='NAME [MODE] [OPTIONS]'; all of them: BENCH=all")
        return 0
    chosen = list(known) if names == ["all"] else names[:1]
    for name in chosen:
        if name not in known:
            print(f"no benchmark {name!r}; there are: {', '.join(known)}", file=sys.stderr)
            return 2
        sys.argv = [name, *mode, *options]
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

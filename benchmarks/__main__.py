"""``python -m benchmarks``: what can be measured, and running one of it.

With no words it prints the list; with a name it runs that one, the other words are its own.
"""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

_HERE = Path(__file__).parent


def available() -> dict[str, str]:
    """Name of each benchmark and the first line of what it says of itself."""
    found = {}
    for file in sorted([*_HERE.glob("*.py"), *_HERE.glob("peers/*.py")]):
        text = file.read_text()
        if 'if __name__ == "__main__"' in text and file != Path(__file__):
            name = ".".join(file.relative_to(_HERE).with_suffix("").parts)
            found[name] = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return found


def main(words: list[str]) -> int:
    """Run the benchmark named first."""
    known = available()
    if not words:
        for name, line in known.items():
            print(f"{name:20} {line}")
        print("\nmake bench BENCH='NAME [OPTIONS]'; NAME --help says which options")
        return 0
    name, *options = words
    if name not in known:
        print(f"no benchmark {name!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    sys.argv = [name, *options]
    runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What the site of mkdocs.yml needs beside the pages of this folder.

The home page is the README. Links that leave this folder (sources, examples) become plain words,
as the site holds the pages alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")


def home(readme: str) -> str:
    """The README as a page of this folder."""

    def place(found: re.Match[str]) -> str:
        words, target = found.groups()
        if target.startswith("docs/"):
            return f"[{words}]({target.removeprefix('docs/')})"
        return found[0] if re.match(r"[a-z]+:|#", target) else words

    return _LINK.sub(place, readme).replace("](docs/images/", "](images/")


def inside(page: str) -> str:
    """A page without links that leave this folder."""
    return _LINK.sub(lambda found: found[1] if found[2].startswith("../") else found[0], page)


def on_files(files: Any, config: Any) -> Any:
    """Add the home page."""
    from mkdocs.structure.files import File

    readme = (ROOT / "README.md").read_text("utf-8")
    files.append(File.generated(config, "index.md", content=home(readme)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Take links out of the folder from each page."""
    return inside(markdown)

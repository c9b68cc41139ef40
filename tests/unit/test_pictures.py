"""The pictures of the README are what ``python -m benchmarks pictures`` writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.pictures import FIGURES, pictures

ROOT = Path(__file__).parents[2]


def test_the_files_are_what_the_script_draws() -> None:
    stale = [file.name for file, text in pictures().items() if file.read_text("utf-8") != text]
    assert stale == [], "run: python -m benchmarks pictures"


def test_the_pictures_are_svg_and_fetch_nothing() -> None:
    for text in pictures().values():
        assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
        assert re.findall(r"url\((?!#)|href=", text) == []


def test_the_readme_shows_them() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert [f for f in pictures() if f"({f.relative_to(ROOT).as_posix()})" not in readme] == []


def test_the_chart_has_the_figures_of_the_page() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    numbers = set(re.findall(r"\d[\d,]*(?:\.\d+)?", page))
    for figure in json.loads(FIGURES.read_text("utf-8")):
        thousands = "thousand" in figure["title"]
        for name, value in figure["bars"]:
            written = f"{round(value * 1000):,}" if thousands else f"{value}"
            assert written in numbers, f"{figure['title']}: {name} {written}"

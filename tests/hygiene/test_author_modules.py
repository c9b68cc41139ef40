"""What an author of a sink or a source needs comes from one module."""

from __future__ import annotations

import builtins
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from changefeed import sink_api, source_api

ROOT = Path(__file__).parents[2]
#: Names in annotations that the standard library, Arrow and PySpark have.
ELSEWHERE = {
    "Any", "Callable", "ClassVar", "Collection", "DataFrame", "Iterable", "Iterator", "Mapping",
    "Path", "RecordBatch", "Self", "Sequence", "Table", "TracebackType",
}  # fmt: skip


@pytest.mark.parametrize(
    ("module", "classes"),
    [
        (sink_api, (sink_api.Sink, sink_api.LogConsumer)),
        (source_api, (source_api.Source, source_api.Attachment, source_api.Snapshot)),
        (source_api, (source_api.Stream, source_api.ScanPart)),
    ],
)
def test_the_types_of_the_methods_are_in_it(module: ModuleType, classes: tuple[type, ...]) -> None:
    named = {
        word
        for kind in classes
        for _, method in inspect.getmembers(kind, inspect.isfunction)
        for annotation in method.__annotations__.values()
        for word in re.findall(r"\b[A-Z]\w+", str(annotation))
    }
    assert len(named) > 3
    assert named - set(module.__all__) - ELSEWHERE - set(dir(builtins)) == set()


@pytest.mark.parametrize("module", [sink_api, source_api])
def test_it_lists_what_it_has(module: ModuleType) -> None:
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and name != "annotations" and not inspect.ismodule(value)
    }
    assert set(module.__all__) == public


def test_the_example_and_the_guides_import_it_alone() -> None:
    texts = [(ROOT / "tests/helpers/foreign_sink.py").read_text()]
    for guide in ("sink-guide.md", "source-guide.md"):
        texts += re.findall(r"```python\n(.*?)```", (ROOT / "docs" / guide).read_text(), re.DOTALL)
    imported = set(re.findall(r"^from ((?:changefeed|sinks)\b[\w.]*)", "\n".join(texts), re.M))
    allowed = {"changefeed.sink_api", "changefeed.source_api"}
    kits = {name for name in imported if name.startswith("changefeed_testing")}
    assert "changefeed.sink_api" in imported
    assert imported - allowed - kits == set()

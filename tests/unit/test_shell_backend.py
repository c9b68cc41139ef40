"""The state behind a prompt: who runs its feeds when the node found elsewhere ends."""

from __future__ import annotations

import pytest

from changefeed.api import Summary
from changefeed.backend import LocalBackend
from shell.repl.toolbar import Watcher, line


class FakeApplication:
    """A state with a feed, whose other node a test starts and stops."""

    def __init__(self) -> None:
        self.interpreter = self
        self.elsewhere = True
        self.is_node = False
        self.starts = 0

    def node_running(self) -> bool:
        return self.is_node or self.elsewhere

    def summary(self) -> Summary:
        return Summary(1, 1, 1, 0, 0, None, {}, self.node_running())

    def start_node(self) -> bool:
        self.starts += 1
        self.is_node = not self.elsewhere
        return self.is_node


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> FakeApplication:
    found = FakeApplication()

    def open_it(backend: LocalBackend) -> None:
        backend._opened = found  # type: ignore[assignment]

    monkeypatch.setattr(LocalBackend, "_open", open_it)
    return found


def test_a_prompt_takes_over_when_the_node_elsewhere_ends(application: FakeApplication) -> None:
    backend = LocalBackend("anywhere")
    backend.start(lambda error: pytest.fail(str(error)))
    assert backend._node is not None and backend._node.result(10) is False
    watcher = Watcher(backend, lambda: None)
    assert "node elsewhere" in line(watcher._read(), "", 200)[0][1]
    assert application.starts == 1, "somebody else runs the feeds"
    application.elsewhere = False
    figures = watcher._read()
    assert application.is_node and figures.here
    assert "node in this shell (the other one has ended)" in line(figures, "", 200)[0][1]
    assert watcher._read() == figures and application.starts == 2


def test_a_script_starts_no_node(application: FakeApplication) -> None:
    application.elsewhere = False
    backend = LocalBackend("anywhere")
    assert backend.application is application  # type: ignore[comparison-overlap]
    assert not backend.take_over() and application.starts == 0

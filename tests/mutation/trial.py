"""Whether tests notice a fault: they run in a process of its own, in which the fault is in memory.

Most faults lie inside functions. For these the tests are collected once, and each fault gets a fork
of that process, in which the function has other code and only those tests run that call it. What is
done while a module is imported (a table at its top, a default value, a function that such a line
calls) needs a process that imports the changed module.
"""

from __future__ import annotations

import ast
import gc
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import pytest

from tests.mutation.operators import Mutant
from tests.mutation.targets import ROOT, Target

#: Tests that take this much longer than without a fault do not end.
_PATIENCE_SECONDS = 20.0
_PATIENCE_FACTOR = 5

#: A function of the module: its qualified name, and the line it begins with.
_Function = tuple[str, int]


def survivors(target: Target, mutants: Sequence[Mutant]) -> list[Mutant]:
    """The faults that no test of the target notices.

    Raises:
        SystemExit: its tests fail without any fault.
    """
    with tempfile.NamedTemporaryFile("r", suffix=".json") as answer:
        status = _forked(lambda: _pytest(target, _Loop(target, mutants, Path(answer.name))))
        if status != 0:
            raise SystemExit(f"{target.module}: its tests fail without a fault: they judge none")
        found = json.loads(answer.read())
    alive = list(found["alive"])
    alive += [n for n in found["imported"] if not _noticed_when_imported(target, mutants[n])]
    return [mutants[n] for n in sorted(alive)]


class _Loop:
    """In place of pytest's loop: one for each fault, in a fork."""

    def __init__(self, target: Target, mutants: Sequence[Mutant], answer: Path) -> None:
        self._target = target
        self._mutants = mutants
        self._answer = answer
        self._outermost = _outermost(target)
        #: Functions that are called while modules are imported and tests are collected.
        self._early: set[_Function] = set()
        #: The functions of the module that there are, once the tests are collected.
        self._functions: dict[_Function, list[FunctionType]] = {}
        self._watch(self._early)

    def pytest_runtestloop(self, session: Any) -> bool:
        _unwatch()
        for found in gc.get_objects():
            if isinstance(found, FunctionType):
                code = found.__code__
                if code.co_filename == str(self._target.path):
                    place = (code.co_qualname, code.co_firstlineno)
                    self._functions.setdefault(place, []).append(found)
        calls, seconds = self._calls(session)
        # The first test that fails ends a trial.
        quickest = sorted(seconds, key=seconds.__getitem__)
        alive: list[int] = []
        imported: list[int] = []
        for number, mutant in enumerate(self._mutants):
            function = self._outermost.get(mutant.line)
            changed = _code_of(mutant.tree, self._target, function)
            if changed is None or not self._fits(changed):
                imported.append(number)
                continue
            names = [name for name in quickest if function in calls[name]]
            usual = sum(seconds[name] for name in names)

            def trial(code: CodeType = changed, names: list[str] = names) -> int:
                for its in self._functions[code.co_qualname, code.co_firstlineno]:
                    its.__code__ = code
                return _run_tests(session, names)

            patience = _PATIENCE_SECONDS + _PATIENCE_FACTOR * usual
            if names and _forked(trial, patience) != 0:
                continue
            (imported if function in self._early else alive).append(number)
        self._answer.write_text(json.dumps({"alive": alive, "imported": imported}))
        return True

    def _fits(self, code: CodeType) -> bool:
        """The fault is inside of the function, and its code fits in the function's place."""
        own = self._functions.get((code.co_qualname, code.co_firstlineno), [])
        return bool(own) and all(
            f.__code__ != code and f.__code__.co_freevars == code.co_freevars for f in own
        )

    def _calls(self, session: Any) -> tuple[dict[str, list[_Function]], dict[str, float]]:
        """Of each test which functions it calls, and how long it takes; found out in a fork."""
        with tempfile.NamedTemporaryFile("r", suffix=".json") as answer:

            def watched() -> int:
                calls: dict[str, list[_Function]] = {}
                seconds: dict[str, float] = {}
                items = list(session.items)
                for item in items:
                    called: set[_Function] = set()
                    begun = time.monotonic()
                    self._watch(called)
                    status = _run_tests(session, [item.nodeid], items)
                    _unwatch()
                    if status != 0:
                        return status
                    calls[item.nodeid] = sorted(called)
                    seconds[item.nodeid] = time.monotonic() - begun
                Path(answer.name).write_text(json.dumps([calls, seconds]))
                return 0

            if _forked(watched) != 0:
                os._exit(1)
            calls, seconds = json.loads(answer.read())
        return {name: [(q, n) for q, n in called] for name, called in calls.items()}, seconds

    def _watch(self, called: set[_Function]) -> None:
        """Put the functions of the module that are called from now on into ``called``."""
        path, outermost = str(self._target.path), self._outermost

        def look(frame: FrameType, event: str, _: object) -> None:
            code = frame.f_code
            if event == "call" and code.co_filename == path:
                function = outermost.get(code.co_firstlineno)
                if function is not None:
                    called.add(function)

        threading.setprofile(look)
        sys.setprofile(look)


def _unwatch() -> None:
    sys.setprofile(None)
    threading.setprofile(None)


def _is(code: CodeType, function: _Function) -> bool:
    return (code.co_qualname, code.co_firstlineno) == function


def _run_tests(session: Any, names: Sequence[str], items: Sequence[Any] | None = None) -> int:
    """Run these tests of the session until one fails; the number of failures."""
    from _pytest.main import Session, pytest_runtestloop

    found = {item.nodeid: item for item in items or session.items}
    session.items = [found[name] for name in names]
    try:
        pytest_runtestloop(session)
    except Session.Failed:
        return 1
    return int(session.testsfailed)


def _outermost(target: Target) -> dict[int, _Function]:
    """The function or method (not one inside of another) that each line belongs to."""
    found: dict[int, _Function] = {}

    def walk(body: Sequence[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                walk(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                for line in range(first, (node.end_lineno or first) + 1):
                    found[line] = (prefix + node.name, first)

    walk(ast.parse(target.path.read_text()).body, "")
    return found


def _code_of(tree: ast.Module, target: Target, function: _Function | None) -> CodeType | None:
    """The code of a function in a module's source."""

    def codes(code: CodeType) -> Iterator[CodeType]:
        yield code
        for part in code.co_consts:
            if isinstance(part, CodeType):
                yield from codes(part)

    whole = codes(compile(tree, str(target.path), "exec", dont_inherit=True))
    return next((code for code in whole if function and _is(code, function)), None)


# ------------------------------------------------------------------------------- processes


def _forked(work: Callable[[], int], seconds: float = 3600.0) -> int:
    """The status that ``work`` ends with in a fork; 1 when it does not end."""
    with _temporary_root() as root:
        child = os.fork()
        if child == 0:
            status = 3
            try:
                os.environ["PYTEST_DEBUG_TEMPROOT"] = root
                with open(os.devnull, "w") as quiet:
                    os.dup2(quiet.fileno(), 1)
                    os.dup2(quiet.fileno(), 2)
                status = work()
            finally:
                os._exit(min(status, 255))
        deadline = time.monotonic() + seconds
        pause = 0.005
        while time.monotonic() < deadline:
            pid, state = os.waitpid(child, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(state)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return 1


@contextmanager
def _temporary_root() -> Iterator[str]:
    """Where the tests of one fork have their folders."""
    with tempfile.TemporaryDirectory(prefix="mutation", ignore_cleanup_errors=True) as root:
        yield root


def _pytest(target: Target, *plugins: object) -> int:
    words = ["-x", "-q", "-n0", "-p", "no:cacheprovider"]
    words += [str(ROOT / test) for test in target.tests]
    return int(pytest.main(words, plugins=[_Quick(), *plugins]))


class _Quick:
    """An example that fails with a fault is nothing to make smaller, or to remember."""

    def pytest_configure(self) -> None:
        # Imported by pytest first, which rewrites its assertions.
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile(
            "mutation", database=None, phases=phases, report_multiple_bugs=False
        )
        settings.load_profile("mutation")


def _noticed_when_imported(target: Target, mutant: Mutant) -> bool:
    def run() -> int:
        code = compile(mutant.tree, str(target.path), "exec", dont_inherit=True)
        sys.meta_path.insert(0, _Changed(target.module, code, target.path))
        return _pytest(target)

    return _forked(run, 600.0) != 0


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module its changed code."""

    def __init__(self, module: str, code: CodeType, path: Path) -> None:
        self._module = module
        self._code = code
        self._path = path

    def find_spec(
        self, fullname: str, path: object, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=str(self._path))
        spec.has_location = True
        return spec

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)

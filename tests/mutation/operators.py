"""The faults: each is one small change of a module's syntax tree."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
}
#: Calls that say something to people or mark a place: leaving them out is no fault of the work.
_TOLD = ("log.", "fault_point")


@dataclass(frozen=True)
class Mutant:
    """A module with one fault.

    Attributes:
        line: where it is.
        what: the fault in words: the function, and its source before and after.
        tree: the module.
    """

    line: int
    what: str
    tree: ast.Module


def mutants(source: str) -> Iterator[Mutant]:
    """Every fault of a module, in the order of its lines."""
    tree = ast.parse(source)
    hidden = _declarations(tree)
    parents = {id(part): whole for whole in ast.walk(tree) for part in ast.iter_child_nodes(whole)}
    for node in ast.walk(tree):
        if id(node) in hidden or not hasattr(node, "lineno"):
            continue
        function, shown = _surroundings(parents, node)
        before = ast.unparse(shown)
        for step, _ in enumerate(_faults(node)):
            copies: dict[int, Any] = {}
            copied = _copied(tree, parents, node, copies)
            for place, apply in enumerate(_faults(copies[id(node)])):
                if place == step:
                    apply()
            ast.fix_missing_locations(copies[id(_statement(parents, node))])
            after = ast.unparse(copies[id(shown)])
            if before != after:
                words = f"{function}: {_short(before)}  ->  {_short(after)}"
                yield Mutant(getattr(node, "lineno", 0), words, copied)


def _statement(parents: Mapping[int, ast.AST], node: ast.AST) -> ast.AST:
    """The statement that a node is or lies in."""
    while not isinstance(node, ast.stmt):
        node = parents[id(node)]
    return node


def _copied(
    tree: ast.Module, parents: Mapping[int, ast.AST], node: ast.AST, copies: dict[int, Any]
) -> ast.Module:
    """A tree that shares all but the statement around ``node``, and what is around that: a module
    has hundreds of faults. ``copies`` gets the copy of each node of the statement."""
    before = _statement(parents, node)
    after: ast.AST = copy.deepcopy(before, copies)
    while before is not tree:
        whole = parents[id(before)]
        changed = copy.copy(whole)
        for name, value in ast.iter_fields(whole):
            if value is before:
                setattr(changed, name, after)
            elif isinstance(value, list):
                setattr(changed, name, [after if part is before else part for part in value])
        before, after = whole, changed
    assert isinstance(after, ast.Module)
    return after


def _surroundings(parents: Mapping[int, ast.AST], node: ast.AST) -> tuple[str, ast.AST]:
    """The name of the function around a node, and what of it says most: of a number the
    expression that it stands in."""
    shown = node
    while isinstance(shown, ast.Constant | ast.UnaryOp | ast.Tuple | ast.keyword | ast.Slice):
        shown = parents[id(shown)]
    names = []
    whole = parents.get(id(node))
    while whole is not None:
        if isinstance(whole, ast.FunctionDef | ast.ClassDef):
            names.append(whole.name)
        whole = parents.get(id(whole))
    return ".".join(reversed(names)) or "module", shown


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 70 else text[:67] + "..."


def _declarations(tree: ast.Module) -> set[int]:
    """Nodes that are no work of the module: annotations, decorators, and the constants at its
    top, which are measured choices."""
    found: set[int] = set()
    for node in ast.walk(tree):
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        parts += getattr(node, "decorator_list", [])
        parts += [node.value] if isinstance(node, ast.Assign) and node in tree.body else []
        for part in parts:
            if part is not None:
                found.update(id(n) for n in ast.walk(part))
    return found


def _faults(node: ast.AST) -> Iterator[_Fault]:
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            if type(operator) in _COMPARED:
                yield _Fault(node.ops, i, _COMPARED[type(operator)]())
    elif isinstance(node, ast.BinOp) and type(node.op) in _CALCULATED:
        yield _Fault(node, "op", _CALCULATED[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield _Fault(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _Fault(node, "value", not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield _Fault(node, "value", node.value + 1)
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield _Fault(node, "test", ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.Return) and node.value is not None:
        if not isinstance(node.value, ast.Constant):
            yield _Fault(node, "value", ast.Constant(None))
    elif (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and not ast.unparse(node.value).startswith(_TOLD)
    ):
        yield _Fault(node, "value", ast.Constant(None))


class _Fault:
    """Puts a value in a place of the tree."""

    def __init__(self, owner: object, place: int | str, value: object) -> None:
        self._owner = owner
        self._place = place
        self._value = value

    def __call__(self) -> None:
        if isinstance(self._owner, list):
            assert isinstance(self._place, int)
            self._owner[self._place] = self._value
        else:
            setattr(self._owner, str(self._place), self._value)

from collections.abc import Sequence
from types import TracebackType
from typing import Any

class Cursor:
    description: Sequence[Sequence[Any]]
    rowcount: int
    def execute(self, query: str, args: Sequence[object] | None = None) -> int: ...
    def fetchall(self) -> Sequence[tuple[Any, ...]]: ...
    def __enter__(self) -> Cursor: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

"""One question for all threads that have it at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class AskedTogether(Generic[T]):
    """Asks once for all threads that wait. Each has an answer, or an error, of a question that was
    asked after it came: what had happened before that is in the answer."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._turn = threading.Lock()
        #: How often it was asked.
        self._asked = 0
        self._last: Future[T] = Future()

    def __call__(self) -> T:
        """The answer."""
        # One that is being asked may not know what happened a moment ago.
        enough = self._asked + 1
        with self._turn:
            if self._asked < enough:
                self._asked += 1
                answer = Future[T]()
                try:
                    answer.set_result(self._ask())
                except Exception as error:
                    answer.set_exception(error)
                except BaseException:
                    self._asked -= 1  # an interrupt is of this thread; the others ask again
                    raise
                self._last = answer
            answer = self._last
        return answer.result()

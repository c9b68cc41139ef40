"""Questions that a process without Spark has, and what a node answers.

The state is the only channel between the two: a question is a row, whose change of the counter
wakes the nodes; one of them takes it and writes its answer beside it.
"""

from __future__ import annotations

import uuid

from sqlalchemy import delete, insert, select, update

from changefeed.catalog import tables
from changefeed.catalog.rows import Question
from changefeed.catalog.store import CatalogPart

#: Whoever asked does not wait for so long, ns: the row is left over.
LEFT_OVER = 3600 * 1_000_000_000

_table = tables.question


class Questions(CatalogPart):
    """Part of :class:`changefeed.catalog.Catalog`."""

    def ask(self, kind: str, body: str) -> str:
        """Put a question to the nodes; what its answer is asked for by."""
        question, now = uuid.uuid4().hex, self._now()
        with self._database.write() as transaction:
            transaction.execute(delete(_table).where(_table.c.asked < now - LEFT_OVER))
            asked = insert(_table).values(id=question, kind=kind, body=body, asked=now)
            transaction.execute(asked)
        return question

    def take_questions(self, node: str) -> list[Question]:
        """Questions that no node has taken, which are this node's from now on."""
        free = select(_table).where(_table.c.node.is_(None)).order_by(_table.c.asked)
        with self._database.read() as transaction:
            if transaction.execute(free).first() is None:
                return []
        with self._database.write() as transaction:
            rows = list(transaction.execute(free))
            taken = update(_table).where(_table.c.id.in_([row.id for row in rows]))
            transaction.execute(taken.values(node=node))
        return [Question(row.id, row.kind, row.body) for row in rows]

    def answer(self, question: str, text: str) -> None:
        """Answer a question, if it is still asked."""
        with self._database.write() as transaction:
            where = _table.c.id == question
            transaction.execute(update(_table).where(where).values(answer=text))

    def answer_of(self, question: str) -> tuple[str | None, str | None]:
        """The node that took the question, and its answer; None of what there is not yet."""
        with self._database.read() as transaction:
            where = _table.c.id == question
            row = transaction.execute(select(_table).where(where)).one_or_none()
        return (None, None) if row is None else (row.node, row.answer)

    def forget_question(self, question: str) -> None:
        """The answer was read, or nobody waits for it any more."""
        with self._database.write(notify=False) as transaction:
            transaction.execute(delete(_table).where(_table.c.id == question))

"""Questions of processes without Spark, which a node answers.

The state is the only channel between the two. A question is a row; adding it changes the state's
counter, which wakes the nodes. One of them takes the question and writes its answer into the row.
"""

from __future__ import annotations

import uuid

from sqlalchemy import delete, insert, select, update

from changefeed.catalog import tables
from changefeed.catalog.database import CatalogPart
from changefeed.catalog.rows import Question

#: No process waits for an answer this long without renewing the question, ns: an older row was left
#: by a process that ended.
LEFT_OVER = 3600 * 1_000_000_000

_table = tables.question


class Questions(CatalogPart):
    """Part of :class:`changefeed.catalog.Catalog`."""

    def ask(self, kind: str, body: str, of: str | None = None) -> str:
        """Put a question to the nodes, or to the node ``of`` alone; returns its id."""
        question = uuid.uuid4().hex
        with self._database.write() as transaction:
            now = self._shared_now(transaction)
            transaction.execute(delete(_table).where(_table.c.asked < now - LEFT_OVER))
            row = {"id": question, "kind": kind, "body": body, "asked": now, "of_node": of}
            transaction.execute(insert(_table).values(row))
        return question

    def take_questions(self, node: str) -> list[Question]:
        """Take all questions that this node may answer and no node has taken yet; from now on this
        node answers them."""
        ours = _table.c.of_node.is_(None) | (_table.c.of_node == node)
        free = select(_table).where(_table.c.node.is_(None), ours).order_by(_table.c.asked)
        with self._database.read() as transaction:
            if transaction.execute(free).first() is None:
                return []
        with self._database.write() as transaction:
            rows = list(transaction.execute(free))
            taken = update(_table).where(_table.c.id.in_([row.id for row in rows]))
            transaction.execute(taken.values(node=node))
        return [Question(row.id, row.kind, row.body) for row in rows]

    def answer(self, question: str, text: str) -> None:
        """Answer a question, unless it was forgotten meanwhile."""
        with self._database.write() as transaction:
            where = _table.c.id == question
            transaction.execute(update(_table).where(where).values(answer=text))

    def answer_of(self, question: str) -> tuple[str | None, str | None]:
        """The node that took the question, and its answer; each is None until there is one."""
        with self._database.read() as transaction:
            where = _table.c.id == question
            row = transaction.execute(select(_table).where(where)).one_or_none()
        return (None, None) if row is None else (row.node, row.answer)

    def renew_question(self, question: str) -> None:
        """Record that the asking process still waits for the answer."""
        with self._database.write(notify=False) as transaction:
            renewed = update(_table).where(_table.c.id == question)
            transaction.execute(renewed.values(asked=self._shared_now(transaction)))

    def awaited(self, question: str, within: float) -> bool:
        """Whether the question was asked or renewed in the last ``within`` seconds, and not
        forgotten since."""
        with self._database.read() as transaction:
            where = _table.c.id == question
            asked = transaction.execute(select(_table.c.asked).where(where)).scalar_one_or_none()
            return asked is not None and asked >= self._shared_now(transaction) - within * 1e9

    def forget_question(self, question: str) -> None:
        """Remove a question that was answered, or for whose answer no process waits."""
        with self._database.write(notify=False) as transaction:
            transaction.execute(delete(_table).where(_table.c.id == question))

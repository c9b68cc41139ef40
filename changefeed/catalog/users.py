"""Users with what is stored of their tokens, and the audit of statements."""

from __future__ import annotations

import hashlib
import secrets

from sqlalchemy import ColumnElement, delete, func, insert, select, update

from changefeed.catalog import tables
from changefeed.catalog.database import CatalogPart
from changefeed.catalog.grants import end_feeds, forget_owner
from changefeed.catalog.rows import AuditEntry, User
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.scram import Verifier

#: Entries of the audit that are kept, the newest.
KEPT_AUDIT = 10_000

#: How often a user's last request is noted, ns.
_SEEN_EVERY = 60 * 1_000_000_000

_user = tables.user
_audit = tables.audit


def _digest(token: str) -> str:
    """What HTTP finds a user by: 256 random bits need no slow hash."""
    return hashlib.sha256(token.encode()).hexdigest()


def _stored(token: str) -> dict[str, str]:
    """What is stored of a token, for HTTP and for PostgreSQL's protocol."""
    return {"digest": _digest(token), "scram": str(Verifier.of(token))}


class Users(CatalogPart):
    """Part of :class:`changefeed.catalog.Catalog`."""

    #: How many entries :meth:`record_audit` leaves.
    kept_audit: int = KEPT_AUDIT

    def create_user(self, name: str, role: str, expires: int | None) -> str:
        """Add a user; returns the token, which is stored nowhere.

        Raises:
            ChangefeedError: CF1102 the name is taken.
        """
        token = secrets.token_urlsafe(32)
        with self._database.write() as transaction:
            same = select(_user).where(_user.c.name == name)
            if transaction.execute(same).one_or_none() is not None:
                raise ChangefeedError(
                    Code.NAME_TAKEN,
                    f'user "{name}" already exists',
                    hint="ALTER USER changes the role or the token.",
                )
            values = {"role": role, "expires": expires, **_stored(token)}
            transaction.execute(insert(_user).values(name=name, created=self._now(), **values))
        return token

    def alter_user(
        self, name: str, *, new_token: bool = False, **changes: str | int | None
    ) -> tuple[str | None, list[int]]:
        """Change ``role`` or ``expires`` of a user; returns a new token if one is wanted, and the
        feeds that end because the user is no longer an admin."""
        token = secrets.token_urlsafe(32) if new_token else None
        if token is not None:
            changes |= _stored(token)
        with self._database.write() as transaction:
            transaction.execute(update(_user).where(_user.c.name == name).values(**changes))
            return token, end_feeds(transaction, name, self._now())

    def drop_user(self, name: str) -> list[int] | None:
        """Remove a user with all rights; returns the feeds that end by that, None when there was no
        such user."""
        with self._database.write() as transaction:
            if not transaction.execute(delete(_user).where(_user.c.name == name)).rowcount:
                return None
            return forget_owner(transaction, name, self._now())

    def users(self) -> list[User]:
        """All users by name."""
        with self._database.read() as transaction:
            rows = transaction.execute(select(_user).order_by(_user.c.name))
            return [User(r.name, r.role, r.created, r.expires, r.seen) for r in rows]

    def user_of(self, token: str) -> User | None:
        """The user of a token that has not ended; notes that it was seen."""
        found = self._living(_user.c.digest == _digest(token), note=True)
        return found and found[0]

    def login_of(self, name: str, *, note: bool = False) -> tuple[User, str | None] | None:
        """A user by name whose token has not ended, and what SCRAM proves that token with: None for
        a token of a release without it. ``note`` notes that the user was seen."""
        return self._living(_user.c.name == name, note=note)

    def _living(self, which: ColumnElement[bool], *, note: bool) -> tuple[User, str | None] | None:
        now = self._now()
        with self._database.read() as transaction:
            row = transaction.execute(select(_user).where(which)).one_or_none()
        if row is None or (row.expires is not None and row.expires <= now):
            return None
        if note and (row.seen is None or now - row.seen > _SEEN_EVERY):
            with self._database.write(notify=False) as transaction:
                seen = update(_user).where(_user.c.name == row.name).values(seen=now)
                transaction.execute(seen)
        return User(row.name, row.role, row.created, row.expires, row.seen), row.scram

    def record_audit(self, user: str, origin: str, statement: str, code: str | None) -> None:
        """Note a statement, redacted, that changed something or was refused."""
        with self._database.write(notify=False) as transaction:
            entry = {"user": user, "origin": origin, "statement": statement, "code": code}
            transaction.execute(insert(_audit).values(at=self._now(), **entry))
            newest = select(func.max(_audit.c.id)).scalar_subquery()
            transaction.execute(delete(_audit).where(_audit.c.id <= newest - self.kept_audit))

    def audit(self, limit: int) -> list[AuditEntry]:
        """The newest entries first."""
        with self._database.read() as transaction:
            rows = transaction.execute(select(_audit).order_by(_audit.c.id.desc()).limit(limit))
            return [AuditEntry(r.at, r.user, r.origin, r.statement, r.code) for r in rows]

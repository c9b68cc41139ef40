"""The key of a state: what is encrypted, by which key, and what a process without it gets."""

from __future__ import annotations

import base64
import logging
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from changefeed.api import Interpreter, Result, Session
from changefeed.catalog import Catalog, JobSpec
from changefeed.core.errors import ChangefeedError, Code

#: Secrets of each kind that a state has.
SECRETS = ("Zq9login", "Zq9sink", "Zq9header", "Zq9log", "Zq9asked")


def new_key() -> str:
    return base64.b64encode(os.urandom(32)).decode()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The file with the key."""
    file = tmp_path / "key"
    file.write_text(f"{new_key()}\n")
    return file


@pytest.fixture
def opened(tmp_path: Path, place: Path) -> Callable[[], Catalog]:
    return lambda: Catalog.open(tmp_path / "state", key=f"${{file:{place}}}")


def fill(catalog: Catalog) -> None:
    """Put a secret everywhere."""
    catalog.create_connection("shop", "postgresql://u:Zq9login@h/d")
    catalog.create_job(
        JobSpec(
            "shop",
            (),
            (),
            sink_uri="webhook-https://h/?sig=Zq9sink",
            options={"webhook_auth_header": "Zq9header"},
        )
    )
    catalog.set_log_place("s3://b?AWS_SECRET_ACCESS_KEY=Zq9log")
    catalog.ask("columns", "Zq9asked")


def run(catalog: Catalog, statement: str) -> Result:
    return Interpreter(catalog).execute(statement, Session())


def check(catalog: Catalog) -> None:
    """All of it is there."""
    assert catalog.connection("shop").uri == "postgresql://u:Zq9login@h/d"
    (job,) = catalog.jobs()
    assert (job.sink_uri, job.options["webhook_auth_header"]) == (
        "webhook-https://h/?sig=Zq9sink",
        "Zq9header",
    )
    assert catalog.log_place == "s3://b?AWS_SECRET_ACCESS_KEY=Zq9log"


def in_files(folder: Path) -> set[str]:
    """The secrets that the bytes of the state have, those of -wal too."""
    raw = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    return {secret for secret in SECRETS if secret.encode() in raw}


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(ChangefeedError) as caught:
        call()
    assert caught.value.code is Code.STATE_KEY_NOT_USABLE
    return f"{caught.value.message} {caught.value.hint}"


def test_neither_the_files_nor_a_backup_have_a_secret(
    tmp_path: Path, opened: Callable[[], Catalog]
) -> None:
    catalog = opened()
    fill(catalog)
    state, backup = tmp_path / "state", tmp_path / "backup"
    assert (state / "state.db-wal").stat().st_size, "also before it is written to the file"
    assert in_files(state) == set()
    backup.mkdir()
    with (
        closing(sqlite3.connect(state / "state.db")) as live,
        closing(sqlite3.connect(backup / "state.db")) as copy,
    ):
        live.backup(copy)
    catalog.close()
    assert in_files(state) == in_files(backup) == set()
    shutil.rmtree(state)
    backup.rename(state)
    assert "this process has no key" in refused(lambda: Catalog.open(state))
    again = opened()
    check(again)
    again.close()


def test_without_a_key_they_have_all(tmp_path: Path) -> None:
    """What the other tests look for is there to be found."""
    catalog = Catalog.open(tmp_path / "state")
    fill(catalog)
    assert in_files(tmp_path / "state") == set(SECRETS)
    check(catalog)
    catalog.close()


def test_another_key_is_refused_when_the_state_is_opened(
    place: Path, opened: Callable[[], Catalog]
) -> None:
    opened().close()
    right = place.read_text()
    place.write_text(new_key())
    assert "encrypted by another key than the key that was given" in refused(opened)
    place.write_text(f"{new_key()},{new_key()}")
    assert "than the 2 keys that were given" in refused(opened)
    place.write_text(f"{new_key()}\n{right}")
    opened().close()


@pytest.mark.parametrize(
    ("content", "why"),
    [("secret", "not 32 bytes in base 64"), (",", "is empty"), ("Zq9" * 20, "not 32 bytes")],
)
def test_what_is_no_key(place: Path, opened: Callable[[], Catalog], content: str, why: str) -> None:
    place.write_text(content)
    found = refused(opened)
    assert why in found and "openssl rand -base64 32" in found and "Zq9" not in found


def test_both_alphabets_are_one_key(place: Path, opened: Callable[[], Catalog]) -> None:
    key = base64.b64encode(b"\xfb\xff" * 16).decode()
    assert {"+", "/"} <= set(key)
    place.write_text(key)
    opened().close()
    place.write_text(key.replace("+", "-").replace("/", "_"))
    opened().close()


def test_a_state_is_encrypted_when_it_first_gets_a_key(
    tmp_path: Path, opened: Callable[[], Catalog], caplog: pytest.LogCaptureFixture
) -> None:
    plain = Catalog.open(tmp_path / "state")
    fill(plain)
    plain.register_node("n1", os.getpid())
    message = refused(opened)
    assert "nodes without the key use it: n1" in message
    assert f", {socket.gethostname()})" in message, "a host, without what is for programs"
    plain.unregister_node("n1")
    catalog = opened()
    (warning,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert "its secrets are encrypted by key" in warning.getMessage()
    assert in_files(tmp_path / "state") == set()
    check(catalog)
    # A process that had it open before can neither read nor add one in the clear.
    assert "has no key" in refused(lambda: plain.connection("shop"))
    assert "has no key" in refused(lambda: plain.create_connection("x", "kafka://u:Zq9login@h"))
    for used in (plain, catalog):
        used.close()
    assert in_files(tmp_path / "state") == set()


def test_the_key_is_replaced_by_one_statement(
    tmp_path: Path, place: Path, opened: Callable[[], Catalog]
) -> None:
    catalog, node = opened(), opened()
    fill(catalog)
    old = place.read_text()
    rotated = "ALTER STATE ROTATE KEY"
    assert "is in use already" in run(catalog, rotated).notices[0]
    new = new_key()
    place.write_text(f"{new}\n{old}")
    assert "5 values are encrypted by key" in run(catalog, rotated).notices[0]
    place.write_text(new)
    # A node that was started before has the old key alone; it reads the place again.
    check(node)
    node.create_connection("later", "kafka://u:Zq9sink@h")
    for used in (catalog, node):
        used.close()
    check(again := opened())
    assert again.connection("later").uri == "kafka://u:Zq9sink@h"
    again.close()
    assert in_files(tmp_path / "state") == set()
    place.write_text(old)
    assert "encrypted by another key" in refused(opened)


def test_a_rotation_without_a_key_says_so(tmp_path: Path) -> None:
    catalog = Catalog.open(tmp_path / "state")
    found = refused(lambda: run(catalog, "ALTER STATE ROTATE KEY"))
    assert "there is no key to encrypt the state by" in found and "--state-key" in found
    catalog.close()


def test_a_value_that_was_changed_is_no_plain_text(
    tmp_path: Path, opened: Callable[[], Catalog]
) -> None:
    catalog = opened()
    fill(catalog)
    catalog.close()
    with closing(sqlite3.connect(tmp_path / "state" / "state.db")) as raw:
        raw.execute("update connection set uri = substr(uri, 1, length(uri) - 8) || 'AAAAAAA='")
        raw.commit()
    catalog = opened()
    assert "is damaged" in refused(lambda: catalog.connection("shop"))
    catalog.close()

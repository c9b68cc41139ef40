"""A node, its capture and its clients on a state with a key."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from changefeed.catalog.sealing import STATE_KEY_VARIABLE
from tests.helpers.waiting import until
from tests.nemesis.service import Service
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.extended]


def changefeed(state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shell", "--state", str(state), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_node_and_its_clients_need_the_key(
    tmp_path: Path, postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key"
    key.write_bytes(Fernet.generate_key())
    reference = f"${{file:{key}}}"
    state = tmp_path / "state"
    postgres.execute("create table t (a int primary key); insert into t values (1)")
    monkeypatch.setenv(STATE_KEY_VARIABLE, key.read_text())
    service = Service(state)
    # The node and its capture have it by the flag alone.
    monkeypatch.delenv(STATE_KEY_VARIABLE)
    service.start(spark=("--master", "local[2]", "--state-key", reference))
    out = tmp_path / "out"
    try:
        uri = postgres.uri.replace("://postgres@", "://postgres:Zq9secret@")
        assert "Zq9secret" in uri
        service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{uri}'")
        service.execute(f"CREATE CHANGEFEED f FOR shop.public.t INTO 'file://{out}'")
        service.sync("f")
        without = changefeed(state, "-c", "SHOW CHANGEFEEDS")
        assert without.returncode and "CF6008" in without.stderr
        assert "is encrypted, and this process has no key" in without.stderr
        shown = changefeed(state, "--state-key", reference, "-c", "ALTER STATE ROTATE KEY")
        assert shown.returncode == 0 and "is in use already" in shown.stdout + shown.stderr
        literal = changefeed(state, "--state-key", key.read_text(), "-c", "SHOW CHANGEFEEDS")
        assert literal.returncode == 2 and "not a path or the key itself" in literal.stderr
        assert key.read_text() not in literal.stderr
        old = key.read_text()
        key.write_text(f"{Fernet.generate_key().decode()}\n{old}")
        shown = changefeed(state, "--state-key", reference, "-c", "ALTER STATE ROTATE KEY")
        assert "values are encrypted by key" in shown.stdout + shown.stderr
        key.write_text(key.read_text().splitlines()[0])
        # The node goes on: it reads the file again.
        more = tmp_path / "more"
        create = f"CREATE CHANGEFEED g FOR shop.public.t INTO 'file://{more}'"
        made = changefeed(state, "--state-key", reference, "-c", create)
        assert made.returncode == 0, made.stderr
        until(lambda: [*more.rglob("*.ndjson")], "rows of a feed made with the new key")
    finally:
        service.close()
    raw = b"".join(file.read_bytes() for file in state.rglob("*") if file.is_file())
    assert b"Zq9secret" not in raw

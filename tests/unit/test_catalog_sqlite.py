"""What only a state in a directory has: file modes, damage, places that cannot be written."""

from __future__ import annotations

import random
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from changefeed.catalog import Catalog, Function, JobSpec, TableProgress
from changefeed.catalog.database import Database, WriterTurns, _write_ahead
from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import TableName
from tests.helpers.waiting import until


def test_only_the_owner_can_read_the_secrets(tmp_path: Path) -> None:
    catalog = Catalog.open(tmp_path / "new" / "state")
    catalog.create_connection("shop", "postgresql://app:pw@db/shop")
    files = sorted((tmp_path / "new" / "state").iterdir())
    assert {file.name for file in files} == {"state.db", "state.db-shm", "state.db-wal"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE((tmp_path / "new" / "state").stat().st_mode) == 0o700
    assert catalog.directory == tmp_path / "new" / "state"
    catalog.close()


def test_a_commit_is_on_disk_and_readers_do_not_block_writers(tmp_path: Path) -> None:
    catalog = Catalog.open(tmp_path)
    with catalog._database.read() as transaction:
        pragmas = {
            name: transaction.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
        catalog.create_connection("a", "null://")  # while the read is open
        assert catalog.connection("a").uri == "null://"
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    catalog.close()


def test_a_file_that_is_no_state_is_reported(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"not a database, but long enough to be looked at" * 9)
    with pytest.raises(ChangefeedError) as caught:
        Catalog.open(tmp_path)
    assert caught.value.code.number == "CF6001"
    assert str(tmp_path) in caught.value.message


def test_a_state_that_is_damaged_while_it_is_used_is_reported(tmp_path: Path) -> None:
    catalog = Catalog.open(tmp_path)
    catalog.version()
    with closing(sqlite3.connect(tmp_path / "state.db")) as other:
        other.execute("DROP TABLE change")
    with pytest.raises(ChangefeedError) as caught:
        catalog.version()
    assert caught.value.code.number == "CF6001"
    assert str(tmp_path) in caught.value.message
    catalog.close()


def test_feeds_that_wake_together_ask_the_state_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Database.open(tmp_path)) as database:
        asked, arrived = [0], [0]
        looked = database._reported

        def counted() -> AbstractContextManager[None]:
            asked[0] += 1
            return looked()

        def ask() -> int:
            arrived[0] += 1
            return database.version()

        monkeypatch.setattr(database, "_reported", counted)
        with ThreadPoolExecutor(20) as threads:
            with database._counting:  # the first one has to wait
                answers = [threads.submit(ask) for _ in range(20)]
                until(lambda: arrived[0] == 20 and asked[0] == 1, "all have the question")
            assert len({answer.result(60) for answer in answers}) == 1
        # A thread may have been on its way to the question when the others had their answer.
        assert 2 <= asked[0] < 10


def test_a_damaged_file_gives_one_sentence(tmp_path: Path) -> None:
    """Whatever bytes have changed: CF6001 that says so, or nothing; and no value of the file."""
    whole = tmp_path / "whole"
    catalog = Catalog.open(whole)
    catalog.create_connection("shop", "postgresql://app:secret@db/shop")
    for n in range(12):
        table = TableProgress(TableName("shop", "public", f"t{n}"), f"t{n}")
        options = {"updated": "", "resolved": "5s"}
        catalog.create_job(JobSpec("shop", (f"TABLE t{n}",), (table,), f"f{n}", "null://", options))
    catalog.close()
    content = (whole / "state.db").read_bytes()
    draw = random.Random(4)
    told: set[str] = set()
    for number in range(150):
        hurt, home = bytearray(content), tmp_path / str(number)
        for _ in range(draw.choice([20, 200, 800])):
            hurt[draw.randrange(len(hurt))] = draw.randrange(256)
        home.mkdir()
        (home / "state.db").write_bytes(hurt)
        try:
            opened = Catalog.open(home)
            try:
                for job in opened.jobs():
                    opened.find_job(job.id)
                opened.version()
                opened.connection("shop")
                opened.create_connection("n", "null://")
            finally:
                opened.close()
        except ChangefeedError as error:
            assert "secret" not in str(error) and "location of the state" not in str(error.hint)
            told.add(error.code.number)
    assert "CF6001" in told


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("cut", "state.db is damaged"),
        ("a page", "state.db is damaged"),
        ("zeros", "state.db is damaged"),
        ("another file", "state.db is damaged"),
        ("empty", "gone or empty, and state.db-wal"),
        ("gone", "gone or empty, and state.db-wal"),
        ("folder", "unable to open database file"),
    ],
)
@pytest.mark.parametrize("must_exist", [True, False])
def test_a_state_that_was_lost_gives_one_sentence(
    tmp_path: Path, what: str, words: str, must_exist: bool
) -> None:
    """A copy of what a living process has: the file and its -wal."""
    live, home = Catalog.open(tmp_path / "live"), tmp_path / "home"
    live.create_connection("shop", "postgresql://app:secret@db/shop")
    home.mkdir()
    for name in ("state.db", "state.db-wal"):
        (home / name).write_bytes((tmp_path / "live" / name).read_bytes())
    live.close()
    path = home / "state.db"
    content = path.read_bytes()
    hurt = {
        "cut": content[:100],
        "a page": content[:4096][::-1] + content[4096:],
        "zeros": bytes(len(content)),
        "another file": b"PAR1" * 5000,
        "empty": b"",
    }
    path.unlink()
    if what in hurt:
        path.write_bytes(hurt[what])
        if hurt[what]:  # with it SQLite would have every page
            (home / "state.db-wal").unlink()
    elif what == "folder":
        path.mkdir()
    with pytest.raises(ChangefeedError, match=words) as caught:
        Catalog.open(home, must_exist=must_exist)
    assert caught.value.code.number == "CF6001" and str(home) in caught.value.message
    assert "secret" not in caught.value.message + caught.value.detail


def test_another_programs_database_gets_our_tables_and_keeps_its_own(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "state.db")) as theirs:
        theirs.execute("CREATE TABLE theirs (a)")
    catalog = Catalog.open(tmp_path)
    assert catalog.jobs() == []
    catalog.close()
    with closing(sqlite3.connect(tmp_path / "state.db")) as theirs:
        assert theirs.execute("SELECT count(*) FROM theirs").fetchone() == (0,)


def test_a_place_that_cannot_be_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ChangefeedError) as caught:
        Catalog.open(tmp_path / "file" / "state")
    assert caught.value.code.number == "CF6001"


@pytest.mark.parametrize("state", ["mysql://u:hunter2@h/db", "s3://u:hunter2@bucket/x"])
def test_a_url_that_cannot_hold_a_state(state: str) -> None:
    with pytest.raises(ChangefeedError) as caught:
        Catalog.open(state)
    assert caught.value.code.number == "CF1201"
    assert "hunter2" not in caught.value.message


def test_an_unreachable_server_is_reported_without_its_password() -> None:
    with pytest.raises(ChangefeedError) as caught:
        Catalog.open("postgresql://u:hunter2@127.0.0.1:1/db")
    assert caught.value.code.number == "CF6001"
    assert "hunter2" not in caught.value.message + caught.value.hint


_KILLED = """
import os, sys
from changefeed.catalog import Catalog
catalog = Catalog.open(sys.argv[1])
catalog.create_connection("kept", "null://")
with catalog._database.write() as transaction:
    from sqlalchemy import insert
    from changefeed.catalog import tables
    transaction.execute(insert(tables.connection).values(name="lost", uri="null://", created=1))
    os.kill(os.getpid(), 9)
"""


def test_a_kill_in_mid_transaction_leaves_what_was_committed(tmp_path: Path) -> None:
    child = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False)
    assert child.returncode == -9
    catalog = Catalog.open(tmp_path)
    assert [connection.name for connection in catalog.connections()] == ["kept"]
    catalog.create_connection("next", "null://")  # the dead writer holds no lock
    catalog.close()


def test_the_state_does_not_need_spark_or_a_source_driver(tmp_path: Path) -> None:
    """A shell must be up in well under a second: the state loads no heavy packages."""
    code = (
        "import sys; from changefeed.catalog import Catalog; Catalog.open(sys.argv[1]).close();"
        "print([m for m in ('pyspark', 'psycopg', 'confluent_kafka') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert out.stdout.strip() == "[]"


def test_python_functions_of_queries_are_kept(tmp_path: Path) -> None:
    catalog = Catalog.open(tmp_path)
    assert catalog.functions() == []
    arguments = (("a", "bigint"), ("b c", "decimal(10,2)"))
    made = Function("f", arguments, "string", "module:f", "/opt", vectorized=True)
    assert catalog.create_function(made)
    assert not catalog.create_function(made, if_not_exists=True)
    with pytest.raises(ChangefeedError, match='function "f" already exists'):
        catalog.create_function(made)
    catalog.close()
    catalog = Catalog.open(tmp_path)
    (found,) = catalog.functions()
    assert found.created > 0 and replace(found, created=0) == made
    assert catalog.drop_function("f") and not catalog.drop_function("f")
    catalog.close()


def test_a_second_catalog_of_a_process_keeps_the_locks_of_the_first(tmp_path: Path) -> None:
    """Without its locks, the next process to close the state would remove the log in use."""
    first = Catalog.open(tmp_path)
    first.create_connection("a", "null://")
    second = Catalog.open(tmp_path)
    look = f"from changefeed.catalog import Catalog; c = Catalog.open({str(tmp_path)!r}); "
    code = look + "assert c.connection('a'); c.close()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert (tmp_path / "state.db-wal").exists()
    first.create_connection("b", "null://")
    assert second.connection("b").uri == "null://"
    first.close()
    second.close()


def _log(state: Path) -> None:
    (state / "log" / "shop").mkdir(parents=True)
    (state / "log" / "shop" / "000001.seg").write_bytes(b"rows")


@pytest.mark.parametrize("left", [None, b""], ids=["gone", "empty"])
def test_a_lost_state_beside_its_change_logs_is_not_begun_anew(
    tmp_path: Path, left: bytes | None
) -> None:
    _log(tmp_path)
    if left is not None:
        (tmp_path / "state.db").write_bytes(left)
    for _ in range(2):  # the first look leaves nothing that the second would take for a state
        with pytest.raises(ChangefeedError) as caught:
            Catalog.open(tmp_path)
        assert caught.value.code.number == "CF6001"
        assert "state.db is gone or empty" in caught.value.message
        assert "(shop)" in caught.value.message and "backup" in caught.value.hint
    (tmp_path / "log").rename(tmp_path / "old")
    Catalog.open(tmp_path).close()


def test_folders_without_a_log_are_no_lost_state(tmp_path: Path) -> None:
    (tmp_path / "log" / "shop").mkdir(parents=True)
    Catalog.open(tmp_path).close()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_state_that_is_removed_while_it_is_used_is_reported(
    tmp_path: Path, replaced: bool
) -> None:
    """SQLite would go on in the removed file, and everything would be lost with the process."""
    catalog = Catalog.open(tmp_path / "a")
    catalog.create_connection("shop", "null://")
    if replaced:
        Catalog.open(tmp_path / "b").close()
        (tmp_path / "b" / "state.db").replace(tmp_path / "a" / "state.db")
    else:
        (tmp_path / "a" / "state.db").unlink()
    acts: list[Callable[[], object]] = [
        catalog.version,
        catalog.jobs,
        lambda: catalog.create_connection("lost", "null://"),
    ]
    for act in acts:
        with pytest.raises(ChangefeedError) as caught:
            act()
        assert caught.value.code.number == "CF6001"
        assert "removed or replaced" in caught.value.message
    catalog.close()


def test_a_state_that_another_process_locks_is_waited_for_then_reported(
    tmp_path: Path,
) -> None:
    catalog = Catalog(Database.open(tmp_path, busy_seconds=0.05))
    with closing(sqlite3.connect(tmp_path / "state.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ChangefeedError) as caught:
            catalog.create_connection("a", "null://")
        assert catalog.connections() == []  # a reader is not in the way
        other.rollback()
    assert caught.value.code.number == "CF6001"
    assert "locked" in caught.value.message and "lsof" in caught.value.hint
    catalog.create_connection("a", "null://")
    assert [connection.name for connection in catalog.connections()] == ["a"]
    catalog.close()


def test_a_new_file_that_another_process_locks_is_waited_for(tmp_path: Path) -> None:
    """SQLite's own busy handler is not asked when two processes set the mode of a new file."""
    path = tmp_path / "state.db"
    with (
        closing(sqlite3.connect(path)) as other,
        closing(sqlite3.connect(path, timeout=0)) as connection,
    ):
        other.execute("BEGIN EXCLUSIVE")
        attempts: list[str] = []

        class Locked:
            def execute(self, sql: str) -> None:
                attempts.append(sql)
                if len(attempts) == 3:
                    other.rollback()
                connection.execute(sql)

        _write_ahead(Locked(), 30)
        assert len(attempts) == 3
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_state_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    """The pragma makes SQLite fail as it does on a read-only file or disk."""
    catalog = Catalog.open(tmp_path)
    with catalog._database.read() as transaction:
        transaction.exec_driver_sql("PRAGMA query_only=ON")
    with pytest.raises(ChangefeedError) as caught:
        catalog.create_connection("a", "null://")
    assert caught.value.code.number == "CF6001"
    assert "readonly" in caught.value.message and "may not write" in caught.value.hint
    catalog.close()


def test_a_heartbeat_goes_before_all_writes_that_wait(tmp_path: Path) -> None:
    """Two hundred feeds save their progress, and the node must not count as dead for that."""
    catalog = Catalog.open(tmp_path)
    catalog.register_node("n", 1)
    database, done = catalog._database, list[str]()
    turns = database._turns

    def save() -> None:
        with database.write(notify=False):
            done.append("feed")

    def beat() -> None:
        catalog.heartbeat("n")
        done.append("pulse")

    with turns.take():
        feeds = [threading.Thread(target=save) for _ in range(20)]
        for thread in feeds:
            thread.start()
        until(lambda: len(turns.waiting[1]) == 20)
        pulse = threading.Thread(target=beat)
        pulse.start()
        until(lambda: len(turns.waiting[0]) == 1)
        assert done == []
    for thread in (pulse, *feeds):
        thread.join()
    # It says so after its turn, when the next one may have begun.
    assert done.index("pulse") < 10 and done.count("feed") == 20, done
    catalog.close()


def test_writers_have_their_turn_in_order_also_after_one_that_failed() -> None:
    turns, done = WriterTurns(), list[int]()

    def run(number: int) -> None:
        with turns.take():
            done.append(number)

    with pytest.raises(KeyError), turns.take():
        threads = [threading.Thread(target=run, args=(n,)) for n in range(20)]
        for count, thread in enumerate(threads, 1):
            thread.start()
            until(partial(_queued, turns, count))
        raise KeyError
    for thread in threads:
        thread.join()
    assert done == list(range(20))
    run(20)
    assert done[-1] == 20


def _queued(turns: WriterTurns, count: int) -> bool:
    return len(turns.waiting[1]) == count

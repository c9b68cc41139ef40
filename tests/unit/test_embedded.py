"""The embedded servers: who may read what, and each from start to end."""

from __future__ import annotations

import io
import os
import signal
import stat
from pathlib import Path

import psycopg
import pytest
from rich.console import Console

from changefeed.core.errors import ChangefeedError, Code
from changefeed.demo import shop
from changefeed.demo.databases import DATABASES, mariadb_program
from changefeed.demo.display import Display
from changefeed.embedded import EmbeddedMariaDB, EmbeddedPostgres
from changefeed.embedded.account import Account, server_account
from changefeed.embedded.binaries import readable_by, shared_folder, wheel_installation
from changefeed.embedded.child import spawn
from changefeed.embedded.server import free_port
from tests.services.cache import server_folder

STRANGER = Account(uid=64_123, gid=64_123)

#: The ports that Linux gives to outgoing connections.
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_account_is_never_root() -> None:
    assert server_account().uid != 0


def test_a_private_parent_is_out_of_reach(tmp_path: Path) -> None:
    home = tmp_path / "home"
    inner = home / "open"
    inner.mkdir(parents=True)
    inner.chmod(0o755)
    home.chmod(0o700)
    assert not STRANGER.reaches(inner)
    owner = Account(os.geteuid(), os.getegid())
    assert owner.reaches(inner)


def _installation(folder: Path) -> Path:
    for part in ("bin", "lib", "share"):
        (folder / part).mkdir(parents=True)
        (folder / part / "postgres").write_text("program")
    return folder


def test_unreadable_programs_are_copied_once(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    installation = _installation(private / "wheel" / "pg")
    copies = tmp_path / "copies"
    copies.mkdir()
    copied = readable_by(STRANGER, installation, copies)
    assert copies in copied.parents
    assert (copied / "bin" / "postgres").read_text() == "program"
    assert readable_by(STRANGER, installation, copies) == copied
    assert stat.S_IMODE(private.stat().st_mode) == 0o700  # nobody's folder was opened


def test_libraries_beside_the_package_are_copied_too(tmp_path: Path) -> None:
    """The wheel's programs find them by a path relative to themselves, with three steps up."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    installation = _installation(private / "wheel" / "pg")
    (private / "wheel.libs").mkdir()
    (private / "wheel.libs" / "libpq.so").write_text("library")
    copies = tmp_path / "copies"
    copies.mkdir()
    copied = readable_by(STRANGER, installation, copies)
    assert (copied / "bin" / "../../../wheel.libs" / "libpq.so").read_text() == "library"


def test_readable_programs_stay_where_they_are(tmp_path: Path) -> None:
    installation = _installation(tmp_path / "pg")
    owner = Account(os.geteuid(), os.getegid())
    assert readable_by(owner, installation) == installation


def test_shared_folder_is_ours_alone() -> None:
    folder = shared_folder("changefeed-unit-test")
    try:
        assert shared_folder("changefeed-unit-test") == folder
        folder.chmod(0o777)
        with pytest.raises(PermissionError, match="not a folder of ours alone"):
            shared_folder("changefeed-unit-test")
    finally:
        folder.rmdir()


def test_missing_wheel_names_the_extra() -> None:
    with pytest.raises(ChangefeedError, match="not installed") as caught:
        wheel_installation("no_such_wheel")
    assert "changefeed[demo]" in caught.value.hint


def test_a_child_gets_only_the_environment_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_SECRET", "hidden")
    log = tmp_path / "log"
    child = spawn(
        [Path("/usr/bin/env")],
        log_file=log,
        at_our_death=signal.SIGKILL,
        environment={"ONLY": "this"},
    )
    assert child.wait(20) == 0
    assert "ONLY=this" in log.read_text().splitlines()
    assert "OUR_SECRET" not in log.read_text()


def test_a_free_port_is_none_that_an_outgoing_connection_could_take() -> None:
    first = int(RANGE.read_text().split()[0]) if RANGE.exists() else 0
    if first < 32_768:
        pytest.skip("this system gives other ports to outgoing connections")
    ports = {free_port() for _ in range(50)}
    assert all(port < first for port in ports)
    assert len(ports) > 40, "processes that ask at once get different ones"


@pytest.mark.postgres
def test_server_from_start_to_end() -> None:
    with server_folder("embedded") as folder:
        with EmbeddedPostgres(folder / "data") as server:
            with psycopg.connect(server.uri(), autocommit=True) as connection:
                found = connection.execute("show wal_level").fetchone()
                assert found == ("logical",)
                connection.execute("create table kept (a int); insert into kept values (1)")
                connection.execute("select pg_create_logical_replication_slot('s', 'pgoutput')")
            server.restart()
            with psycopg.connect(server.uri()) as connection:
                assert connection.execute("select a from kept").fetchone() == (1,)
        assert not server.running
        assert stat.S_IMODE((folder / "data").stat().st_mode) == 0o700


@pytest.mark.postgres
def test_a_server_that_cannot_start_says_why() -> None:
    with server_folder("embedded") as folder:
        server = EmbeddedPostgres(folder / "data", settings={"no_such_setting": "1"})
        with pytest.raises(ChangefeedError, match="did not start") as caught:
            server.start()
        assert "no_such_setting" in caught.value.detail


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("postgresql", marks=pytest.mark.postgres),
        pytest.param("mysql", marks=[pytest.mark.slow, pytest.mark.extended]),
    ],
)
def test_the_shop_keeps_selling(source: str) -> None:
    """Each kind of commit of the demo's writer, told after it happened."""
    database = DATABASES[source]()
    display = Display(Console(file=io.StringIO()))
    with server_folder("embedded") as folder, database.server(folder, None, display) as server:
        uri = server.uri(database.name)
        database.create(uri)
        assert shop.row_count(database, uri, shop.TABLES) == 17
        told: list[str] = []
        writer = shop.ShopWriter(database, uri, told.append, pause=0.0)
        with database.connect(uri) as connection:
            for _ in range(60):
                writer._commit_one(connection)
        kinds = {"places order", "is paid", "is shipped", "is deleted", "moves to", "costs"}
        assert {kind for kind in kinds if any(kind in line for line in told)} == kinds
        assert shop.row_count(database, uri, shop.TABLES) > 17
        assert writer.failure is None


@pytest.mark.slow
@pytest.mark.extended
def test_a_mariadb_starts_again_with_what_it_had_and_says_why_it_does_not() -> None:
    display = Display(Console(file=io.StringIO()))
    with server_folder("embedded") as folder:
        program = mariadb_program(folder / "program", display)
        with EmbeddedMariaDB(folder / "data", program) as first:
            database = DATABASES["mysql"]()
            database.create(first.uri("shop"))
            assert stat.S_IMODE((folder / "data").stat().st_mode) == 0o700
            taken = EmbeddedMariaDB(folder / "other", program, port=first.port)
            with pytest.raises(ChangefeedError, match="did not start") as caught:
                taken.start()
            assert "Address already in use" in caught.value.detail
        with EmbeddedMariaDB(folder / "data", program) as again:
            assert shop.row_count(database, again.uri("shop"), shop.TABLES) == 17


def test_a_machine_without_a_mariadb_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    display = Display(Console(file=io.StringIO()))
    with pytest.raises(ChangefeedError, match="no server of MariaDB") as caught:
        mariadb_program(tmp_path / "program", display, path=str(tmp_path))
    assert caught.value.code is Code.NOT_SUPPORTED
    assert "Linux aarch64" in caught.value.detail
    assert "apt install mariadb-server" in caught.value.hint
    installed = tmp_path / "mariadbd"
    installed.write_text("a program")
    installed.chmod(0o755)
    assert mariadb_program(tmp_path / "program", display, path=str(tmp_path)) == installed

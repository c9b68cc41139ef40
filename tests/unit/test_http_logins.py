"""Who may do what over HTTP: tokens, roles, TLS, and the audit."""

from __future__ import annotations

import base64
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from changefeed.app import Application
from changefeed.catalog import Catalog
from changefeed.core.errors import ChangefeedError, Code
from changefeed.statements.context import HANDLERS
from changefeed.statements.rights import LEAST, Role, least
from grammar import nodes
from grammar.parser import parse
from grammar.printer import to_sql
from tests.golden.world import NOW, World
from tests.helpers.served import Bench

MADE = "CREATE CHANGEFEED f FOR orders, items INTO 'kafka://u:hunter2@k:9092'"


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Bench]:
    """A served world that asks for tokens, with a feed."""
    world = World(tmp_path)
    world.shop()
    world.run(MADE)
    bench = Bench(world)
    with bench.serve(logins=True) as bench.server:
        yield bench
    world.close()


def token(bench: Bench, name: str, options: str = "") -> str:
    """A new user's token."""
    (row,) = bench.world.run(f"CREATE USER {name}{options}").rows
    return str(row[-1])


def test_every_statement_has_a_least_role() -> None:
    assert LEAST.keys() == HANDLERS.keys()


@pytest.mark.parametrize(
    ("statement", "role"),
    [
        ("SHOW CHANGEFEEDS WHERE lag > '1s'", Role.VIEWER),
        ("SHOW AUDIT LIMIT 1", Role.ADMIN),
        ("ALTER CHANGEFEED f RESCAN", Role.OPERATOR),
        ("ALTER CHANGEFEED f RESCAN SET diff", Role.ADMIN),
        ("ALTER CHANGEFEED f INTO 'null://'", Role.ADMIN),
        ("VALIDATE CHANGEFEED f", Role.OPERATOR),
        ("VALIDATE CREATE CHANGEFEED FOR t INTO 'file:///etc'", Role.ADMIN),
        ("EXPLAIN CREATE CHANGEFEED FOR t INTO 'file:///etc'", Role.ADMIN),
        ("VALIDATE ALTER CHANGEFEED f RESCAN", Role.OPERATOR),
        ("CREATE CHANGEFEED FOR t", Role.ADMIN),
        ("CHECK EXTERNAL CONNECTION c", Role.OPERATOR),
        ("CREATE EXTERNAL CONNECTION c AS 'kafka://u:${exec:id}@h'", Role.ADMIN),
        ("ALTER EXTERNAL CONNECTION c AS 'kafka://u:${file:/etc/shadow}@h'", Role.ADMIN),
        ("ALTER CHANGEFEED f SET webhook_auth_header = '${env:HOME}'", Role.ADMIN),
        ("PAUSE ALL CHANGEFEEDS", Role.OPERATOR),
    ],
)
def test_a_statement_is_judged_by_what_it_reaches(statement: str, role: Role) -> None:
    assert least(parse(statement)) is role
    assert least(nodes.ShowWhere(nodes.ShowUsers())) is Role.ADMIN


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE USER ann",
        "CREATE USER \"Ann X\" WITH role = 'admin', expires = '90d'",
        "ALTER USER ann WITH token = 'new'",
        "DROP USER IF EXISTS ann",
        "SHOW USERS",
        "SHOW AUDIT WHERE \"user\" = 'ann' LIMIT 20",
    ],
)
def test_statements_about_users_are_printed_as_they_parse(statement: str) -> None:
    parsed = parse(statement)
    assert parse(to_sql(parsed)) == parsed


PROTECTED = (
    "/v1/feeds",
    "/v1/names",
    "/v1/summary",
    "/v1/sources/shop/columns?table=orders",
    "/v1/openapi.json",
    "/v1/session",
    "/metrics",
)


def test_without_a_token_there_are_only_the_probes(closed: Bench) -> None:
    for path in PROTECTED:
        status, headers, text = closed.ask(path)
        assert status == 401 and b"CF1402" in text and b"hunter2" not in text
        assert headers["WWW-Authenticate"] == 'Basic realm="changefeed"'
    assert closed.run("SHOW NODES")[0] == 401
    assert closed.ask("/v1/statements", b"{")[0] == 401, "before the body is read"
    assert closed.get("/livez")[0] == closed.get("/readyz")[0] == 200


@pytest.mark.parametrize(
    "header", ["Bearer nobody", "Bearer ", "Basic !!!", "Basic bm9wZQ==", "Digest x", "Bearer \xe9"]
)
def test_a_token_that_no_user_has(closed: Bench, header: str) -> None:
    token(closed, "ann")
    assert closed.ask("/v1/feeds", Authorization=header)[0] == 401


def test_a_token_ends_is_replaced_and_is_revoked(closed: Bench) -> None:
    closed.token = token(closed, "ann", " WITH expires = '1h'")
    assert closed.json("/v1/feeds")[0] == 200
    basic = base64.b64encode(f"ann:{closed.token}".encode()).decode()
    assert closed.ask("/", Authorization=f"Basic {basic}")[0] == 200
    (seen,) = closed.world.run("SHOW USERS").objects()
    assert (seen["user"], seen["role"]) == ("ann", "viewer") and seen["seen"] and seen["expires"]
    (row,) = closed.world.run("ALTER USER ann WITH token = 'new', expires = 'never'").rows
    assert closed.json("/v1/feeds")[0] == 401
    closed.token = str(row[-1])
    assert closed.json("/v1/feeds")[0] == 200
    closed.world.run("ALTER USER ann WITH expires = '1m'")
    closed.world.clock.advance(61)
    assert closed.json("/v1/feeds")[0] == 401
    closed.token = token(closed, "bob")
    closed.world.run("DROP USER bob")
    assert closed.json("/v1/feeds")[0] == 401


def test_a_token_is_stored_and_shown_nowhere(closed: Bench) -> None:
    secret = token(closed, "ann", " WITH role = 'admin'")
    assert len(secret) == 43
    closed.token = secret
    closed.run("ALTER USER ann WITH role = 'admin'")
    for statement in ("SHOW USERS", "SHOW AUDIT"):
        assert secret not in str(closed.run(statement))
    state = Path(closed.world.catalog.directory)
    stored = b"".join(file.read_bytes() for file in state.rglob("*") if file.is_file())
    assert b"ann" in stored and secret.encode() not in stored


def test_a_viewer_reads_and_an_operator_steers(closed: Bench) -> None:
    closed.world.node.deliver("f", NOW)
    closed.token = token(closed, "eve")
    assert closed.json("/v1/feeds/f")[0] == 200 and closed.get("/metrics")[0] == 200
    for path in ("pause", "resume", "retry", "rescan"):
        status, body = closed.json(f"/v1/feeds/f/{path}", {})
        assert (status, body["code"]) == (403, "CF1403")
    for statement in (
        "ALTER USER eve WITH role = 'admin'",
        "CREATE USER mallory WITH role = 'admin'",
        "SHOW USERS",
        "SHOW AUDIT LIMIT 5",
        "CREATE EXTERNAL CONNECTION x AS 'file:///etc'",
        "VALIDATE CREATE CHANGEFEED FOR orders INTO 'file:///etc'",
        "SHOW NODES; DROP CHANGEFEED f",
    ):
        status, body = closed.run(statement)
        assert (status, body["code"]) == (403, "CF1403"), statement
    refused = "the statement needs the role admin, and eve has the role viewer"
    body = closed.run("SHOW USERS")[1]
    assert body["error"] == refused
    assert "ALTER USER eve WITH role = 'admin'" in body["hint"]
    assert closed.world.interpreter.feeds() == ["f"]
    closed.token = token(closed, "oscar", " WITH role = 'operator'")
    assert closed.json("/v1/feeds/f/pause", {})[1]["status"] == "paused"
    assert closed.run("RESUME CHANGEFEED f; ALTER CHANGEFEED f RESCAN")[0] == 200
    assert closed.run("DROP CHANGEFEED f")[0] == 403
    closed.world.run("ALTER USER oscar WITH role = 'admin'")
    assert closed.run("DROP CHANGEFEED f")[0] == 200


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_only_an_admin_has_the_node_read_files_and_run_commands(
    closed: Bench, role: str, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    uri = f"kafka://u:${{exec:touch {made}}}@k:9092"
    statements = (
        f"CREATE EXTERNAL CONNECTION x AS '{uri}'",
        f"ALTER EXTERNAL CONNECTION shop AS '{uri}'",
        f"CREATE CHANGEFEED FOR orders INTO '{uri}'",
        f"VALIDATE CREATE CHANGEFEED FOR orders INTO '{uri}'",
        f"EXPLAIN CREATE CHANGEFEED FOR orders INTO '{uri}'",
        f"ALTER CHANGEFEED f INTO '{uri}'",
        f"VALIDATE ALTER CHANGEFEED f INTO '{uri}'",
        f"ALTER CHANGEFEED f SET webhook_auth_header = '${{exec:touch {made}}}'",
    )
    closed.token = token(closed, "eve", f" WITH role = '{role}'")
    for statement in statements:
        status, body = closed.run(statement)
        assert (status, body["code"]) == (403, "CF1403"), statement
    assert not made.exists()
    closed.world.run("ALTER USER eve WITH role = 'admin'")
    closed.run(statements[3])
    assert made.exists()


def test_the_audit_says_who_did_what_from_where(closed: Bench) -> None:
    closed.token = token(closed, "oscar", " WITH role = 'operator'")
    closed.run("PAUSE CHANGEFEED f")
    closed.run("CREATE EXTERNAL CONNECTION k AS 'kafka://u:hunter2@k:9092'")
    closed.run("PAUSE CHANGEFEED nobody")
    closed.run("SHOW CHANGEFEEDS")
    shown = closed.world.run("SHOW AUDIT").objects()
    assert [(e["user"], e["origin"], e["code"]) for e in shown[:3]] == [
        ("oscar", "127.0.0.1", "CF1101"),
        ("oscar", "127.0.0.1", "CF1403"),
        ("oscar", "127.0.0.1", None),
    ]
    assert shown[2]["statement"] == "PAUSE CHANGEFEED f"
    assert str(shown[1]["statement"]).startswith("CREATE EXTERNAL CONNECTION k AS 'kafka://***")
    assert shown[3]["statement"] == "CREATE USER oscar WITH role = 'operator'"
    assert shown[3]["origin"] == "local" and "hunter2" not in str(shown)


def test_the_audit_keeps_the_newest(tmp_path: Path) -> None:
    catalog = Catalog.open(tmp_path / "state")
    catalog.kept_audit = 3
    for number in range(5):
        catalog.record_audit("ann", "local", f"DROP CHANGEFEED f{number}", None)
    assert [entry.statement[-1] for entry in catalog.audit(10)] == ["4", "3", "2"]
    catalog.close()


@pytest.mark.parametrize(
    ("statement", "code", "words"),
    [
        ("CREATE USER ann", "CF1102", 'user "ann" already exists'),
        (
            "CREATE USER b WITH role = 'boss'",
            "CF1204",
            "unknown role: boss, valid values are 'viewer', 'operator' and 'admin'",
        ),
        ("CREATE USER b WITH expires = 'soon'", "CF1204", "expires is a duration as '90d'"),
        ("CREATE USER b WITH expires = '-1h'", "CF1204", "expires is a duration as '90d'"),
        ("CREATE USER b WITH token = 'new'", "CF1205", "leave out the option token"),
        ("CREATE USER b WITH rol = 'viewer'", "CF1203", 'invalid option "rol"'),
        (
            "ALTER USER ann WITH token = 'Zq9-Zq9'",
            "CF1204",
            "unknown token, the valid value is 'new'",
        ),
        ("ALTER USER anna WITH role = 'admin'", "CF1101", 'user "anna" does not exist'),
        ("DROP USER anna", "CF1101", 'user "anna" does not exist'),
    ],
)
def test_what_is_wrong_with_a_user(closed: Bench, statement: str, code: str, words: str) -> None:
    token(closed, "ann")
    with pytest.raises(ChangefeedError, match=re.escape(words)) as caught:
        closed.world.run(statement)
    assert caught.value.code.number == code
    assert closed.world.run("DROP USER IF EXISTS anna").notices


def test_another_site_is_refused_with_a_login_too(closed: Bench) -> None:
    """A browser sends the password that it knows, whoever asks."""
    closed.token = token(closed, "ann", " WITH role = 'admin'")
    status, _, _ = closed.ask("/v1/feeds/f/pause", {}, Origin="https://evil.example")
    assert status == 403


def test_other_machines_state_nothing_without_tls(tmp_path: Path) -> None:
    with Application(str(tmp_path / "state")) as application:
        with application.http("0.0.0.0", 0) as server:
            page = f"http://127.0.0.1:{server.address.rpartition(':')[2]}"
            for path in ("/v1/feeds", "/v1/statements", "/v1/openapi.json"):
                with pytest.raises(urllib.error.HTTPError) as refused:
                    urllib.request.urlopen(page + path, timeout=30)
                assert refused.value.code == 404
                refused.value.close()
            with urllib.request.urlopen(f"{page}/readyz", timeout=30) as answer:
                assert answer.status == 200


def test_a_token_does_not_travel_in_the_clear(tmp_path: Path) -> None:
    with Application(str(tmp_path)) as application:
        with pytest.raises(ChangefeedError, match="read on its way") as refused:
            application.http("0.0.0.0", 0, login=True)
        assert refused.value.code is Code.NOT_SUPPORTED


def test_other_machines_log_in_over_tls(tmp_path: Path) -> None:
    with Application(str(tmp_path / "state")) as application:
        wrong = tmp_path / "wrong.pem"
        wrong.write_text("nothing")
        with pytest.raises(ChangefeedError) as caught:
            application.http("0.0.0.0", 0, tls=(str(wrong), str(wrong)))
        assert caught.value.code.number == "CF6007"
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1", "localhost")
        cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
        issued.cert_chain_pems[0].write_to_path(str(cert))
        issued.private_key_pem.write_to_path(str(key))
        context = ssl.create_default_context()
        authority.configure_trust(context)
        with application.http("0.0.0.0", 0, tls=(str(cert), str(key))) as server:
            assert server.address.startswith("https://0.0.0.0:")
            page = f"https://127.0.0.1:{server.address.rpartition(':')[2]}"
            with urllib.request.urlopen(f"{page}/livez", timeout=30, context=context) as answer:
                assert answer.read() == b"ok\n"
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"{page}/v1/feeds", timeout=30, context=context)
            assert refused.value.code == 401
            refused.value.close()

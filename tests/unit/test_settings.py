"""Parameters of URIs as fields: values, defaults, errors, and what is listed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from changefeed.core.errors import ChangefeedError, Code, Problems
from changefeed.core.settings import (
    Parameter,
    ParameterKind,
    Settings,
    Tls,
    group,
    invalid,
    read_pem,
    rest,
    setting,
    several,
)

BASE64 = "`base64 -w0 FILE` writes it; + is written %2B."


@dataclass(frozen=True, kw_only=True)
class Login(Settings):
    user_token: str = setting("", "Opens the door.", secret=True)


@dataclass(frozen=True, kw_only=True)
class Door(Settings):
    prefix: str = setting("", "A prefix.", shown="none")
    count: int = setting(5, "How many.", name="n", least=1, most=9)
    size: int = setting("8MB", "How large.", ParameterKind.SIZE, least=1)
    wait: float = setting("30s", "How long.", ParameterKind.DURATION)
    fast: bool = setting(False, "Whether it is.")
    way: str = setting("IN", "Which way.", values=("IN", "OUT"))
    pem: str | None = setting(None, "A text.", ParameterKind.BASE64, convert=read_pem)
    login: Login = group(Login, "door")
    driver: Mapping[str, str] = several(Parameter("fs.*", "Of the driver."))

    def check(self) -> Iterator[ChangefeedError]:
        if self.fast and self.way == "OUT":
            yield invalid("out is slow")


@dataclass(frozen=True, kw_only=True)
class Lenient(Settings):
    any_case = True
    called = "door source"

    read_from: str = setting("", "Where to read.")
    more: tuple[tuple[str, str], ...] = rest()


def problems(uri: str) -> list[ChangefeedError]:
    with pytest.raises(ChangefeedError) as caught:
        Door.read(uri)
    return list(getattr(caught.value, "problems", None) or [caught.value])


def test_a_field_has_its_default_where_the_uri_has_no_parameter() -> None:
    door = Door.read("door://h")
    assert (door.prefix, door.count, door.size, door.wait) == ("", 5, 8_000_000, 30.0)
    assert (door.fast, door.way, door.pem, door.given) == (False, "IN", None, frozenset())


def test_values() -> None:
    door = Door.read(
        "door://u:pw@h?prefix=a+b&n=7&size=1KiB&wait=1m30s&fast=f&way=out&pem=Y2Vy%2BA=="
        "&user_token=secret&fs.a=1",
        {"x": 1},
    )
    assert (door.prefix, door.count, door.size, door.wait) == ("a+b", 7, 1024, 90.0)
    assert (door.fast, door.way, door.pem) == (False, "OUT", "cer\xf8")
    assert (door.login.user_token, door.driver) == ("secret", {"fs.a": "1"})
    assert (door.options, door.uri.user) == ({"x": 1}, "u")
    assert "n" in door.given and "user_token" in door.login.given
    for hidden in ("secret", "pw", "cer", "fs.a"):
        assert hidden not in repr(door).replace("'pem'", "").replace("'fs.a'", "")


@pytest.mark.parametrize(
    ("query", "message", "hint"),
    [
        ("n=x", "param n must be an integer", ""),
        ("n=10", "param n must be between 1 and 9", ""),
        ("size=0", "param size must be a size such as 16MB, not 0", ""),
        ("wait=-1s", "param wait must be a duration such as 30s, not -1s", ""),
        ("wait=soon", "param wait must be a duration such as 30s, not soon", ""),
        ("fast=maybe", "param fast must be a bool", "write true or false."),
        ("fast=", "param fast must be a bool", "write true or false."),
        ("way=OT", "param way must be one of IN, OUT", "did you mean OUT?"),
        (
            "pem=***",
            "param pem must be base 64 encoded",
            BASE64,
        ),
        ("prefix=1&prefix=2", "param prefix is given twice", ""),
        ("fast=true&way=out", "out is slow", ""),
    ],
)
def test_what_is_wrong_with_a_value(query: str, message: str, hint: str) -> None:
    (error,) = problems(f"door://h?{query}")
    assert (error.code, error.message, error.hint) == (Code.INVALID_PARAMETER, message, hint)


def test_unknown_parameters_come_with_a_suggestion_and_the_known_ones() -> None:
    (error,) = problems("door://h?prefx=secret-value&zzz=1")
    assert error.code is Code.UNKNOWN_PARAMETER
    assert error.message == "unknown door sink query parameters: [prefx, zzz]"
    known = ", ".join(one.name for one in Door.parameters())
    assert error.hint == f'did you mean "prefix" for "prefx"? it takes {known}'
    assert "secret-value" not in repr(error)
    with pytest.raises(ChangefeedError) as caught:
        Settings.read("null://?x=1")
    assert caught.value.hint == "it takes none"


def test_another_scheme_has_no_parameter_of_a_group() -> None:
    (error,) = problems("gate://h?user_token=a")
    assert error.message == "unknown gate sink query parameters: [user_token]"
    assert "user_token" not in error.hint


def test_all_problems_come_at_once() -> None:
    with pytest.raises(Problems) as caught:
        Door.read("door://h?n=x&way=y&zzz=1")
    assert [p.code.number for p in caught.value.problems] == ["CF1207", "CF1207", "CF1202"]


def test_names_in_any_case_and_the_rest() -> None:
    lenient = Lenient.read("door://h?Read-From=a&x=1&y")
    assert (lenient.read_from, lenient.more) == ("a", (("x", "1"), ("y", "")))
    with pytest.raises(ChangefeedError) as caught:
        Lenient.read("door://h?read_frm=a")
    assert caught.value.hint == 'did you mean "read_from" for "read_frm"?'


def test_what_is_listed() -> None:
    listed = {one.name: (one.written, one.default) for one in Door.parameters()}
    assert list(listed) == [
        *("prefix", "n", "size", "wait", "fast", "way", "pem", "user_token", "fs.*")
    ]
    assert listed["prefix"] == ("text", "none")
    assert listed["size"] == ("size", "8MB")
    assert listed["fast"] == ("true or false", "false")
    assert listed["way"] == ("IN, OUT", "IN")


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(ChangefeedError, match="client_cert requires client_key to be set"):
        Tls.read("door://h?client_cert=eA")
    assert Tls.read("door://h?ca_cert=eA&insecure_tls_skip_verify=1").wanted == [
        "ca_cert",
        "insecure_tls_skip_verify",
    ]


@pytest.mark.parametrize(("name", "secret"), [("hush", True), ("my_token", False)])
def test_a_secret_says_so_by_its_name(name: str, secret: bool) -> None:
    with pytest.raises(ValueError, match=name):
        Parameter(name, "Something.", secret=secret)


@pytest.mark.parametrize(
    ("kind", "values"),
    [(ParameterKind.CHOICE, ()), (ParameterKind.TEXT, ("a",))],
    ids=["none", "needless"],
)
def test_a_choice_has_values(kind: ParameterKind, values: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="choice"):
        Parameter("x", "Something.", kind, values)

"""Tokens: who asks, and what they may do."""

from __future__ import annotations

import hashlib
import logging
import pickle
from typing import TYPE_CHECKING

import pytest

from penstock.errors import BadSetting, PermissionDenied, Unauthenticated
from penstock.server.auth import Everyone, TokenAuth, hash_token, matches, new_token
from penstock.testing import FakeClock
from tests.server.running import write_tokens

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.toml"


def auth_of(path: Path, clock: FakeClock | None = None, **tokens: dict) -> TokenAuth:
    return TokenAuth(write_tokens(path, tokens), clock=clock)


def test_a_token_gives_the_rights_of_its_entry(path: Path) -> None:
    principal = auth_of(path, billing={"consume": ["orders", "pay-*"]}).authenticate("billing-token")
    assert principal.name == "billing"
    principal.require("consume", "orders")
    principal.require("consume", "pay-2024")
    for right, topic in [
        ("consume", "orders.dlq"),
        ("consume", "other"),
        ("publish", "orders"),
        ("read", "orders"),
        ("admin", "orders"),
    ]:
        with pytest.raises(PermissionDenied):
            principal.require(right, topic)
        assert not principal.may(right, topic)


def test_admin_includes_the_other_rights_on_its_topics_only(path: Path) -> None:
    principal = auth_of(path, boss={"admin": ["orders"]}).authenticate("boss-token")
    for right in ("publish", "consume", "read", "admin"):
        principal.require(right, "orders")
        with pytest.raises(PermissionDenied):
            principal.require(right, "other")


def test_the_whole_store_is_what_a_star_alone_names(path: Path) -> None:
    auth = auth_of(path, all={"read": ["*"]}, most={"read": ["a*", "**x"]})
    auth.authenticate("all-token").require("read", None)
    with pytest.raises(PermissionDenied):
        auth.authenticate("most-token").require("read", None)


@pytest.mark.parametrize("token", [None, "", "wrong", "billing", "x" * 513, "billing-token ", "billing-token\n", "é", "\ud800"])
def test_what_is_no_token_is_refused(path: Path, token: str | None) -> None:
    auth = auth_of(path, billing={"consume": ["orders"]})
    with pytest.raises(Unauthenticated) as error:
        auth.authenticate(token)
    assert token in (None, "") or token not in str(error.value), "no secret in errors"


def test_a_token_ends_when_it_expires_also_for_who_has_shown_it_before(path: Path) -> None:
    clock = FakeClock(now_us=1_700_000_000_000_000)
    auth = auth_of(path, clock, guest={"read": ["*"], "expires": "2023-11-14T22:13:30Z"})
    principal = auth.authenticate("guest-token")
    clock.advance(9)
    principal.require("read", "t")
    clock.advance(1)
    for ask in (
        lambda: principal.require("read", "t"),
        lambda: auth.authenticate("guest-token"),
        lambda: principal.may("read", "t"),
    ):
        with pytest.raises(Unauthenticated, match="expired"):
            ask()


def test_a_reload_takes_tokens_and_rights_away_from_who_has_shown_them_before(path: Path) -> None:
    auth = auth_of(path, a={"read": ["t"]}, b={"read": ["t"]})
    a, b = auth.authenticate("a-token"), auth.authenticate("b-token")
    write_tokens(path, {"a": {"read": ["other"]}})
    auth.reload()
    with pytest.raises(PermissionDenied):
        a.require("read", "t")
    with pytest.raises(Unauthenticated):
        b.require("read", "t")


def test_a_bad_file_keeps_the_old_table_and_says_why(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    auth = auth_of(path, a={"read": ["t"]})
    path.write_text("[[token]]\nname = 'a'\n")
    with pytest.raises(BadSetting, match="sha256"):
        auth.reload()
    with caplog.at_level(logging.ERROR, "penstock"):
        assert not auth.reload_or_keep()
    assert "sha256" in caplog.text
    auth.authenticate("a-token").require("read", "t")
    write_tokens(path, {"c": {"read": ["t"]}})
    assert auth.reload_or_keep()
    auth.authenticate("c-token")


GOOD = f"""
[[token]]
name = "a"
sha256 = "{"0" * 64}"
expires = 2027-01-01T00:00:00Z
[token.rights]
read = ["t"]
"""


def test_the_example_of_a_good_file_is_good(path: Path) -> None:
    path.write_text(GOOD)
    TokenAuth(str(path))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "token = []",
        "token = 1",
        "[token]\nname = 'a'",
        "not toml",
        GOOD.replace("sha256", "sha265"),
        GOOD.replace("sha256", "token"),
        GOOD.replace("name", "nmae"),
        GOOD.replace('"a"', '""'),
        GOOD.replace('"a"', '"a\\nb"'),
        GOOD.replace('"a"', "1"),
        GOOD.replace("0" * 64, "0" * 63),
        GOOD.replace("0" * 64, "G" * 64),
        GOOD.replace("2027-01-01T00:00:00Z", "2027-01-01T00:00:00"),
        GOOD.replace("2027-01-01T00:00:00Z", "2027-01-01"),
        GOOD.replace("2027-01-01T00:00:00Z", "'never'"),
        GOOD.replace("2027-01-01T00:00:00Z", "1e400"),
        GOOD.replace("[token.rights]\n", ""),
        GOOD.replace('read = ["t"]', ""),
        GOOD.replace('["t"]', "[]"),
        GOOD.replace('["t"]', '"t"'),
        GOOD.replace('["t"]', "[1]"),
        GOOD.replace('["t"]', '["(a+)+$"]'),
        GOOD.replace('["t"]', '[""]'),
        GOOD.replace("read", "reed"),
        GOOD.replace("read", "Admin"),
        GOOD + GOOD,
        GOOD + "\n[tokens]\n",
        "a = " + "[" * 2000 + "]" * 2000,
    ],
)
def test_whatever_is_odd_refuses_the_whole_file(path: Path, text: str) -> None:
    """A typo must never look like a server without security."""
    path.write_text(text)
    with pytest.raises(BadSetting):
        TokenAuth(str(path))


def test_a_file_that_is_missing_or_open_to_everybody_is_refused(path: Path) -> None:
    with pytest.raises(BadSetting, match="cannot be read"):
        TokenAuth(str(path))
    path.write_text(GOOD)
    path.chmod(0o666)
    with pytest.raises(BadSetting, match="everybody"):
        TokenAuth(str(path))


def test_the_token_itself_is_never_shown_though_it_was_put_in_place_of_its_hash(path: Path) -> None:
    path.write_text(GOOD.replace("0" * 64, "my-secret"))
    with pytest.raises(BadSetting) as error:
        TokenAuth(str(path))
    assert "my-secret" not in str(error.value)
    auth = auth_of(path, a={"read": ["t"]})
    assert hash_token("a-token").hex() not in repr(auth.authenticate("a-token")) + repr(auth.entry(hash_token("a-token")))


def test_new_tokens_differ_and_are_accepted_by_their_hash() -> None:
    first, second = new_token(), new_token()
    assert first.token != second.token
    assert first.sha256 == hashlib.sha256(first.token.encode()).hexdigest()


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("orders", "orders", True), ("orders", "orders2", False), ("orders*", "orders", True), ("orders*", "orders.dlq", True),
        ("*", "x", True), ("*.dlq", "a.dlq", True), ("*.dlq", "a.dlqx", False), ("a*b*c", "a1b2c", True), ("a*b*c", "ac", False),
        ("a*a", "a", False), ("a*a", "aa", True), ("a*b*b", "ab", False), ("**", "x", True), ("*a*", "bab", True), ("*a*", "b", False),
        (".*", "x", False), ("a.c", "abc", False), ("A", "a", False),
    ],
)  # fmt: skip
def test_a_star_stands_for_any_characters_and_nothing_else_is_special(pattern: str, topic: str, expected: bool) -> None:
    assert matches(pattern, topic) is expected


def test_a_pattern_of_stars_is_no_trap() -> None:
    assert not matches("*a" * 100, "a" * 99 + "b")


def test_without_tokens_everybody_may_do_everything() -> None:
    everyone = Everyone()
    principal = everyone.authenticate(None)
    principal.require("admin", None)
    assert principal.may("admin", "t")
    assert principal.may_see("t")
    assert not everyone.checks_tokens


def test_the_two_errors_survive_pickling() -> None:
    for error in (PermissionDenied("a", "read", None), Unauthenticated("no")):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)

"""The page on gRPC says what the code says."""

from __future__ import annotations

from penstock.server.grpc.router import METHODS
from penstock.server.grpc.settings import GRPC_SETTINGS
from penstock.server.grpc.statuses import STATUS_OF
from tests.docs.pages import ROOT, rows
from tests.docs.test_reference import ERRORS, row_of

PAGE = (ROOT / "docs" / "grpc.md").read_text()


def test_every_method_is_documented_and_none_is_unknown() -> None:
    assert [row[0] for row in rows(PAGE, "method")] == [
        f"`{name.removeprefix('/penstock.v1.').replace('/', '.')}`" for name in METHODS
    ]


def test_the_status_of_every_error_is_documented() -> None:
    assert rows(PAGE, "code") == [[f"`{error.code}`", f"`{STATUS_OF[error].name}`"] for error in ERRORS]


def test_every_setting_is_documented_and_none_is_unknown() -> None:
    assert rows(PAGE, "setting") == [row_of(setting) for setting in GRPC_SETTINGS]

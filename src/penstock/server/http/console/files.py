"""
The files of the console, as the listener serves them.

They are the same for everybody, so they need no token and tell nothing of the store: the page asks for that itself, with the token of
the person before it. They are read once, when the listener starts, by the names of a fixed list: no path of a request ever becomes a path
of the disk. The policy of the page lets it run its own scripts only, talk to its own server only, and make no HTML of text.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from penstock.server.http.problems import HttpProblem

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

PAGE = "/console"
PAGES = ("/", PAGE, f"{PAGE}/")
"""What somebody may come to from a page of another site, by a link."""
_SCRIPT, _STYLE, _ICON = "text/javascript; charset=utf-8", "text/css; charset=utf-8", "image/svg+xml"
FILES = {
    PAGE: ("index.html", "text/html; charset=utf-8"),
    f"{PAGE}/console.css": ("console.css", _STYLE),
    f"{PAGE}/icon.svg": ("icon.svg", _ICON),
    **{
        f"{PAGE}/{name}.js": (f"{name}.js", _SCRIPT)
        for name in (
            "api", "content", "dead_letters", "dialogs", "dom", "format", "groups", "history", "main", "message", "messages", "overview",
            "sparkline", "topics",
        )
    },
}  # fmt: skip
"""Path -> file and media type: there are no others."""
HEADERS = {
    # Trusted types: a browser that knows them refuses innerHTML and its like altogether.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    # Kept, and asked about each time: a new version of the server has a new page at once.
    "cache-control": "no-cache",
    "x-frame-options": "DENY",
}
_LABEL = "/console/{file}"


def routes() -> list[Route]:
    """The paths of the console."""
    folder = resources.files("penstock.server.http.console") / "static"
    found = [
        Route(path, StaticFile((folder / name).read_bytes(), media_type), include_in_schema=False)
        for path, (name, media_type) in FILES.items()
    ]
    # Relative, so that they lead to the page behind a proxy with a prefix too.
    found.append(Route("/", ToThePage("console", browsers_only=True), include_in_schema=False))
    found.append(Route(f"{PAGE}/", ToThePage("../console", browsers_only=False), include_in_schema=False))
    return found


def _check_method(scope: Scope) -> None:
    scope["penstock.path"] = _LABEL
    if scope["method"] not in ("GET", "HEAD"):
        raise HttpProblem("METHOD_NOT_ALLOWED", "the methods of this path are GET, HEAD", {"allow": "GET, HEAD"})


class StaticFile:
    """One file."""

    def __init__(self, content: bytes, media_type: str) -> None:
        self._content = content
        self._etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        self._headers = {**HEADERS, "etag": self._etag, "content-type": media_type}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _check_method(scope)
        known = [one.strip().removeprefix("W/") for one in Headers(scope=scope).get("if-none-match", "").split(",")]
        if self._etag in known or known == ["*"]:
            response = Response(status_code=304, headers={**HEADERS, "etag": self._etag})
        else:
            response = Response(self._content, headers=self._headers)
        await response(scope, receive, send)


class ToThePage:
    """Leads to the page."""

    def __init__(self, location: str, *, browsers_only: bool) -> None:
        self._location = location
        self._browsers_only = browsers_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._browsers_only and "text/html" not in Headers(scope=scope).get("accept", "").lower():
            raise HttpProblem("NO_SUCH_PATH", "there is nothing under this path; /openapi.json lists all paths")
        _check_method(scope)
        await RedirectResponse(self._location, 302)(scope, receive, send)

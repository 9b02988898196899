"""The HTTP listener: a REST face with JSON, server-sent events, metrics and its own description."""

from __future__ import annotations

from penstock.server.http.listener import HttpListener
from penstock.server.http.settings import HttpSettings

__all__ = ["HttpListener", "HttpSettings"]

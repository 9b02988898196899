"""TLS for any listener: certificate, key and, for clients that must show a certificate too, whose they accept."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any, Self

from penstock.errors import BadSetting


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """
    PEM files. With *client_ca*, a client must show a certificate that it has signed: that lets it in, and gives it no rights.

    *certificate* may hold the chain, from the server's own on.
    """

    certificate: str
    key: str
    client_ca: str | None = None

    def context(self) -> ReloadableContext:
        """TLS 1.2 or newer by these files. Raises `BadSetting`."""
        return ReloadableContext(self)

    def read(self) -> ssl.SSLContext:
        """By what the files hold now. Raises `BadSetting`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        try:
            # Without a password: asking for one would stop the server.
            context.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ValueError) as error:
            raise BadSetting("tls_certificate", self.certificate, f"cannot be used with key {self.key}: {error}") from None
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except (OSError, ValueError) as error:
                raise BadSetting("tls_client_ca", self.client_ca, f"cannot be used: {error}") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class ReloadableContext(ssl.SSLContext):
    """
    The context of a listener, whose files may be replaced while it runs.

    OpenSSL's own can be told of further certificates, and never to trust one no more. So each connection is made by the newest of several;
    what another one has handed out to resume a session by, it does not know.
    """

    _files: TlsFiles
    _newest: ssl.SSLContext

    def __new__(cls, files: TlsFiles) -> Self:
        """Raises `BadSetting`."""
        made = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        made._files, made._newest = files, files.read()
        return made

    def __init__(self, files: TlsFiles) -> None:
        del files

    def reload(self) -> None:
        """Use what the files hold now, for connections from now on. Raises `BadSetting`: what was used still is."""
        self._newest = self._files.read()

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """See `ssl.SSLContext.wrap_bio`, which event loops call for each connection."""
        return self._newest.wrap_bio(*arguments, **options)

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        """See `ssl.SSLContext.wrap_socket`."""
        return self._newest.wrap_socket(*arguments, **options)

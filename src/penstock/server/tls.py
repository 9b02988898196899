"""TLS for any listener: certificate, key and, for clients that must show a certificate too, whose they accept."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

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

    def context(self) -> ssl.SSLContext:
        """TLS 1.2 or newer by these files. Raises `BadSetting`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        self.load(context)
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except (OSError, ValueError) as error:
                raise BadSetting("tls_client_ca", self.client_ca, f"cannot be used: {error}") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Let *context* use the certificate that the files hold now, for connections from now on. Raises `BadSetting`."""
        try:
            # Without a password: asking for one would stop the server.
            context.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ValueError) as error:
            raise BadSetting("tls_certificate", self.certificate, f"cannot be used with key {self.key}: {error}") from None

"""Where a server is and who we are to it. It travels to the tasks inside their partitions, and is shown nowhere."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Final

import nats_bulk
from nats_bulk import Connection, Credentials
from pyspark_nats.errors import OptionInvalid

DEFAULT_API: Final = "$JS.API"


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach some streams. `repr` shows neither the address, which may hold a password, nor the credentials."""

    url: str = field(repr=False)
    credentials: Credentials = field(default_factory=Credentials, repr=False)
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = field(default="", repr=False)
    tls_first: bool = False
    api_prefix: str = DEFAULT_API
    inbox_prefix: str = "_INBOX"

    def shares_connection_with(self) -> tuple[object, ...]:
        """Equal for those who may use one connection."""
        tls = (self.tls_ca, self.tls_cert, self.tls_key, self.tls_first)
        return (self.url, self.credentials, *tls, self.inbox_prefix)

    def connect(self) -> Connection:
        return Connection(
            self.url,
            credentials=self.credentials,
            tls=self._tls_context(),
            tls_first=self.tls_first,
            name="pyspark_nats",
            inbox_prefix=self.inbox_prefix,
        )

    def _tls_context(self) -> ssl.SSLContext | None:
        if not (self.tls_ca or self.tls_cert):
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca or None)
            if self.tls_cert:
                context.load_cert_chain(self.tls_cert, self.tls_key or None)
        except (OSError, ssl.SSLError) as problem:
            raise OptionInvalid(
                f"cannot use the TLS files: {problem}; nats.tls.ca, nats.tls.cert and nats.tls.key are paths that must "
                "exist on the driver and on every executor"
            ) from None
        return context


def read_credentials(path: str) -> Credentials:
    """On the driver, so that executors need no copy of the file, and for each batch anew, so that it may change."""
    try:
        return Credentials.from_file(path)
    except nats_bulk.AuthenticationFailed as problem:
        raise OptionInvalid(f"{problem}; nats.creds is the path of a .creds file on the driver") from None

"""Who we are to the server: a user JWT with its seed, a bare NKEY, a token, or nobody."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nats_bulk.errors import AuthenticationFailed

_BLOCK = re.compile(r"-{3,}BEGIN ([A-Z ]+)-{3,}\s+([A-Za-z0-9_.=-]+)\s+-{3,}END \1-{3,}")


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a connection proves itself with. The secrets stay out of `repr`."""

    jwt: str = field(default="", repr=False)
    seed: str = field(default="", repr=False)
    token: str = field(default="", repr=False)

    @classmethod
    def from_text(cls, text: str, origin: str = "the credentials") -> Credentials:
        """Read the text of a `.creds` file."""
        blocks = dict(_BLOCK.findall(text))
        try:
            return cls(jwt=blocks["NATS USER JWT"], seed=blocks["USER NKEY SEED"])
        except KeyError as missing:
            raise AuthenticationFailed(f"expected {origin} to hold a block {missing}, found: {list(blocks)}") from None

    @classmethod
    def from_file(cls, path: str | Path) -> Credentials:
        try:
            text = Path(path).read_text()
        except OSError as problem:
            # Who gives the contents instead of a path must not find them in a log.
            shown = "" if "-----" in str(path) or "\n" in str(path) else f" {path}"
            raise AuthenticationFailed(f"cannot read the credentials file{shown}: {problem.strerror}") from None
        return cls.from_text(text, origin=str(path))

    def answer(self, nonce: str) -> dict[str, Any]:
        """The fields of CONNECT that prove who we are, given the nonce of this connection."""
        if self.token:
            return {"auth_token": self.token}
        if not self.seed:
            return {}
        if not nonce:
            # Without a nonce there is nothing to sign; the server does not use keys.
            return {"jwt": self.jwt} if self.jwt else {}
        # Not at the top: it is compiled, and a zip of this package does without it where no keys are wanted.
        import nkeys

        key = nkeys.from_seed(self.seed.encode())
        signature = base64.urlsafe_b64encode(key.sign(nonce.encode())).rstrip(b"=").decode()
        who = {"jwt": self.jwt} if self.jwt else {"nkey": key.public_key.decode()}
        return {**who, "sig": signature}

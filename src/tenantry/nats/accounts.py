"""Accounts on a running server: their claims are pushed, listed and deleted through the system account."""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.client import Client

from tenantry.errors import BrokerUnreachable, ClaimRefused
from tenantry.nats import claims
from tenantry.nats.keys import Key
from tenantry.telemetry import signal

CLAIMS_PUSHED = signal(
    "nats.claims.pushed", "The server took an account's claims.", "account", "seconds", "error", level="debug"
)
ACCOUNTS_DELETED = signal(
    "nats.accounts.deleted", "The server forgot accounts.", "accounts", "seconds", "error", level="debug"
)

ANSWER_SECONDS: Final = 5.0
LONGEST_REASON: Final = 300


class AccountServer:
    """Tells a server with a full JWT resolver about accounts. `system` must be a user of the system account."""

    def __init__(self, system: Client, operator: Key) -> None:
        self._system = system
        self._operator = operator

    async def push(self, token: str) -> None:
        """Create or change an account: what its claims say holds from now on."""
        said = claims.read(token)
        # The server stores what anybody signed and then ignores it; better to know now.
        if said["iss"] != self._operator.public:
            raise ClaimRefused(f"expected the claims to be signed by the operator's key, got: {said['iss']}")
        if len(token) > self._system.max_payload:
            raise ClaimRefused(
                f"the claims of account {said['sub']} have {len(token):,} bytes, and the server takes "
                f"{self._system.max_payload:,}; revoked users that never expire make them grow"
            )
        with CLAIMS_PUSHED.span(account=said["sub"]):
            await self._ask("$SYS.REQ.CLAIMS.UPDATE", token.encode())

    async def delete(self, accounts: list[str]) -> None:
        """Forget accounts and close their connections. Streams on disk are theirs: delete those first."""
        with ACCOUNTS_DELETED.span(accounts=accounts):
            await self._ask("$SYS.REQ.CLAIMS.DELETE", claims.deletion_claims(self._operator, accounts).encode())

    async def list(self) -> set[str]:
        """The public keys of all accounts that the server knows."""
        return set(await self._ask("$SYS.REQ.CLAIMS.LIST", b""))

    async def lookup(self, account: str) -> str | None:
        """The claims that the server holds for an account."""
        try:
            answer = await self._system.request(
                f"$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP", b"", timeout=ANSWER_SECONDS
            )
        except (nats.errors.Error, TimeoutError, OSError) as problem:
            raise _no_answer("$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP") from problem
        return answer.data.decode() or None

    async def _ask(self, subject: str, payload: bytes) -> Any:
        try:
            answer = await self._system.request(subject, payload, timeout=ANSWER_SECONDS)
        except (nats.errors.Error, TimeoutError, OSError) as problem:
            raise _no_answer(subject) from problem
        document = msgspec.json.decode(answer.data)
        if error := document.get("error"):
            reason = str(error.get("description", error))
            raise ClaimRefused(f"the server did not accept the claims: {reason[:LONGEST_REASON]}")
        return document.get("data")


def _no_answer(subject: str) -> BrokerUnreachable:
    return BrokerUnreachable(
        f"no answer to {subject} within {ANSWER_SECONDS:.0f} s; the server must run in operator mode with a full "
        "resolver, and the user must belong to the system account"
    )


def revoke_before_now() -> int:
    """The time to write into `revoked_users`, so that all claims issued up to this second no longer hold."""
    return int(time.time())

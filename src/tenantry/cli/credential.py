"""`tenantry creds issue`, `list`, `revoke` and `rotate`; `tenantry tenant creds` issues, too."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from nats_bulk import Credentials
from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import format_time, note, print_json, print_table, say
from tenantry.cli.session import actor, administer
from tenantry.errors import TenantInvalid, TenantNotFound, TenantryError
from tenantry.nats.claims import format_credentials
from tenantry.tenants.administration import Administration
from tenantry.tenants.credentials import Credential, Kind
from tenantry.tenants.quantities import parse_duration

Issued = tuple[Credential, Credentials]
Hand = Callable[[str], None]


def issue(
    id: str,
    /,
    *,
    name: str = "default",
    kind: Kind = Kind.CLIENT,
    consumer: str | None = None,
    channel: str | None = None,
    expires: str | None = None,
    out: Path | None = None,
    force: bool = False,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Issue a credential for NATS: a .creds file. It is shown once and kept nowhere.

    Parameters
    ----------
    id
        The tenant.
    name
        What to call it.
    kind
        client: publish and read back; publish; read; leaf: a leaf node.
    consumer
        Let it fetch from a durable consumer of this name, which is created.
    channel
        The channel that the consumer reads; events, if none is given.
    expires
        How long it is valid, like 1h or 90d; for good, if left out.
    out
        Write it to this file, which only its owner can read, instead of printing it.
    force
        Replace the file if it exists.
    json
        Print one JSON document.
    """
    if channel and not consumer:
        raise TenantInvalid("channel", "expected --channel with --consumer: it says what the consumer reads")
    lifetime = parse_duration("--expires", expires) if expires else None
    with _handing_out(out, force=force) as hand:
        issued = administer(
            options,
            lambda administration: administration.credentials.issue(
                id, actor(), name=name, kind=kind, consumer=consumer, channel=channel or "events", lifetime=lifetime
            ),
        )
        _hand_out(issued, hand, out, json=json)


def list_credentials(id: str, /, *, json: bool = False, options: Options = DEFAULT) -> None:
    """List the credentials that were issued for a tenant.

    Parameters
    ----------
    id
        The tenant.
    json
        Print one JSON document.
    """
    held = administer(options, lambda administration: _credentials(administration, id))
    if json:
        return print_json([credential.describe() | {"state": _state(credential)} for credential in held])
    if not held:
        return say(f"{id} has no credentials yet; `tenantry tenant creds {id}` issues one.")
    print_table(("credential", "name", "kind", "consumer", "issued", "expires", "state"), [_row(each) for each in held])


def revoke(id: str, credential: str, /, *, json: bool = False, options: Options = DEFAULT) -> None:
    """Lock a credential's user out, at once and for good.

    Parameters
    ----------
    id
        The tenant.
    credential
        The credential's id, or as much of its beginning as is unique.
    json
        Print one JSON document.
    """

    async def act(administration: Administration) -> Credential:
        return await administration.credentials.revoke(id, await _named(administration, id, credential), actor())

    revoked = administer(options, act)
    if json:
        return print_json(revoked.describe())
    say(f"credential {revoked.id} ({revoked.name}) of {id} is revoked")


def rotate(
    id: str,
    credential: str,
    /,
    *,
    keep_old: bool = False,
    out: Path | None = None,
    force: bool = False,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Issue a new credential in place of another of the same kind, which is revoked.

    Parameters
    ----------
    id
        The tenant.
    credential
        The old credential's id, or as much of its beginning as is unique.
    keep_old
        Leave the old one valid, to be revoked once the new one is in use.
    out
        Write the new one to this file, which only its owner can read, instead of printing it.
    force
        Replace the file if it exists.
    json
        Print one JSON document.
    """

    async def act(administration: Administration) -> Issued:
        old = await _named(administration, id, credential)
        return await administration.credentials.rotate(id, old, actor(), keep_old=keep_old)

    with _handing_out(out, force=force) as hand:
        _hand_out(administer(options, act), hand, out, json=json)


async def _credentials(administration: Administration, tenant: str) -> list[Credential]:
    await administration.registry.get(tenant)
    return await administration.credentials.of(tenant)


async def _named(administration: Administration, tenant: str, beginning: str) -> UUID:
    held = [each for each in await _credentials(administration, tenant) if not each.revoked_at]
    found = [each.id for each in held if str(each.id).startswith(beginning.lower())]
    if not beginning or not found:
        raise TenantNotFound(
            f"tenant {tenant} has no valid credential {beginning!r}; `tenantry creds list {tenant}` shows what it has"
        )
    if len(found) > 1:
        raise TenantInvalid(
            "credential", f"{len(found)} credentials of tenant {tenant} begin with {beginning}; type more"
        )
    return found[0]


def _hand_out(issued: Issued, hand: Hand, out: Path | None, *, json: bool) -> None:
    credential, secret = issued
    text = format_credentials(secret)
    if out:
        hand(text)
    if json:
        return print_json(credential.describe() | ({"file": str(out)} if out else {"creds": text}))
    if not out:
        # As it is: this is to become a file.
        print(text, end="", flush=True)
    note(f"credential {credential.id} of {credential.tenant_id} {_rest(credential, out)}")


def _rest(credential: Credential, out: Path | None) -> str:
    until = f", valid until {format_time(credential.expires_at)}" if credential.expires_at else ""
    if out:
        return f"is in {out}{until}"
    return f"is above{until}; it is shown this once. --out FILE writes it to a file that only you can read"


@contextmanager
def _handing_out(out: Path | None, *, force: bool) -> Iterator[Hand]:
    """Make sure of the file before there is a secret to put into it, so that none is issued and lost."""
    if out is None:
        yield lambda _: None
        return
    if os.path.lexists(out) and not (force and out.is_file()):
        raise TenantryError(f"{out} exists already" + ("" if force else "; --force replaces it"))
    try:
        # The file is its owner's alone from its first moment on.
        handle, draft = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    except OSError as problem:
        raise TenantryError(f"cannot write to {out.parent}: {problem.strerror}") from None

    def hand(text: str) -> None:
        with os.fdopen(handle, "w", closefd=False) as file:
            file.write(text)
        os.fsync(handle)
        Path(draft).replace(out)

    try:
        yield hand
    finally:
        os.close(handle)
        Path(draft).unlink(missing_ok=True)


def _row(credential: Credential) -> tuple[str, ...]:
    consumer = f"{credential.consumer} on {credential.channel}" if credential.consumer else "-"
    times = format_time(credential.issued_at), format_time(credential.expires_at)
    return str(credential.id), credential.name, credential.kind, consumer, *times, _state(credential)


def _state(credential: Credential) -> str:
    if credential.revoked_at:
        return "revoked"
    return "expired" if credential.expires_at and credential.expires_at < datetime.now(UTC) else "valid"

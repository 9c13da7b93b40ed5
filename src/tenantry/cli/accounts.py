"""`tenantry accounts check` and `export`: streams that one system provisions and another consumes, as folders."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from nats_bulk import Credentials
from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import note, print_json, print_table
from tenantry.cli.session import actor, use_administration
from tenantry.config import Settings
from tenantry.embedded.platform import use_platform
from tenantry.errors import AccountInvalid, BrokerUnreachable, ConfigError, TenantryError
from tenantry.nats.claims import read as read_claims
from tenantry.nats.connections import Broker
from tenantry.tenants.account_folder import Account, read_directory, read_folder, read_static, write_folder
from tenantry.tenants.account_verification import require_provisioned
from tenantry.tenants.administration import Administration
from tenantry.tenants.credentials import Kind
from tenantry.tenants.lanes import Lane
from tenantry.tenants.tenant import Status, Tenant

SIDE_BY_SIDE = 16
OK = "OK"

Outcomes = dict[str, str]
"""A word or a reason, by folder or tenant."""


def check(
    directory: Path | None = None,
    /,
    *,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Check the folders of an accounts directory, and whether NATS has what they name. Exit status 1 if any is bad.

    Parameters
    ----------
    directory
        The accounts directory; the setting accounts_directory, if left out.
    json
        Print one JSON document.
    """
    settings = options.load().settings
    outcomes = asyncio.run(_check(settings, directory or settings.accounts_directory))
    if json:
        rows = {name: "" if outcome == OK else outcome for name, outcome in outcomes.items()}
        print_json([{"account": name, "ok": not problem, "problem": problem} for name, problem in rows.items()])
    elif not outcomes:
        note("There are no accounts there.")
    else:
        print_table(("account", "outcome"), sorted(outcomes.items()))
    if any(outcome != OK for outcome in outcomes.values()):
        sys.exit(1)


def export(
    directory: Path,
    /,
    *,
    consumer: str,
    tenant: tuple[str, ...] = (),
    channel: str = "events",
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Write tenants of this platform as folders of an accounts directory, for another system to consume.

    Each tenant gets a durable consumer, and a credential that can fetch from it. What is there and still valid is kept.

    Parameters
    ----------
    directory
        The accounts directory; made if it is missing.
    consumer
        The name of the consumer.
    tenant
        A tenant to export; all active ones, if left out. Can be repeated.
    channel
        The channel to consume. Of all tenants, only those that have it are exported.
    json
        Print one JSON document.
    """
    outcomes = asyncio.run(_export(options.load().settings, directory, tenant, channel, consumer))
    failed = {name: outcome for name, outcome in outcomes.items() if outcome not in ("written", "unchanged")}
    if json:
        rows = {name: "failed" if name in failed else outcome for name, outcome in outcomes.items()}
        print_json([{"tenant": name, "outcome": row, "problem": failed.get(name, "")} for name, row in rows.items()])
    elif not outcomes:
        note(f"There is no active tenant with a channel {channel!r}.")
    else:
        print_table(("tenant", "outcome"), sorted(outcomes.items()))
    if failed:
        sys.exit(1)


async def _check(settings: Settings, directory: Path | None) -> Outcomes:
    if directory is None:
        raise ConfigError("expected a DIRECTORY, or the setting accounts_directory (TENANTRY_ACCOUNTS_DIRECTORY)")
    # What the configuration names comes first: of two with the same work, the folder is the one that is refused.
    static = [read_static(each) for each in settings.accounts]
    try:
        listing = read_directory(directory, static)
    except OSError as problem:
        raise AccountInvalid(f"cannot read the accounts directory {directory}: {problem.strerror or problem}") from None
    room = asyncio.Semaphore(SIDE_BY_SIDE)

    async def verify(account: Account, broker: Broker) -> str:
        async with room:
            try:
                await require_provisioned(account, broker)
            except (AccountInvalid, BrokerUnreachable) as problem:
                return _without_origin(account.origin, str(problem))
        return OK

    accounts = [*static, *listing.accounts.values()]
    outcomes = {origin: _without_origin(origin, problem) for origin, problem in listing.problems.items()}
    if accounts:
        async with use_platform(settings) as platform:
            verified = await asyncio.gather(*(verify(account, platform.broker) for account in accounts))
            outcomes |= {account.origin: outcome for account, outcome in zip(accounts, verified, strict=True)}
    return outcomes


def _without_origin(origin: str, problem: str) -> str:
    """It stands at the beginning of the line already."""
    return problem.removeprefix(f"{origin}: ")


async def _export(
    settings: Settings, directory: Path, wanted: tuple[str, ...], channel: str, consumer: str
) -> Outcomes:
    room = asyncio.Semaphore(settings.provisioning_parallel)
    async with use_administration(settings) as administration:

        async def one(tenant: Tenant) -> str:
            async with room:
                try:
                    return await _export_one(administration, tenant, directory, channel, consumer)
                except TenantryError as problem:
                    return str(problem)

        if wanted:
            tenants = [await administration.registry.get(id) for id in dict.fromkeys(wanted)]
        else:
            everyone = [tenant async for tenant in administration.registry.all()]
            tenants = [each for each in everyone if each.status == Status.ACTIVE and each.channel(channel)]
        outcomes = await asyncio.gather(*map(one, tenants))
    return {tenant.id: outcome for tenant, outcome in zip(tenants, outcomes, strict=True)}


async def _export_one(
    administration: Administration, tenant: Tenant, directory: Path, channel: str, consumer: str
) -> str:
    lane = await administration.lanes.resolve(tenant.id, channel)
    held = _read_again(directory / tenant.id)
    credentials = held.credentials if held else None
    if credentials is None or not await _grants(administration, tenant.id, credentials, channel, consumer):
        _, credentials = await administration.credentials.issue(
            tenant.id, actor(), name=f"export {consumer}", kind=Kind.READ, consumer=consumer, channel=channel
        )
    account = _account(lane, consumer, credentials)
    if held and replace(held, origin="") == account:
        return "unchanged"
    await asyncio.to_thread(write_folder, directory, account)
    return "written"


def _account(lane: Lane, consumer: str, credentials: Credentials) -> Account:
    return Account(
        name=lane.tenant,
        stream=lane.stream,
        consumer=lane.consumer_name(consumer),
        tenant_id=lane.tenant,
        credentials=credentials,
    )


def _read_again(folder: Path) -> Account | None:
    """What an earlier export wrote; whatever cannot be used is written anew."""
    try:
        return read_folder(folder)
    except AccountInvalid:
        return None


async def _grants(
    administration: Administration, tenant: str, credentials: Credentials, channel: str, consumer: str
) -> bool:
    """Whether a credential is one of ours that still lets its user fetch from the consumer."""
    user, now = read_claims(credentials.jwt)["sub"], datetime.now(UTC)
    return any(
        each.user_key == user and each.consumer == consumer and each.grants_consumer_of(channel)
        for each in await administration.credentials.of(tenant)
        if each.expires_at is None or each.expires_at > now
    )

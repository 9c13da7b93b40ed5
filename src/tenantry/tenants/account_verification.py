"""Whether the stream and the consumer of an account that somebody else provisioned are really there."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import nats.errors
import nats.js.errors

from tenantry.errors import AccountInvalid, BrokerRefused, BrokerUnreachable
from tenantry.nats.connections import Broker, connect
from tenantry.tenants.account_folder import Account

ANSWER_SECONDS: Final = 5.0

_NO_JETSTREAM: Final = 10039
_NO_SUCH_STREAM: Final = 10059
# No message is as small as that: the consumer answers, and hands out nothing.
_ASK_FOR_NOTHING: Final = b'{"batch": 1, "no_wait": true, "max_bytes": 1}'


def broker_of(account: Account, broker: Broker) -> Broker:
    """The same servers, as the account's own user if it has one."""
    return replace(broker, credentials=account.credentials) if account.credentials else broker


async def require_provisioned(account: Account, broker: Broker) -> None:
    """Raise AccountInvalid unless the account's stream and consumer are there; BrokerUnreachable if none can tell."""
    try:
        async with connect(broker_of(account, broker), f"tenantry-verify-{account.name}") as client:
            try:
                # This one request tells of both, and asks for the least permission.
                await client.jetstream().consumer_info(account.stream, account.consumer)
            except nats.js.errors.ServiceUnavailableError as problem:
                if problem.err_code != _NO_JETSTREAM:
                    raise
                # The streams are in another account, and only the consumer itself can be asked.
                fetch = f"$JS.API.CONSUMER.MSG.NEXT.{account.stream}.{account.consumer}"
                await client.request(fetch, _ASK_FOR_NOTHING, timeout=ANSWER_SECONDS)
    except nats.js.errors.NotFoundError as problem:
        missing = f"stream {account.stream}"
        if problem.err_code != _NO_SUCH_STREAM:
            missing = f"consumer {account.consumer} on stream {account.stream}"
        raise AccountInvalid(
            f"{account.origin}: there is no {missing} for tenant {account.tenant_id}; "
            "create it, or correct the name, or remove the account"
        ) from None
    except BrokerRefused as problem:
        raise AccountInvalid(f"{account.origin}: {problem}") from None
    except BrokerUnreachable as problem:
        raise BrokerUnreachable(f"{account.origin}: {problem}") from problem
    except (nats.errors.Error, OSError) as problem:
        raise BrokerUnreachable(
            f"{account.origin}: cannot ask for consumer {account.consumer} on stream {account.stream}: "
            f"{str(problem) or type(problem).__name__}; is it there, is JetStream on, and may the user use "
            "$JS.API.CONSUMER.INFO and .MSG.NEXT of it?"
        ) from problem

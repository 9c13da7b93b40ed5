"""Operator mode: what it takes to make accounts on a server, beside the platform's own credentials."""

from __future__ import annotations

from dataclasses import dataclass, field

import nats_bulk
from nats_bulk import Credentials
from tenantry.config import Settings
from tenantry.errors import ConfigError
from tenantry.nats import claims
from tenantry.nats.connections import Broker
from tenantry.nats.keys import Key, Role


@dataclass(frozen=True, slots=True)
class Authority:
    """A user of the system account, and a key that the server trusts to sign accounts."""

    system: Broker
    operator: Key = field(repr=False)

    @classmethod
    def from_settings(cls, settings: Settings) -> Authority | None:
        """For a server that is not embedded; none if it does not run in operator mode."""
        creds, key = settings.nats_system_creds, settings.nats_operator_key
        if not creds and not key:
            return None
        if not creds or not key:
            raise ConfigError("expected both nats_system_creds and nats_operator_key, or neither, got one of them")
        platform = Broker.from_settings(settings)
        try:
            operator = Key(key.read_text().strip())
            operator.require(Role.OPERATOR)
            system = Broker(platform.url, Credentials.from_file(creds), platform.tls)
        except (OSError, ValueError, nats_bulk.AuthenticationFailed) as problem:
            raise ConfigError(
                f"cannot use the keys for operator mode: {problem}; check nats_operator_key and nats_system_creds"
            ) from None
        return cls(system, operator)


def account_of(broker: Broker) -> str:
    """The public key of the account that the broker's user belongs to; empty if it has no JWT."""
    if not broker.credentials.jwt:
        return ""
    said = claims.read(broker.credentials.jwt)
    return str(said["nats"].get("issuer_account") or said["iss"])

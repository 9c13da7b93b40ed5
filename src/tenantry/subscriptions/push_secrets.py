"""Secrets of push endpoints, and what they sign: Standard Webhooks.

A secret is derived from the master secret, the endpoint and a version, so there is none to be stored or lost.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Final

from standardwebhooks import Webhook

from tenantry.errors import EventInvalid
from tenantry.subscriptions.push_endpoint import PushEndpoint
from tenantry.tenants.keyring import Keyring

PREFIX: Final = "whsec_"


class PushSecrets:
    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    def current(self, endpoint: PushEndpoint) -> str:
        """The secret as its receiver needs it."""
        key = self._keyring.push_secret(endpoint.id, endpoint.secret_version)
        return PREFIX + base64.b64encode(key).decode()

    def sign(self, endpoint: PushEndpoint, message_id: str, at: datetime, document: bytes) -> str:
        """The value of `webhook-signature`: one signature for each secret that is good at that moment."""
        try:
            text = document.decode()
        except UnicodeDecodeError as problem:
            raise EventInvalid("", f"expected UTF-8, which alone can be signed, got: {problem}") from None
        keys = (self._keyring.push_secret(endpoint.id, version) for version in endpoint.signing_versions(at))
        return " ".join(Webhook(key).sign(message_id, at, text) for key in keys)

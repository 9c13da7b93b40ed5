"""An issuer of tokens on this machine, and the tokens that it would issue."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as generate_ec_key
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as generate_rsa_key
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

SECRET = "a shared key that has more than 32 bytes"
PRIVATE = generate_ec_key(SECP256R1())
OTHER = generate_ec_key(SECP256R1())
RSA = generate_rsa_key(65537, 2048)


class Jwks:
    """A JWKS on this machine, as an issuer would publish it."""

    def __init__(self, **keys: EllipticCurvePrivateKey | RSAPrivateKey) -> None:
        self.keys: dict[str, EllipticCurvePrivateKey | RSAPrivateKey] = keys
        self.reads = 0
        self.status = 200
        self.extra: list[dict[str, Any]] = []

    def document(self) -> bytes:
        return json.dumps({"keys": [jwk(kid, key) for kid, key in self.keys.items()] + self.extra}).encode()

    @contextmanager
    def serve(self) -> Iterator[str]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.reads += 1
                self.send_response(outer.status)
                self.end_headers()
                self.wfile.write(outer.document())

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/jwks.json"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def jwk(kid: str, key: EllipticCurvePrivateKey | RSAPrivateKey) -> dict[str, Any]:
    if isinstance(key, RSAPrivateKey):
        document = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        document = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**document, "kid": kid, "use": "sig"}


def claims(**more: Any) -> dict[str, Any]:
    given = {"sub": "ann", "exp": datetime.now(UTC) + timedelta(hours=1), "scope": "tenants:read"} | more
    return {name: value for name, value in given.items() if value is not None}


def ec_token(key: EllipticCurvePrivateKey = PRIVATE, kid: str = "one", **more: Any) -> str:
    return jwt.encode(claims(**more), key, "ES256", {"kid": kid})

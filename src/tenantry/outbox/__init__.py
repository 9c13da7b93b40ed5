"""The outbox: emitting events in a transaction, and the relay that carries them to lanes. Not built yet."""

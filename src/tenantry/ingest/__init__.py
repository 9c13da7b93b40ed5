"""Events over HTTP: checked, published to their lane with an acknowledgement each, or kept in the outbox meanwhile.

`intake` is the whole way; `reading` and `binary_mode` make an event of what was sent, `tracing` and `schemas` complete
and check it, `admission` says whether there is room, `publishers` and `spool` store it.
"""

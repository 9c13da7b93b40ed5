-- Whatever was published before a partition's end was emitted before it, too. This takes long, and nobody waits for it.
delete from tenantry.outbox_batches where published_at < %(before)s

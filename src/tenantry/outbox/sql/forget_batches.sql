delete from tenantry.outbox_batches where published_at < %(before)s

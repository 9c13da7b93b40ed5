-- Whoever erases lanes waits until no relay carries them, and takes its locks in the order in which a relay does.
select from tenantry.outbox_turns where tenant_id = any (%(tenants)s) order by tenant_id for update

delete from tenantry.outbox_partitions where name = %(name)s

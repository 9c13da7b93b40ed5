with forgotten as (delete from tenantry.outbox_partitions where name = %(name)s returning last_ticket)
delete from tenantry.outbox_batches b using forgotten f
where b.ticket <= f.last_ticket

with forgotten as (delete from tenantry.outbox_partitions where name = %(name)s returning ends_at)
delete from tenantry.outbox_batches b using forgotten f
where b.published_at < f.ends_at

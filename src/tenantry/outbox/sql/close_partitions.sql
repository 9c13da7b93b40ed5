-- Whatever was emitted before a partition's end has a ticket by now. The slack is for clocks that are set back.
update tenantry.outbox_partitions
set last_ticket = pg_sequence_last_value('tenantry.outbox_tickets')
where last_ticket is null and ends_at < clock_timestamp() - %(slack)s

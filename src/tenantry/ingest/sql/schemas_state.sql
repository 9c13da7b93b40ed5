-- The sum, and not the highest: a change with a lower revision may be committed later.
select count(*) as schemas, coalesce(sum(revision), 0) as revisions from tenantry.event_schemas

update tenantry.outbox_turns t set tokens = b.tokens, counted_at = clock_timestamp()
from unnest(%(tenants)s::text[], %(tokens)s::double precision[]) as b (tenant_id, tokens)
where t.tenant_id = b.tenant_id

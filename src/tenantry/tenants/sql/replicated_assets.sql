-- What each tenant may take: its own streams, and its consumers where they have copies.
select coalesce(sum(
    case when t.tier <> 'pooled' and coalesce((t.overrides ->> 'replicas')::int, (t.plan_limits ->> 'replicas')::int) > 1
        then jsonb_array_length(t.channels)
        else 0
    end
    + case when coalesce((t.overrides ->> 'consumer_replicas')::int, (t.plan_limits ->> 'consumer_replicas')::int) > 1
        then coalesce((t.overrides ->> 'consumers')::int, (t.plan_limits ->> 'consumers')::int)
        else 0
    end
), 0)::bigint + (select count(*) from tenantry.pools) as assets
from tenantry.whole_tenants t

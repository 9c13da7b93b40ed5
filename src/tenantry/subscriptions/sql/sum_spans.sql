-- A part that nobody has looked at yet counts as much as those that somebody has.
with spans as (
    select coalesce((s.value ->> 'first')::bigint, 0) as first, coalesce((s.value ->> 'until')::bigint, 0) as until,
        coalesce((s.value ->> 'at')::bigint, 0) as at, coalesce((s.value ->> 'is_over')::boolean, false) as is_over
    from tenantry.subscription_jobs j, jsonb_each(j.progress) s
    where j.id = %(id)s
), summed as (
    select sum(greatest(until - first + 1, 0)) as total, sum(greatest(least(at, until) - first + 1, 0)) as done,
        count(*) filter (where is_over) >= %(parts)s as is_over
    from spans
)
update tenantry.subscription_jobs j
set total = summed.total, done = summed.done,
    state = case when not summed.is_over then j.state when j.state = 'cancelling' then 'cancelled' else 'done' end
from summed
where j.id = %(id)s and j.state in ('running', 'cancelling')

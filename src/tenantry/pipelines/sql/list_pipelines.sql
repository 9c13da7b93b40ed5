-- What a rebuild makes aside is no pipeline of its own.
select pipeline, count(*) as lanes, count(distinct tenant_id) as tenants, count(parked_at) as parked,
    max(updated_at) as updated_at
from tenantry.pipeline_lanes
where strpos(pipeline, ':') = 0
group by pipeline
order by pipeline

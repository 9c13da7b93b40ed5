-- What plans have it so: one for each of these tenants that has none yet.
insert into tenantry.worker_jobs (tenant_id, app, count, origin, asked_by)
select t.id, %(app)s, 1, 'plan', 'plan:' || t.plan
from tenantry.tenants t
where t.id = any (%(tenants)s)
on conflict (app, tenant_id) where origin = 'plan' and state <> 'stopped' do nothing

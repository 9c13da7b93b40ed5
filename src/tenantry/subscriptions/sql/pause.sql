insert into tenantry.subscription_pauses (service, tenant_id, paused_by)
values (%(service)s, %(tenant)s, %(actor)s)
on conflict do nothing

-- In the platform's own database the outbox knows a tenant from the moment it is registered.

alter table tenantry.outbox_lanes
    add foreign key (tenant_id, channel) references tenantry.channels (tenant_id, name) on delete cascade;

create function tenantry.follow_tenant(tenant text) returns void language sql as $$
    insert into tenantry.outbox_lanes (tenant_id, channel, tenant_uid, is_open, is_suspended, payload)
    select t.id, c.name, t.uid, t.status <> 'deleting' and not c.removing, t.status = 'suspended',
        coalesce(t.overrides ->> 'payload', p.limits ->> 'payload', '1048576')::integer
    from tenantry.tenants t
    join tenantry.plans p on p.name = t.plan
    join tenantry.channels c on c.tenant_id = t.id
    where t.id = tenant
    on conflict (tenant_id, channel) do update
    set is_open = excluded.is_open, is_suspended = excluded.is_suspended, payload = excluded.payload
    where (outbox_lanes.is_open, outbox_lanes.is_suspended, outbox_lanes.payload)
        is distinct from (excluded.is_open, excluded.is_suspended, excluded.payload)
$$;

create function tenantry.tenant_changed() returns trigger language plpgsql as $$
begin
    perform tenantry.follow_tenant(new.id);
    return null;
end $$;
create trigger tenant_changed after update of status, plan, overrides on tenantry.tenants
    for each row when (
        (old.status, old.plan, old.overrides) is distinct from (new.status, new.plan, new.overrides)
    ) execute function tenantry.tenant_changed();

create function tenantry.channel_changed() returns trigger language plpgsql as $$
begin
    perform tenantry.follow_tenant(new.tenant_id);
    return null;
end $$;
create trigger channel_changed after insert or update of removing on tenantry.channels
    for each row execute function tenantry.channel_changed();

create function tenantry.channel_leaves() returns trigger language plpgsql as $$
begin
    -- No relay may carry the lane any more, and locks are taken in the order in which a relay takes them.
    perform from tenantry.outbox_turns where tenant_id = old.tenant_id for update;
    return old;
end $$;
create trigger channel_leaves before delete on tenantry.channels
    for each row execute function tenantry.channel_leaves();

create function tenantry.plan_changed() returns trigger language plpgsql as $$
begin
    perform tenantry.follow_tenant(t.id) from tenantry.tenants t where t.plan = new.name;
    return null;
end $$;
create trigger plan_changed after update of limits on tenantry.plans
    for each row when (old.limits ->> 'payload' is distinct from new.limits ->> 'payload')
    execute function tenantry.plan_changed();

select tenantry.follow_tenant(id) from tenantry.tenants;

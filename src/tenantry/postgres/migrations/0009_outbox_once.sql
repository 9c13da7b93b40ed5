-- What handlers have done, in the database in which they did it: effects that happen once, by workers that are current.

create table tenantry.handled (
    service text not null,
    tenant text not null,
    event_id text not null,
    lane integer references tenantry.outbox_lanes (id) on delete cascade,
    handled_at timestamptz not null default now(),
    primary key (service, tenant, event_id)
);
comment on table tenantry.handled is 'Events whose effects are in this database, by the service that had them';
comment on column tenantry.handled.lane is 'What is erased with its tenant; none for tenants that the outbox does not know';
create index handled_by_time on tenantry.handled (handled_at);
create index handled_by_lane on tenantry.handled (lane);

create table tenantry.fences (
    service text not null,
    tenant text not null,
    part integer not null,
    fence bigint not null,
    lane integer references tenantry.outbox_lanes (id) on delete cascade,
    primary key (service, tenant, part)
);
comment on table tenantry.fences is 'The newest worker that was seen for each tenant of a service: an older one comes too late';
create index fences_by_lane on tenantry.fences (lane);

create function tenantry.once(
    service text, tenant text, channel text, event_id text, part integer default 0, fence bigint default 0
) returns boolean language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    newest bigint;
    lane_id integer;
begin
    select l.id into lane_id from tenantry.outbox_lanes l where l.tenant_id = once.tenant and l.channel = once.channel;
    select f.fence into newest from tenantry.fences f
    where f.service = once.service and f.tenant = once.tenant and f.part = once.part;
    if newest is distinct from once.fence then
        insert into tenantry.fences as f (service, tenant, part, fence, lane)
        values (once.service, once.tenant, once.part, once.fence, lane_id)
        on conflict on constraint fences_pkey do update set fence = greatest(f.fence, excluded.fence)
        returning f.fence into newest;
        if newest > once.fence then
            raise exception using
                errcode = 'TY423',
                message = format('another worker handles the events of tenant %s for %s by now', once.tenant, once.service),
                hint = 'Let the error pass: this worker stops, and the other one handles the event';
        end if;
    end if;
    insert into tenantry.handled (service, tenant, event_id, lane)
    values (once.service, once.tenant, once.event_id, lane_id)
    on conflict on constraint handled_pkey do nothing;
    return found;
end $$;
comment on function tenantry.once is 'Whether a service has the effects of an event not yet here; from then on it has, if the transaction commits';

-- The whole schema as the migrations leave it. A test applies both and compares.

create schema tenantry;
comment on schema tenantry is 'Tenantry: event pipelines for many tenants';

create table tenantry.migrations (
    version integer primary key,
    name text not null,
    checksum text not null,
    applied_at timestamptz not null default now()
);
comment on table tenantry.migrations is 'The migrations that made this schema what it is';

create table tenantry.plans (
    name text primary key check (name ~ '^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$'),
    limits jsonb not null,
    updated_at timestamptz not null default now()
);
comment on table tenantry.plans is 'Named limits';

create table tenantry.tenants (
    id text primary key check (id ~ '^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$'),
    uid uuid not null unique default gen_random_uuid(),
    name text not null,
    plan text not null references tenantry.plans (name),
    tier text not null check (tier in ('pooled', 'stream', 'account')),
    status text not null default 'active' check (status in ('active', 'suspended', 'deleting')),
    status_since timestamptz not null default now(),
    overrides jsonb not null default '{}',
    placement jsonb not null default '{}',
    revision bigint not null default 1,
    provisioned bigint not null default 0,
    problem text not null default '',
    attempts integer not null default 0,
    retry_at timestamptz not null default now(),
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);
comment on table tenantry.tenants is 'What is wanted of each tenant; the servers have it once provisioned = revision';
comment on column tenantry.tenants.uid is 'A tenant that is deleted and created again under its old id is another one, with other keys';
create index tenants_unfinished on tenantry.tenants (retry_at) where provisioned < revision;

create table tenantry.pools (
    number integer primary key generated always as identity (minvalue 0 start 0),
    retention bigint not null,
    created_at timestamptz not null default now()
);
comment on table tenantry.pools is 'Streams that lanes of the pooled tier share, by retention in seconds';

create table tenantry.channels (
    tenant_id text not null references tenantry.tenants (id) on delete cascade,
    name text not null check (name ~ '^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$'),
    retention bigint check (retention > 0),
    pool integer references tenantry.pools (number),
    removing boolean not null default false,
    created_at timestamptz not null default now(),
    primary key (tenant_id, name)
);
comment on column tenantry.channels.retention is 'Seconds; null: as the plan says';
create index channels_by_pool on tenantry.channels (pool) where pool is not null;

create table tenantry.credentials (
    id uuid primary key default gen_random_uuid(),
    tenant_id text not null references tenantry.tenants (id) on delete cascade,
    name text not null,
    kind text not null check (kind in ('client', 'publish', 'read', 'leaf')),
    consumer text,
    channel text,
    user_key text not null unique,
    issued_at timestamptz not null default now(),
    expires_at timestamptz,
    revoked_at timestamptz
);
comment on table tenantry.credentials is 'Users that were issued for tenants: their public keys, never their seeds';
create index credentials_by_tenant on tenantry.credentials (tenant_id);

create table tenantry.moves (
    id uuid primary key default gen_random_uuid(),
    tenant_id text not null references tenantry.tenants (id) on delete cascade,
    from_tier text not null,
    to_tier text not null,
    stage text not null default 'copying' check (stage in ('copying', 'cutting', 'switched', 'done', 'abandoning', 'abandoned')),
    lanes jsonb not null,
    problem text not null default '',
    attempts integer not null default 0,
    retry_at timestamptz not null default now(),
    started_at timestamptz not null default now(),
    finished_at timestamptz
);
comment on column tenantry.moves.lanes is 'Per channel: old and new stream, the last sequence before the switch, and the first one after it';
create unique index moves_unfinished on tenantry.moves (tenant_id) where finished_at is null;

create table tenantry.api_keys (
    id text primary key,
    name text not null,
    secret_hash bytea not null,
    tenant_id text references tenantry.tenants (id) on delete cascade,
    scopes text[] not null,
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    revoked_at timestamptz
);
comment on column tenantry.api_keys.tenant_id is 'The one tenant that the key is for; null: all of them';

create table tenantry.webhook_deliveries (
    id text primary key,
    account text not null,
    happened_at timestamptz,
    received_at timestamptz not null default now()
);
comment on table tenantry.webhook_deliveries is 'Webhook messages that were handled, so that a repeated or a late one changes nothing';
create index webhook_deliveries_by_account on tenantry.webhook_deliveries (account, happened_at);

create table tenantry.audit (
    number bigint primary key,
    at timestamptz not null,
    actor text not null,
    act text not null,
    tenant_id text,
    before jsonb,
    after jsonb,
    previous bytea not null,
    mac bytea not null
);
comment on table tenantry.audit is 'Every administrative act; each row is sealed together with the one before it';
create index audit_by_tenant on tenantry.audit (tenant_id, number);

create table tenantry.audit_head (
    only_row boolean primary key default true check (only_row),
    number bigint not null,
    mac bytea not null
);
comment on table tenantry.audit_head is 'The newest row of the audit log; whoever appends locks it';
insert into tenantry.audit_head (number, mac) values (0, '');

create view tenantry.whole_tenants as
select t.*, p.limits as plan_limits, coalesce(c.channels, '[]') as channels
from tenantry.tenants t
join tenantry.plans p on p.name = t.plan
left join lateral (
    select jsonb_agg(
        jsonb_build_object(
            'name', c.name, 'retention', coalesce(o.retention, c.retention), 'pool', c.pool, 'removing', c.removing
        )
        order by c.name
    ) as channels
    from tenantry.channels c
    left join tenantry.pools o on o.number = c.pool
    where c.tenant_id = t.id
) c on true;
comment on view tenantry.whole_tenants is 'Tenants with the limits of their plan and their channels';

create table tenantry.outbox_lanes (
    -- Ids are the first half of the keys of advisory locks, so they start where nobody else's are likely to be.
    id integer primary key generated always as identity (minvalue 736800001),
    tenant_id text not null,
    channel text not null,
    is_open boolean not null default true,
    payload integer not null,
    unique (tenant_id, channel)
);
comment on table tenantry.outbox_lanes is 'Where events can be emitted to; follows the registry of tenants';
comment on column tenantry.outbox_lanes.payload is 'Bytes of the largest message: event and headers';

create sequence tenantry.outbox_tickets start 2;
select setval('tenantry.outbox_tickets', 1);

create table tenantry.outbox (
    lane integer not null,
    ticket bigint not null,
    id bigint generated always as identity (cache 1),
    event_id text not null,
    type text not null,
    size integer not null,
    traceparent text not null,
    tracestate text,
    document text not null,
    created_at timestamptz not null default clock_timestamp()
) partition by range (created_at);
comment on table tenantry.outbox is 'Events as they were emitted. Rows are appended and never changed; old partitions are dropped';
comment on column tenantry.outbox.ticket is 'Drawn when a transaction first emits to a lane; (ticket, id) is the order of a lane';
comment on column tenantry.outbox.size is 'Bytes on the wire: document and headers';
create index outbox_by_lane on tenantry.outbox (lane, ticket, id);
create table tenantry.outbox_other partition of tenantry.outbox default;
comment on table tenantry.outbox_other is 'Rows for which nobody had made a partition yet';

create table tenantry.outbox_partitions (
    name text primary key,
    starts_at timestamptz not null,
    ends_at timestamptz not null,
    last_ticket bigint
);
comment on column tenantry.outbox_partitions.last_ticket is 'No row in it has a higher ticket; null while rows may still come';

create table tenantry.outbox_cursors (
    lane integer primary key references tenantry.outbox_lanes (id) on delete cascade,
    ticket bigint not null default 0,
    id bigint not null default 0,
    starts_at timestamptz not null default clock_timestamp() - interval '1 hour',
    stream text not null default '',
    sequence bigint not null default 0,
    holder bigint not null default 0,
    moved_at timestamptz,
    attempts integer not null default 0,
    retry_at timestamptz not null default '-infinity',
    last_error text not null default ''
) with (fillfactor = 50);
comment on table tenantry.outbox_cursors is 'How far each lane is published';
comment on column tenantry.outbox_cursors.starts_at is 'Nothing that was emitted before is still to be published';
comment on column tenantry.outbox_cursors.holder is 'The relay that moved it last. Another one asks the broker first what it has';

create table tenantry.outbox_turns (
    tenant_id text primary key,
    tokens double precision,
    counted_at timestamptz not null default clock_timestamp()
) with (fillfactor = 50);
comment on table tenantry.outbox_turns is 'Whoever publishes for a tenant holds its row locked, and accounts for its rate there';

create table tenantry.outbox_batches (
    lane integer not null references tenantry.outbox_lanes (id) on delete cascade,
    ticket bigint not null,
    id bigint not null,
    published_at timestamptz not null default clock_timestamp(),
    attempts integer not null,
    primary key (lane, ticket, id)
);
comment on table tenantry.outbox_batches is 'When a lane''s cursor came to where, and at which attempt';

create table tenantry.outbox_dead_letters (
    number bigint primary key generated always as identity,
    lane integer not null references tenantry.outbox_lanes (id) on delete cascade,
    ticket bigint not null,
    id bigint not null,
    event_id text not null,
    type text not null,
    traceparent text not null,
    document text not null,
    attempts integer not null,
    reason text not null,
    created_at timestamptz not null,
    died_at timestamptz not null default clock_timestamp(),
    unique (lane, ticket, id)
);
comment on table tenantry.outbox_dead_letters is 'Events that no stream would take';

create function tenantry.outbox_lane_opened() returns trigger language plpgsql as $$
begin
    insert into tenantry.outbox_cursors (lane) values (new.id);
    insert into tenantry.outbox_turns (tenant_id) values (new.tenant_id) on conflict do nothing;
    return null;
end $$;
create trigger lane_opened after insert on tenantry.outbox_lanes
    for each row execute function tenantry.outbox_lane_opened();

create function tenantry.outbox_lane_erased() returns trigger language plpgsql as $$
begin
    delete from tenantry.outbox where lane = old.id;
    delete from tenantry.outbox_turns t where t.tenant_id = old.tenant_id
        and not exists (select from tenantry.outbox_lanes l where l.tenant_id = old.tenant_id);
    return null;
end $$;
create trigger lane_erased after delete on tenantry.outbox_lanes
    for each row execute function tenantry.outbox_lane_erased();

create function tenantry.outbox_ticket(lane integer) returns bigint language plpgsql as $$
declare
    every_lane constant integer := 736800000;
    most_lanes constant integer := 16;
    drawn text := current_setting('tenantry.ticket_' || lane, true);
    lanes integer;
    key integer := lane;
    last bigint;
begin
    if drawn is null or drawn = '' then
        lanes := coalesce(nullif(current_setting('tenantry.lanes', true), ''), '0')::integer;
        if lanes >= most_lanes then
            -- Locks are a scarce good: a transaction that emits to very many lanes holds up all of them with one.
            key := every_lane;
            drawn := current_setting('tenantry.ticket_' || every_lane, true);
        end if;
        if drawn is null or drawn = '' then
            -- The lock says "I may yet commit a ticket above this one". It is taken before the ticket is drawn, so
            -- whoever reads the last ticket first and the locks second knows below which ticket nothing can come.
            select last_value into last from tenantry.outbox_tickets;
            perform pg_advisory_xact_lock_shared(key, ((last << 32) >> 32)::integer);
            drawn := nextval('tenantry.outbox_tickets')::text;
            perform set_config('tenantry.ticket_' || key, drawn, true), set_config('tenantry.lanes', (lanes + 1)::text, true);
        end if;
    end if;
    return drawn::bigint;
end $$;
comment on function tenantry.outbox_ticket is 'The place of this transaction in a lane; drawn at the first emit, the same for all further ones';

create function tenantry.outbox_horizon(out lane integer, out ticket bigint, out pid integer) returns setof record
language plpgsql as $$
declare
    last bigint;
begin
    select last_value into last from tenantry.outbox_tickets;
    return query select null::integer, last, null::integer;
    return query
    select l.classid::bigint::integer, last - ((last - l.objid::bigint) & 4294967295), l.pid
    from pg_locks l
    where l.locktype = 'advisory' and l.objsubid = 2 and l.mode = 'ShareLock' and l.granted
    and l.classid >= 736800000 and l.classid < 836800000
    and l.database = (select d.oid from pg_database d where d.datname = current_database());
end $$;
comment on function tenantry.outbox_horizon is
    'Up to which ticket a lane can be read: the first row is for all of them, the others for lanes with open transactions (736800000: every lane)';

create function tenantry.outbox_size(document text, id text, tenant text, traceparent text, tracestate text)
returns integer language sql immutable as $$
    select octet_length(document) + octet_length(id) + octet_length(tenant) + octet_length(traceparent)
        + coalesce(octet_length(tracestate) + length('tracestate: ') + 2, 0)
        + length('NATS/1.0') + length('Nats-Msg-Id: /') + length('traceparent: ') + 4 * 2
$$;
comment on function tenantry.outbox_size is 'Bytes of a message: the event and its headers, as they are sent';

create function tenantry.outbox_append(
    lanes integer[], ids text[], types text[], documents text[], traceparents text[], tracestates text[]
) returns void language sql security definer set search_path = pg_catalog, pg_temp as $$
    with drawn as materialized (
        select l.lane, tenantry.outbox_ticket(l.lane) as ticket from (select distinct lane from unnest(lanes) lane) l
    )
    insert into tenantry.outbox (lane, ticket, event_id, type, document, traceparent, tracestate, size)
    select e.lane, d.ticket, e.id, e.type, e.document, e.traceparent, e.tracestate,
        tenantry.outbox_size(e.document, e.id, l.tenant_id, e.traceparent, e.tracestate)
    from unnest(lanes, ids, types, documents, traceparents, tracestates)
        with ordinality e (lane, id, type, document, traceparent, tracestate, number)
    join drawn d on d.lane = e.lane
    join tenantry.outbox_lanes l on l.id = e.lane
    order by e.number
$$;
comment on function tenantry.outbox_append is 'Append events that are known to be valid';

create function tenantry.emit_many(events jsonb) returns text[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    called_at constant timestamptz := clock_timestamp();
    context constant text := nullif(current_setting('tenantry.traceparent', true), '');
    problem record;
    made record;
begin
    if jsonb_typeof(events) is distinct from 'array' then
        raise exception 'expected events to be a JSON array of objects, got: %', coalesce(jsonb_typeof(events), 'null')
            using errcode = 'TY422';
    end if;
    select into problem e.number, p.code, p.message, p.hint
    from jsonb_array_elements(events) with ordinality e (event, number)
    cross join lateral tenantry.outbox_problem(e.event) p
    where p.message is not null
    order by e.number limit 1;
    if found then
        raise exception '%', problem.message || case
                when jsonb_array_length(events) > 1 then format(' (event %s of %s)', problem.number, jsonb_array_length(events))
                else ''
            end
            using errcode = problem.code, hint = problem.hint;
    end if;
    with given as materialized (
        select e.number, e.event, l.id as lane, l.tenant_id, l.payload,
            coalesce(e.event ->> 'id', gen_random_uuid()::text) as id,
            coalesce(
                e.event ->> 'traceparent', context,
                '00-' || encode(uuid_send(gen_random_uuid()), 'hex') || '-'
                || substr(encode(uuid_send(gen_random_uuid()), 'hex'), 17) || '-01'
            ) as traceparent
        from jsonb_array_elements(events) with ordinality e (event, number)
        join tenantry.outbox_lanes l
            on l.tenant_id = e.event ->> 'tenant' and l.channel = coalesce(e.event ->> 'channel', 'events')
    ),
    written as materialized (
        select g.*, tenantry.outbox_document(g.event, g.id, g.tenant_id, g.traceparent, called_at) as document from given g
    )
    select into made
        array_agg(w.lane order by w.number) as lanes,
        array_agg(w.id order by w.number) as ids,
        array_agg(w.event ->> 'type' order by w.number) as types,
        array_agg(w.document order by w.number) as documents,
        array_agg(w.traceparent order by w.number) as traceparents,
        array_agg(w.event ->> 'tracestate' order by w.number) as tracestates,
        min(w.number) filter (
            where tenantry.outbox_size(w.document, w.id, w.tenant_id, w.traceparent, w.event ->> 'tracestate') > w.payload
        ) as too_large
    from written w;
    if made.too_large is not null then
        select into problem l.tenant_id, l.payload, octet_length(made.documents[made.too_large]) as size
        from tenantry.outbox_lanes l where l.id = made.lanes[made.too_large];
        raise exception 'expected an event of at most % bytes with its headers for tenant %, got: % bytes without them',
            problem.payload, problem.tenant_id, problem.size
            using errcode = 'TY413', hint = 'Emit a reference to the data instead of the data, or raise `payload` of the tenant''s plan.';
    end if;
    perform tenantry.outbox_append(made.lanes, made.ids, made.types, made.documents, made.traceparents, made.tracestates);
    return coalesce(made.ids, '{}');
end $$;
comment on function tenantry.emit_many is
    'Emit a JSON array of events with tenant, type, data and, if wanted, channel, id, source, subject, time, dataschema, traceparent, tracestate, extensions';

create function tenantry.outbox_problem(event jsonb, out code text, out message text, out hint text)
language plpgsql stable as $$
declare
    fields constant text[] := '{tenant,channel,type,data,id,source,subject,time,dataschema,traceparent,tracestate,extensions}';
    taken constant text[] := '{specversion,id,source,type,subject,time,datacontenttype,dataschema,data,tenantid,tenant,traceparent,tracestate}';
    wanted_tenant constant text := event ->> 'tenant';
    wanted_channel constant text := coalesce(event ->> 'channel', 'events');
    wanted_type constant text := event ->> 'type';
    wanted_id constant text := event ->> 'id';
    extensions constant jsonb := coalesce(nullif(event -> 'extensions', 'null'), '{}');
    lane record;
    name text;
begin
    code := 'TY422';
    hint := 'Nothing was emitted; correct the event and emit it again.';
    if jsonb_typeof(event) <> 'object' then
        message := format('expected an event to be a JSON object, got: %s', jsonb_typeof(event));
        return;
    end if;
    select key into name from jsonb_object_keys(event) key where key <> all (fields) limit 1;
    if found then
        message := format('expected an event to have fields of %s, got: %s', array_to_string(fields, ', '), quote_literal(left(name, 40)));
        return;
    end if;
    if wanted_tenant is null then
        message := 'expected an event to name its tenant';
    elsif wanted_type is null or length(wanted_type) > 200 or wanted_type !~ '^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$' then
        message := format(
            'expected type to be words of letters, digits, - and _ joined by dots, like order.created, at most 200 characters, got: %s',
            coalesce(quote_literal(left(wanted_type, 80)), 'null'));
    elsif length(wanted_id) not between 1 and 256 or wanted_id ~ '[\x01-\x1f\x7f-\x9f\u2028\u2029]' or wanted_id !~ '\S' then
        message := format('expected id to be 1 to 256 printable characters, got: %s', quote_literal(left(wanted_id, 80)));
    elsif event ->> 'source' = '' then
        message := 'expected source not to be empty';
    elsif event ->> 'traceparent' !~ '^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$' then
        message := format('expected traceparent to be a W3C trace context, got: %s', quote_literal(left(event ->> 'traceparent', 80)));
    elsif event ->> 'tracestate' !~ '^[\x20-\x7e]{1,512}$' then
        message := 'expected tracestate to be 1 to 512 visible characters';
    elsif not pg_input_is_valid(event ->> 'time', 'timestamptz') or event ->> 'time' ~ 'infinity' then
        message := format('expected time to be a timestamp, got: %s', quote_literal(left(event ->> 'time', 80)));
    elsif jsonb_typeof(extensions) <> 'object' then
        message := format('expected extensions to be a JSON object, got: %s', jsonb_typeof(extensions));
    end if;
    if message is not null then
        return;
    end if;
    select e.key into name from jsonb_each(extensions) e
    where e.key !~ '^[a-z0-9]{1,20}$' or e.key = any (taken) or jsonb_typeof(e.value) not in ('string', 'number', 'boolean')
    limit 1;
    if found then
        message := format(
            'expected extensions to be texts, numbers or booleans under names of 1 to 20 lower-case letters and digits that CloudEvents does not use, got: %s',
            quote_literal(left(name, 40)));
        return;
    end if;
    select l.is_open into lane from tenantry.outbox_lanes l where l.tenant_id = wanted_tenant and l.channel = wanted_channel;
    if found and lane.is_open then
        return;
    end if;
    if found then
        code := 'TY409';
        message := format('channel %s of tenant %s is being deleted', quote_literal(wanted_channel), wanted_tenant);
    elsif exists (select from tenantry.outbox_lanes l where l.tenant_id = wanted_tenant) then
        code := 'TY404';
        message := format('tenant %s has no channel %s', wanted_tenant, quote_literal(left(wanted_channel, 40)));
        hint := format('Add it with `tenantry tenant set %s --channel NAME`, or emit to another channel.', wanted_tenant);
    else
        code := 'TY404';
        message := format('there is no tenant %s', quote_literal(left(wanted_tenant, 60)));
        hint := 'Create it with `tenantry tenant create`. An outbox in a database of its own learns of it from a running relay.';
    end if;
end $$;

create function tenantry.outbox_document(event jsonb, id text, tenant text, traceparent text, called_at timestamptz)
returns text language sql stable as $$
    select '{"specversion":"1.0","id":' || to_json(id) || ',"source":' || to_json(coalesce(event ->> 'source', '/' || current_database()))
        || ',"type":"' || (event ->> 'type') || '"'
        || coalesce(',"subject":' || to_json(event ->> 'subject'), '')
        || ',"time":"' || to_char(coalesce((event ->> 'time')::timestamptz, called_at) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || '"'
        || coalesce(',"dataschema":' || to_json(event ->> 'dataschema'), '')
        || ',"tenantid":"' || tenant || '","traceparent":"' || traceparent || '"'
        || coalesce(',"tracestate":' || to_json(event ->> 'tracestate'), '')
        || coalesce((select string_agg(',' || to_json(e.key) || ':' || e.value::text, '' order by e.key) from jsonb_each(nullif(event -> 'extensions', 'null')) e), '')
        || case when event ? 'data' then ',"datacontenttype":"application/json","data":' || (event -> 'data')::text else '' end
        || '}'
$$;

create function tenantry.emit(
    tenant text,
    type text,
    data jsonb default null,
    channel text default 'events',
    id text default null,
    source text default null,
    subject text default null,
    "time" timestamptz default null,
    dataschema text default null,
    traceparent text default null,
    tracestate text default null,
    extensions jsonb default null
) returns text language sql as $$
    select (tenantry.emit_many(jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
        'tenant', tenant, 'type', type, 'channel', channel, 'id', id, 'source', source, 'subject', subject, 'time', "time",
        'dataschema', dataschema, 'traceparent', traceparent, 'tracestate', tracestate, 'extensions', extensions
    )) || case when data is null then '{}' else jsonb_build_object('data', data) end)))[1]
$$;
comment on function tenantry.emit is 'Emit an event in this transaction; returns its id';

create function tenantry.outbox_partition(starts timestamptz, ends timestamptz) returns void language plpgsql as $$
declare
    name constant text := 'outbox_' || to_char(starts at time zone 'UTC', 'YYYYMMDD"t"HH24MISS');
begin
    if exists (select from tenantry.outbox_partitions p where p.starts_at < ends and p.ends_at > starts) then
        return;
    end if;
    execute format('create table tenantry.%I (like tenantry.outbox including defaults including indexes)', name);
    -- Rows may have come while nobody made partitions.
    lock table tenantry.outbox_other in exclusive mode;
    execute format(
        'with moved as (delete from tenantry.outbox_other where created_at >= %L and created_at < %L returning *)
         insert into tenantry.%I select * from moved', starts, ends, name);
    execute format('alter table tenantry.outbox attach partition tenantry.%I for values from (%L) to (%L)', name, starts, ends);
    insert into tenantry.outbox_partitions (name, starts_at, ends_at) values (name, starts, ends);
end $$;

create view tenantry.outbox_events as
select
    l.tenant_id, l.channel, o.event_id, o.type,
    case
        when d.number is not null then 'failed'
        when (o.ticket, o.id) <= (c.ticket, c.id) then 'published'
        else 'pending'
    end as state,
    o.created_at,
    case when d.number is null and (o.ticket, o.id) <= (c.ticket, c.id) then b.published_at end as published_at,
    case
        when d.number is not null then d.attempts
        when (o.ticket, o.id) <= (c.ticket, c.id) then coalesce(b.attempts, 1)
        when f.id = o.id then c.attempts
        else 0
    end as attempts,
    coalesce(d.reason, case when f.id = o.id then nullif(c.last_error, '') end) as last_error,
    o.traceparent, o.size, o.lane, o.ticket, o.id
from tenantry.outbox o
join tenantry.outbox_lanes l on l.id = o.lane
join tenantry.outbox_cursors c on c.lane = o.lane
left join lateral (
    select f.id from tenantry.outbox f
    where c.attempts > 0 and f.lane = c.lane and (f.ticket, f.id) > (c.ticket, c.id)
    order by f.ticket, f.id limit 1
) f on true
left join lateral (
    select b.published_at, b.attempts from tenantry.outbox_batches b
    where b.lane = o.lane and (b.ticket, b.id) >= (o.ticket, o.id)
    order by b.ticket, b.id limit 1
) b on true
left join tenantry.outbox_dead_letters d on d.lane = o.lane and d.ticket = o.ticket and d.id = o.id;
comment on view tenantry.outbox_events is 'Each event that was emitted, and what has become of it';

alter table tenantry.outbox_lanes
    add foreign key (tenant_id, channel) references tenantry.channels (tenant_id, name) on delete cascade;

create function tenantry.follow_tenant(tenant text) returns void language sql as $$
    insert into tenantry.outbox_lanes (tenant_id, channel, is_open, payload)
    select t.id, c.name, t.status <> 'deleting' and not c.removing,
        coalesce(t.overrides ->> 'payload', p.limits ->> 'payload', '1048576')::integer
    from tenantry.tenants t
    join tenantry.plans p on p.name = t.plan
    join tenantry.channels c on c.tenant_id = t.id
    where t.id = tenant
    on conflict (tenant_id, channel) do update set is_open = excluded.is_open, payload = excluded.payload
    where (outbox_lanes.is_open, outbox_lanes.payload) is distinct from (excluded.is_open, excluded.payload)
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

create function tenantry.plan_changed() returns trigger language plpgsql as $$
begin
    perform tenantry.follow_tenant(t.id) from tenantry.tenants t where t.plan = new.name;
    return null;
end $$;
create trigger plan_changed after update of limits on tenantry.plans
    for each row when (old.limits ->> 'payload' is distinct from new.limits ->> 'payload')
    execute function tenantry.plan_changed();

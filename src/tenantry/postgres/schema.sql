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

do $$
begin
    if current_setting('server_encoding') <> 'UTF8' then
        raise exception 'expected a database in UTF8 for the outbox, got: %', current_setting('server_encoding')
            using hint = 'Events are JSON, and sizes are counted in bytes of UTF-8. Use a database that was created with encoding UTF8.';
    end if;
end $$;

create table tenantry.outbox_lanes (
    -- Ids are the first half of the keys of advisory locks, so they start where nobody else's are likely to be.
    id integer primary key generated always as identity (minvalue 736800001),
    tenant_id text not null,
    channel text not null,
    tenant_uid uuid,
    is_open boolean not null default true,
    is_suspended boolean not null default false,
    payload integer not null,
    unique (tenant_id, channel)
);
comment on table tenantry.outbox_lanes is 'Where events can be emitted to; follows the registry of tenants';
comment on column tenantry.outbox_lanes.tenant_uid is 'A tenant that was made again under its old id is another one';
comment on column tenantry.outbox_lanes.payload is 'Bytes of the largest message: event and headers';

create sequence tenantry.outbox_tickets start 2;
select setval('tenantry.outbox_tickets', 1);

create sequence tenantry.outbox_floor;

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
    -- After whatever was closed already, though the clock be set back. It is looked up after the ticket was drawn.
    created_at timestamptz not null default greatest(clock_timestamp(), to_timestamp(pg_sequence_last_value('tenantry.outbox_floor')))
) partition by range (created_at);
comment on sequence tenantry.outbox_floor is 'Until when partitions are closed, in seconds since 1970: nothing is put into them any more';
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

create table tenantry.outbox_erased_lanes (
    lane integer primary key,
    ticket bigint not null
);
comment on table tenantry.outbox_erased_lanes is
    'Lanes that are gone, for as long as a transaction from before may still commit events for them';

create function tenantry.outbox_lane_erased() returns trigger language plpgsql as $$
begin
    delete from tenantry.outbox where lane = old.id;
    insert into tenantry.outbox_erased_lanes values (old.id, pg_sequence_last_value('tenantry.outbox_tickets'));
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
            last := pg_sequence_last_value('tenantry.outbox_tickets');
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
    -- Tickets go on being drawn between the two statements. A lock that stands above `last` holds back nothing yet; taken
    -- for one of 2^32 tickets ago, it would hold up a busy lane most of the time.
    just_drawn constant bigint := 1 << 20;
begin
    last := pg_sequence_last_value('tenantry.outbox_tickets');
    return query select null::integer, last, null::integer;
    return query
    select l.classid::bigint::integer, least(last, last + just_drawn - ((last + just_drawn - l.objid::bigint) & 4294967295)), l.pid
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
comment on function tenantry.outbox_append is 'Append whole events that were checked elsewhere: the HTTP ingest does, while NATS is away';
-- It checks nothing, so it is not for everybody who may emit.
revoke execute on function tenantry.outbox_append from public;

-- What follows up to `emit` is inlined into its callers, which is why each is one expression. Of the ways to say it, the
-- ones taken are those that cost the valid event least; `outbox_problem` says at leisure what is wrong with another.

create function tenantry.outbox_is_trace(traceparent text) returns boolean language sql immutable as $$
    select traceparent like '00-________________________________-________________-__'
        and traceparent ~ '^00-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+$'
$$;
comment on function tenantry.outbox_is_trace is 'Whether it is a W3C trace context, https://www.w3.org/TR/trace-context';

create function tenantry.outbox_trace(tenant text, id text) returns text language sql stable as $$
    select case
        when tenantry.outbox_is_trace(current_setting('tenantry.traceparent', true)) then current_setting('tenantry.traceparent', true)
        else '00-' || overlay(left(encode(sha256(convert_to(tenant || '/' || id, 'UTF8')), 'hex'), 48) placing '-' from 33 for 0) || '-01'
    end
$$;
comment on function tenantry.outbox_trace is
    'The trace of an event that brings none: the setting tenantry.traceparent, else a new one, which the event''s tenant and id tell';

create function tenantry.outbox_is_time("time" text) returns boolean language sql stable as $$
    select "time" ~ '^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)$' and pg_input_is_valid("time", 'timestamptz')
$$;

create function tenantry.outbox_wrong_extension(extensions jsonb) returns text language sql immutable as $$
    select e.key from jsonb_each(extensions) e
    where e.key !~ '^[a-z0-9]{1,20}$'
    or e.key in (
        'specversion', 'id', 'source', 'type', 'subject', 'time', 'datacontenttype', 'dataschema', 'data', 'tenantid', 'tenant',
        'traceparent', 'tracestate'
    )
    or case jsonb_typeof(e.value)
        when 'string' then false
        when 'boolean' then false
        when 'number' then e.value::text !~ '^-?\d{1,10}$' or e.value::numeric not between -2147483648 and 2147483647
        else true
    end
    limit 1
$$;
comment on function tenantry.outbox_wrong_extension is 'The name of an attribute that CloudEvents does not allow as an extension, if there is one';

create function tenantry.outbox_is_valid(
    type text, id text, source text, "time" text, traceparent text, tracestate text, extensions jsonb
) returns boolean language sql stable as $$
    select length(type) <= 200 and type ~ '^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$'
        and length(id) between 1 and 256 and id ~ '\S' and id !~ '[\x01-\x1f\x7f-\xa0\xad\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ue000-\uf8ff\ufeff]'
        and source is distinct from ''
        and ("time" is null or tenantry.outbox_is_time("time"))
        and (traceparent is null or tenantry.outbox_is_trace(traceparent))
        and (tracestate is null or length(tracestate) <= 512 and tracestate ~ '^[\x20-\x7e]+$')
        and case jsonb_typeof(extensions)
            when 'object' then tenantry.outbox_wrong_extension(extensions) is null
            when 'null' then true
            else extensions is null
        end
$$;

create function tenantry.outbox_document(
    tenant text, type text, data jsonb, id text, source text, subject text, "time" timestamptz, dataschema text,
    traceparent text, tracestate text, extensions jsonb
) returns text language sql stable as $$
    select '{"specversion":"1.0","id":' || to_json(id) || ',"source":' || to_json(coalesce(source, '/' || current_database()))
        || ',"type":"' || type || '"'
        || coalesce(',"subject":' || to_json(subject), '')
        || ',"time":"' || to_char("time" at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || '"'
        || coalesce(',"dataschema":' || to_json(dataschema), '')
        || ',"tenantid":"' || tenant || '","traceparent":"' || traceparent || '"'
        || coalesce(',"tracestate":' || to_json(tracestate), '')
        || coalesce(',' || nullif(btrim(nullif(extensions, 'null')::text, '{}'), ''), '')
        || coalesce(',"datacontenttype":"application/json","data":' || data::text, '')
        || '}'
$$;
comment on function tenantry.outbox_document is 'A valid event in CloudEvents'' structured mode';

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
) returns text language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    given_id constant text := coalesce(emit.id, gen_random_uuid()::text);
    trace constant text := coalesce(emit.traceparent, tenantry.outbox_trace(emit.tenant, given_id));
    lane tenantry.outbox_lanes;
    document text;
    size integer;
begin
    select * into lane from tenantry.outbox_lanes l
    where l.tenant_id = emit.tenant and l.channel = coalesce(emit.channel, 'events');
    if lane.is_open and tenantry.outbox_is_valid(
        emit.type, given_id, emit.source, to_json(emit.time) #>> '{}', emit.traceparent, emit.tracestate, emit.extensions
    ) then
        document := tenantry.outbox_document(
            emit.tenant, emit.type, emit.data, given_id, emit.source, emit.subject, coalesce(emit.time, clock_timestamp()),
            emit.dataschema, trace, emit.tracestate, emit.extensions);
        size := tenantry.outbox_size(document, given_id, emit.tenant, trace, emit.tracestate);
        if size <= lane.payload then
            insert into tenantry.outbox (lane, ticket, event_id, type, size, traceparent, tracestate, document)
            values (lane.id, tenantry.outbox_ticket(lane.id), given_id, emit.type, size, trace, emit.tracestate, document);
            return given_id;
        end if;
    end if;
    perform tenantry.outbox_refuse(jsonb_build_array(jsonb_build_object(
        'tenant', emit.tenant, 'type', emit.type, 'channel', emit.channel, 'id', emit.id, 'source', emit.source, 'subject', emit.subject,
        'time', emit.time, 'dataschema', emit.dataschema, 'traceparent', emit.traceparent, 'tracestate', emit.tracestate,
        'extensions', emit.extensions, 'data', emit.data
    )));
end $$;
comment on function tenantry.emit is 'Emit an event in this transaction; returns its id';

create function tenantry.outbox_fields() returns text[] language sql immutable as $$
    select '{tenant,channel,type,data,id,source,subject,time,dataschema,traceparent,tracestate,extensions}'::text[]
$$;

create function tenantry.outbox_id(seed uuid, number bigint) returns text language sql immutable as $$
    -- The two bytes make it one of version 4, for those who look.
    select encode(set_byte(set_byte(substr(sha256(uuid_send(seed) || int8send(number)), 1, 16), 6, 64), 8, 128), 'hex')::uuid::text
$$;
comment on function tenantry.outbox_id is 'A UUID for one of many events: to draw each of them would cost more than all the rest';

create function tenantry.emit_many(events jsonb) returns text[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    called_at constant timestamptz := clock_timestamp();
    seed constant uuid := gen_random_uuid();
    ids text[];
begin
    if jsonb_typeof(events) is distinct from 'array' then
        raise exception 'expected events to be a JSON array of objects, got: %', coalesce(jsonb_typeof(events), 'null')
            using errcode = 'TY422';
    end if;
    with addressed as materialized (
        select e.number, e.event, l.id as lane, l.tenant_id, l.payload,
            coalesce(e.event ->> 'id', tenantry.outbox_id(seed, e.number)) as id
        from jsonb_array_elements(events) with ordinality e (event, number)
        cross join lateral (
            select * from tenantry.outbox_lanes l
            where l.tenant_id = e.event ->> 'tenant' and l.channel = coalesce(e.event ->> 'channel', 'events')
            -- There is no other. Said so, it is one look into the index for an event, and never a walk through all lanes.
            limit 1
        ) l
        where l.is_open
    ),
    traced as materialized (
        select a.*, a.event ->> 'type' as type, a.event ->> 'tracestate' as tracestate,
            coalesce(a.event ->> 'traceparent', tenantry.outbox_trace(a.tenant_id, a.id)) as traceparent
        from addressed a
        where a.event - tenantry.outbox_fields() = '{}'
        and tenantry.outbox_is_valid(
            a.event ->> 'type', a.id, a.event ->> 'source', a.event ->> 'time', a.event ->> 'traceparent', a.event ->> 'tracestate',
            a.event -> 'extensions')
    ),
    written as materialized (
        select t.number, t.lane, t.tenant_id, t.payload, t.id, t.type, t.traceparent, t.tracestate, tenantry.outbox_document(
                t.tenant_id, t.type, t.event -> 'data', t.id, t.event ->> 'source', t.event ->> 'subject',
                coalesce((t.event ->> 'time')::timestamptz, called_at), t.event ->> 'dataschema', t.traceparent, t.tracestate,
                t.event -> 'extensions') as document
        from traced t
    ),
    appended as (
        insert into tenantry.outbox (lane, ticket, event_id, type, size, traceparent, tracestate, document)
        select w.lane, tenantry.outbox_ticket(w.lane), w.id, w.type,
            tenantry.outbox_size(w.document, w.id, w.tenant_id, w.traceparent, w.tracestate), w.traceparent, w.tracestate, w.document
        from written w
        where tenantry.outbox_size(w.document, w.id, w.tenant_id, w.traceparent, w.tracestate) <= w.payload
        order by w.number
        returning id, event_id
    )
    select coalesce(array_agg(a.event_id order by a.id), '{}') into ids from appended a;
    if cardinality(ids) < jsonb_array_length(events) then
        perform tenantry.outbox_refuse(events);
    end if;
    return ids;
end $$;
comment on function tenantry.emit_many is
    'Emit a JSON array of events with tenant, type, data and, if wanted, channel, id, source, subject, time, dataschema, traceparent, tracestate, extensions';

create function tenantry.outbox_refuse(events jsonb) returns void language plpgsql as $$
declare
    many constant integer := jsonb_array_length(events);
    problem record;
begin
    select into problem e.number, p.code, p.field, p.message, p.hint
    from jsonb_array_elements(events) with ordinality e (event, number)
    cross join lateral tenantry.outbox_problem(e.event) p
    where p.message is not null
    order by e.number limit 1;
    if not found then
        raise exception 'expected the channels of tenants to stay as they are while events are emitted, and one changed'
            using errcode = 'TY409', hint = 'Nothing was emitted; emit again.';
    end if;
    raise exception '%', problem.message || case when many > 1 then format(' (event %s of %s)', problem.number, many) else '' end
        using errcode = problem.code, hint = problem.hint, column = coalesce(problem.field, '');
end $$;
comment on function tenantry.outbox_refuse is 'Raise what is wrong with the first event that cannot be emitted';

create function tenantry.outbox_problem(event jsonb, out code text, out field text, out message text, out hint text)
language plpgsql stable as $$
declare
    wanted_tenant constant text := event ->> 'tenant';
    wanted_channel constant text := coalesce(event ->> 'channel', 'events');
    id constant text := coalesce(event ->> 'id', gen_random_uuid()::text);
    extensions constant jsonb := coalesce(nullif(event -> 'extensions', 'null'), '{}');
    lane tenantry.outbox_lanes;
    name text;
    size integer;
begin
    code := 'TY422';
    hint := 'Nothing was emitted; correct the event and emit it again.';
    if jsonb_typeof(event) <> 'object' then
        message := format('expected an event to be a JSON object, got: %s', jsonb_typeof(event));
        return;
    end if;
    select key into name from jsonb_object_keys(event) key where key <> all (tenantry.outbox_fields()) limit 1;
    if found then
        message := format(
            'expected an event to have fields of %s, got: %s',
            array_to_string(tenantry.outbox_fields(), ', '), quote_literal(left(name, 40)));
        return;
    end if;
    if wanted_tenant is null then
        field := 'tenant';
        message := 'expected an event to name its tenant';
    elsif not tenantry.outbox_is_valid(coalesce(event ->> 'type', ''), 'id', null, null, null, null, null) then
        field := 'type';
        message := format(
            'expected type to be words of letters, digits, - and _ joined by dots, like order.created, at most 200 characters, got: %s',
            coalesce(quote_literal(left(event ->> 'type', 80)), 'null'));
    elsif not tenantry.outbox_is_valid('type', id, null, null, null, null, null) then
        field := 'id';
        message := format('expected id to be 1 to 256 printable characters, got: %s', quote_literal(left(id, 80)));
    elsif event ->> 'source' = '' then
        field := 'source';
        message := 'expected source not to be empty';
    elsif not tenantry.outbox_is_time(event ->> 'time') then
        field := 'time';
        message := format(
            'expected time to be a timestamp with its offset, like 2026-01-31T08:00:00Z, got: %s', quote_literal(left(event ->> 'time', 80)));
    elsif not tenantry.outbox_is_trace(event ->> 'traceparent') then
        field := 'traceparent';
        message := format('expected traceparent to be a W3C trace context, got: %s', quote_literal(left(event ->> 'traceparent', 80)));
    elsif not tenantry.outbox_is_valid('type', 'id', null, null, null, event ->> 'tracestate', null) then
        field := 'tracestate';
        message := 'expected tracestate to be 1 to 512 characters of ASCII, without control characters';
    elsif jsonb_typeof(extensions) <> 'object' then
        field := 'extensions';
        message := format('expected extensions to be a JSON object, got: %s', jsonb_typeof(extensions));
    end if;
    if message is not null then
        return;
    end if;
    name := tenantry.outbox_wrong_extension(extensions);
    if name is not null then
        field := name;
        message := format(
            'expected extensions to be texts, whole numbers of 32 bits or booleans, under names of 1 to 20 lower-case letters and digits that CloudEvents does not use, got: %s',
            quote_literal(left(name, 40)));
        return;
    end if;
    select * into lane from tenantry.outbox_lanes l where l.tenant_id = wanted_tenant and l.channel = wanted_channel;
    if found and not lane.is_open then
        code := 'TY409';
        message := format('channel %s of tenant %s is being deleted', quote_literal(wanted_channel), wanted_tenant);
    elsif found then
        size := tenantry.outbox_size(
            tenantry.outbox_document(
                wanted_tenant, event ->> 'type', event -> 'data', id, event ->> 'source', event ->> 'subject',
                coalesce((event ->> 'time')::timestamptz, now()), event ->> 'dataschema',
                coalesce(event ->> 'traceparent', tenantry.outbox_trace(wanted_tenant, id)), event ->> 'tracestate', extensions),
            id, wanted_tenant, coalesce(event ->> 'traceparent', tenantry.outbox_trace(wanted_tenant, id)), event ->> 'tracestate');
        if size > lane.payload then
            code := 'TY413';
            field := 'data';
            message := format(
                'expected an event of at most %s bytes with its headers for tenant %s, got: %s bytes', lane.payload, wanted_tenant, size);
            hint := 'Emit a reference to the data instead of the data, or raise `payload` of the tenant''s plan.';
        end if;
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
comment on function tenantry.outbox_problem is 'What is wrong with an event; nulls but for a code and a hint if nothing is';

create function tenantry.outbox_partition(starts timestamptz, ends timestamptz) returns void language plpgsql as $$
declare
    name constant text := 'outbox_' || to_char(starts at time zone 'UTC', 'YYYYMMDD"t"HH24MISS');
begin
    -- Rows that came while nobody made partitions stay where they are: a reader that was planned before they moved and
    -- runs after that would find them in neither place.
    if exists (select from tenantry.outbox_partitions p where p.starts_at < ends and p.ends_at > starts)
    or exists (select from tenantry.outbox_other o where o.created_at >= starts and o.created_at < ends) then
        return;
    end if;
    execute format('create table tenantry.%I (like tenantry.outbox including defaults including indexes)', name);
    execute format('alter table tenantry.outbox attach partition tenantry.%I for values from (%L) to (%L)', name, starts, ends);
    insert into tenantry.outbox_partitions (name, starts_at, ends_at) values (name, starts, ends);
exception when check_violation then
    -- One came in the meantime.
    return;
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

create table tenantry.event_schemas (
    tenant_id text not null references tenantry.tenants (id) on delete cascade,
    type text not null,
    schema jsonb not null,
    revision bigint not null generated always as identity,
    updated_at timestamptz not null default now(),
    primary key (tenant_id, type)
);
comment on column tenantry.event_schemas.revision is 'Another one with every change, so that those who keep schemas in memory notice';

create table tenantry.pipeline_lanes (
    pipeline text not null,
    tenant_id text not null references tenantry.tenants (id) on delete cascade,
    channel text not null,
    id uuid not null default gen_random_uuid(),
    sequence bigint not null default 0,
    epoch integer not null default 1,
    query text not null,
    place text not null,
    generation integer not null default 1,
    parked_at timestamptz,
    parked_sequence bigint,
    parked_reason text,
    parked_traceback text,
    updated_at timestamptz not null default now(),
    primary key (pipeline, tenant_id, channel),
    foreign key (tenant_id, channel) references tenantry.channels (tenant_id, name) on delete cascade,
    check ((parked_at is null) = (parked_reason is null))
);
comment on table tenantry.pipeline_lanes is 'How far each pipeline is on each lane, and whether it is parked there';
comment on column tenantry.pipeline_lanes.id is 'What tables remember of it: a channel that is removed and added again is another one, and counts anew';
comment on column tenantry.pipeline_lanes.sequence is 'The last sequence that was applied';
comment on column tenantry.pipeline_lanes.epoch is 'Counts the times that reading began anew at the next sequence: after a move, or when it was resumed';
comment on column tenantry.pipeline_lanes.query is 'Who reads it: the query for all, or the tenant''s own';
comment on column tenantry.pipeline_lanes.place is 'The account and stream from which it is read';
comment on column tenantry.pipeline_lanes.generation is 'The documents that are served; a rebuild makes the next ones beside them';
create index pipeline_lanes_by_tenant on tenantry.pipeline_lanes (tenant_id);

create table tenantry.documents (
    tenant_id text not null references tenantry.tenants (id) on delete cascade,
    projection text not null,
    generation integer not null,
    id text not null,
    channel text not null,
    document jsonb,
    sequence bigint not null,
    updated_at timestamptz not null default now(),
    primary key (tenant_id, projection, generation, id),
    foreign key (tenant_id, channel) references tenantry.channels (tenant_id, name) on delete cascade
);
comment on table tenantry.documents is 'What projections made of events; without a document it was deleted';
comment on column tenantry.documents.sequence is 'The last event that was applied, so that none is applied twice';

-- A session sees the documents of the tenant that it names in this setting, `*` for all, and else none; its owner, too.
alter table tenantry.documents enable row level security;
alter table tenantry.documents force row level security;
create policy documents_of_the_tenant on tenantry.documents
    using (current_setting('tenantry.tenant', true) in (tenant_id, '*'));
-- Superusers see everything regardless, and so read as this role, where they may make it.
do $$ begin
    create role tenantry_reader nologin;
exception when duplicate_object or unique_violation or insufficient_privilege then null;
end $$;
do $$ begin
    grant usage on schema tenantry to tenantry_reader;
    grant select on tenantry.documents to tenantry_reader;
exception when undefined_object then null;
end $$;

create table tenantry.stateful_tenants (
    query text not null,
    tenant_id text not null,
    tenant_uid uuid not null,
    primary key (query, tenant_id)
);
comment on table tenantry.stateful_tenants is 'Whose state a query keeps: a tenant that is made anew under an old name must not get the old one''s';

create table tenantry.subscriptions (
    service text primary key,
    app text not null,
    channel text not null,
    types text[] not null,
    handling_order text not null check (handling_order in ('fifo', 'parallel')),
    after_last_retry text not null default 'skip' check (after_last_retry in ('skip', 'park_key', 'stop')),
    parts integer not null default 1 check (parts > 0),
    created_at timestamptz not null default now(),
    seen_at timestamptz not null default now()
);
comment on table tenantry.subscriptions is 'Services that handle events, as their workers declared them last';
comment on column tenantry.subscriptions.parts is 'Into how many parts the events of each tenant are divided, each with a consumer of its own';
comment on column tenantry.subscriptions.created_at is 'A service that begins with what comes from now on begins here, also for tenants that come later';

create table tenantry.subscription_pauses (
    service text not null,
    tenant_id text not null references tenantry.tenants (id) on delete cascade,
    paused_by text not null,
    paused_at timestamptz not null default now(),
    primary key (service, tenant_id)
);
comment on table tenantry.subscription_pauses is 'Whose events a service does not handle for now';
create index subscription_pauses_by_tenant on tenantry.subscription_pauses (tenant_id);

create table tenantry.subscription_jobs (
    id uuid primary key default gen_random_uuid(),
    kind text not null check (kind in ('redrive', 'discard', 'replay', 'rewind')),
    service text not null,
    tenant_id text references tenantry.tenants (id) on delete cascade,
    request jsonb not null,
    state text not null default 'running' check (state in ('running', 'cancelling', 'cancelled', 'done', 'failed')),
    done bigint not null default 0,
    failed bigint not null default 0,
    total bigint,
    progress jsonb not null default '{}',
    problem text not null default '',
    asked_by text not null,
    asked_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);
comment on table tenantry.subscription_jobs is 'Redrives and replays, which the workers that hold the tenants do; they go on after a crash where they were';
comment on column tenantry.subscription_jobs.progress is 'Of a replay, by part: where it is and how far it goes';
create index subscription_jobs_open on tenantry.subscription_jobs (service) where state in ('running', 'cancelling');
create index subscription_jobs_by_tenant on tenantry.subscription_jobs (tenant_id);

create table tenantry.dead_letters (
    tenant_id text not null,
    channel text not null,
    service text not null,
    sequence bigint not null,
    subject text not null,
    payload bytea not null,
    reason text not null,
    trace text,
    published_at timestamptz not null,
    died_at timestamptz not null default now(),
    id uuid not null default gen_random_uuid() unique,
    owner_id text references tenantry.tenants (id) on delete cascade,
    part integer not null default 0,
    state text not null default 'dead' check (state in ('dead', 'parked', 'held', 'stopped')),
    event_id text,
    type text,
    key text,
    headers jsonb not null default '{}',
    traceback text not null default '',
    deliveries integer not null default 1,
    job uuid references tenantry.subscription_jobs (id) on delete set null,
    primary key (tenant_id, channel, service, part, sequence, published_at)
);
comment on table tenantry.dead_letters is 'Events of lanes that could not be processed, as they were';
comment on column tenantry.dead_letters.owner_id is 'The tenant, if the registry knows it; what is its goes with it';
comment on column tenantry.dead_letters.service is 'Who could not: a subscriber, `pipelines` for all pipelines together, `push/` and an endpoint, `accounts` for accounts of others';
comment on column tenantry.dead_letters.state is 'dead: the lane went on; parked: what has its key is held back; held: it is held back; stopped: the lane is held back';
comment on column tenantry.dead_letters.job is 'The redrive that is to handle it again';
create index dead_letters_by_owner on tenantry.dead_letters (owner_id);
create index dead_letters_by_service on tenantry.dead_letters (service, tenant_id, died_at);
create index dead_letters_by_job on tenantry.dead_letters (job) where job is not null;
create index dead_letters_blocking on tenantry.dead_letters (service, tenant_id, part, key) where state <> 'dead';

create table tenantry.usage (
    tenant_id text not null references tenantry.tenants (id) on delete cascade,
    channel text not null,
    pipeline text not null,
    minute timestamptz not null,
    events bigint not null,
    bytes bigint not null,
    stored_bytes bigint not null,
    task_seconds double precision not null,
    primary key (tenant_id, minute, pipeline, channel)
);
comment on table tenantry.usage is 'What pipelines did for tenants, by the minute';
comment on column tenantry.usage.stored_bytes is 'Bytes that were added to tables';
comment on column tenantry.usage.task_seconds is 'Time of Spark''s tasks, divided by bytes among those whose events they processed';

create table tenantry.lake_tables (
    location text primary key,
    tenant_id text not null,
    tenant_uid uuid not null,
    name text not null,
    rows bigint not null default 0,
    bytes bigint not null default 0,
    files bigint not null default 0,
    version bigint not null default 0,
    created_at timestamptz not null default now(),
    maintained_at timestamptz,
    erased_at timestamptz,
    is_erasure_untold boolean not null default false
);
comment on table tenantry.lake_tables is 'Tables in the lake. Those of a tenant that is gone are erased, and only then forgotten here';
comment on column tenantry.lake_tables.erased_at is 'A batch that was under way may have written since; so it is done once more before it is forgotten';
comment on column tenantry.lake_tables.is_erasure_untold is 'A new tenant of the same name has taken it over, erased; the audit log is yet to say so';
create index lake_tables_by_tenant on tenantry.lake_tables (tenant_id);

create table tenantry.pipeline_jobs (
    id uuid primary key default gen_random_uuid(),
    kind text not null check (kind in ('replay', 'rebuild')),
    pipeline text not null,
    tenant_id text references tenantry.tenants (id) on delete cascade,
    request jsonb not null,
    state text not null default 'waiting' check (state in ('waiting', 'running', 'cancelling', 'cancelled', 'done', 'failed')),
    done bigint not null default 0,
    total bigint,
    progress jsonb not null default '{}',
    problem text not null default '',
    asked_by text not null,
    asked_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);
comment on table tenantry.pipeline_jobs is 'Replays and rebuilds, which a pipeline process does; they go on after a crash where they were';
create index pipeline_jobs_open on tenantry.pipeline_jobs (asked_at) where state in ('waiting', 'running', 'cancelling');

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

create table tenantry.push_endpoints (
    id uuid primary key default gen_random_uuid(),
    tenant_id text not null references tenantry.tenants (id) on delete cascade,
    name text not null check (name ~ '^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$'),
    url text not null,
    channel text not null,
    types text[] not null check (cardinality(types) > 0),
    "order" text not null check ("order" in ('parallel', 'fifo')),
    max_in_flight integer not null check (max_in_flight > 0),
    timeout_seconds integer not null check (timeout_seconds > 0),
    retries integer not null check (retries >= 0),
    secret_version integer not null default 1,
    previous_secret_until timestamptz,
    state text not null default 'active' check (state in ('active', 'disabled')),
    state_reason text not null default '',
    revision bigint not null generated always as identity,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (tenant_id, name),
    foreign key (tenant_id, channel) references tenantry.channels (tenant_id, name) on delete cascade
);
comment on table tenantry.push_endpoints is 'URLs of tenants that events are delivered to, signed';
comment on column tenantry.push_endpoints.secret_version is 'Which secret signs: it is derived from the master secret, the id and this, and stored nowhere';
comment on column tenantry.push_endpoints.previous_secret_until is 'Until then the secret before this one signs, too';
comment on column tenantry.push_endpoints.revision is 'Another one with every change, so that those who keep endpoints in memory notice';

create table tenantry.worker_jobs (
    id uuid primary key default gen_random_uuid(),
    tenant_id text not null references tenantry.tenants (id) on delete cascade,
    app text not null default '',
    count integer not null check (count between 1 and 100),
    origin text not null default 'asked' check (origin in ('asked', 'plan')),
    state text not null default 'waiting' check (state in ('waiting', 'running', 'failed', 'stopping', 'stopped')),
    fleet uuid,
    host text not null default '',
    pids integer[] not null default '{}',
    problem text not null default '',
    heartbeat_at timestamptz,
    asked_by text not null,
    asked_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);
comment on table tenantry.worker_jobs is 'Workers that are there for one tenant alone, and the fleet that runs them';
comment on column tenantry.worker_jobs.app is 'The application whose fleet is to run them; empty: any';
comment on column tenantry.worker_jobs.origin is 'Whether somebody asked for it, or the plan of the tenant has it so';
comment on column tenantry.worker_jobs.heartbeat_at is 'When its fleet last said that it has it; another one takes it over from a fleet that is silent';
create index worker_jobs_by_time on tenantry.worker_jobs (asked_at desc);
create index worker_jobs_by_tenant on tenantry.worker_jobs (tenant_id);
create unique index worker_jobs_by_plan on tenantry.worker_jobs (app, tenant_id) where origin = 'plan' and state <> 'stopped';

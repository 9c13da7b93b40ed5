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

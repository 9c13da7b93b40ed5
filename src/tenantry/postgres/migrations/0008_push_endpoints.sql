-- Where a tenant's events are pushed to, over HTTP.

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

-- Subscriptions: which services there are, who is paused, what could not be handled, and what is being done about it.

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

-- Accounts that others provision are of tenants that the registry may not know.
alter table tenantry.dead_letters
    drop constraint dead_letters_tenant_id_fkey,
    add column id uuid not null default gen_random_uuid() unique,
    add column owner_id text references tenantry.tenants (id) on delete cascade,
    add column part integer not null default 0,
    add column state text not null default 'dead' check (state in ('dead', 'parked', 'held', 'stopped')),
    add column event_id text,
    add column type text,
    add column key text,
    add column headers jsonb not null default '{}',
    add column traceback text not null default '',
    add column deliveries integer not null default 1,
    add column job uuid references tenantry.subscription_jobs (id) on delete set null;
update tenantry.dead_letters set owner_id = tenant_id;
-- Each part has consumers of its own, and a stream that was made anew has other events under the old sequences.
alter table tenantry.dead_letters
    drop constraint dead_letters_pkey,
    add primary key (tenant_id, channel, service, part, sequence, published_at);
comment on column tenantry.dead_letters.owner_id is 'The tenant, if the registry knows it; what is its goes with it';
comment on column tenantry.dead_letters.service is 'Who could not: a subscriber, `pipelines` for all pipelines together, `push/` and an endpoint, `accounts` for accounts of others';
comment on column tenantry.dead_letters.state is 'dead: the lane went on; parked: what has its key is held back; held: it is held back; stopped: the lane is held back';
comment on column tenantry.dead_letters.job is 'The redrive that is to handle it again';
create index dead_letters_by_owner on tenantry.dead_letters (owner_id);
create index dead_letters_by_service on tenantry.dead_letters (service, tenant_id, died_at);
create index dead_letters_by_job on tenantry.dead_letters (job) where job is not null;
create index dead_letters_blocking on tenantry.dead_letters (service, tenant_id, part, key) where state <> 'dead';

-- Workers of their own for tenants, as they are asked for; a fleet that runs starts them.

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

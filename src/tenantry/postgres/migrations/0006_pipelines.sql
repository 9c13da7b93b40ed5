-- Pipelines: how far each is, the documents they make, what they could not take, and what they cost.

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

create table tenantry.dead_letters (
    tenant_id text not null references tenantry.tenants (id) on delete cascade,
    channel text not null,
    service text not null,
    sequence bigint not null,
    subject text not null,
    payload bytea not null,
    reason text not null,
    trace text,
    published_at timestamptz not null,
    died_at timestamptz not null default now(),
    primary key (tenant_id, channel, service, sequence)
);
comment on table tenantry.dead_letters is 'Events of lanes that could not be processed, as they were';
comment on column tenantry.dead_letters.service is 'Who could not: `pipelines` for all pipelines together';

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

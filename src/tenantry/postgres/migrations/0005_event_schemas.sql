-- What the data of a tenant's events must look like, by the type of the event.

create table tenantry.event_schemas (
    tenant_id text not null references tenantry.tenants (id) on delete cascade,
    type text not null,
    schema jsonb not null,
    revision bigint not null generated always as identity,
    updated_at timestamptz not null default now(),
    primary key (tenant_id, type)
);
comment on column tenantry.event_schemas.revision is 'Another one with every change, so that those who keep schemas in memory notice';

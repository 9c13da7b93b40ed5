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

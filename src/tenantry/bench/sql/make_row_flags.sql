create table if not exists public.row_flags (
    id bigint primary key generated always as identity,
    event_id text not null,
    subject text not null,
    payload text not null,
    created_at timestamptz not null default now(),
    published_at timestamptz
);
create index if not exists row_flags_pending on public.row_flags (id) where published_at is null;

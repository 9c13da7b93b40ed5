select id, event_id, subject, payload
from public.row_flags
where published_at is null
order by id
limit %(limit)s
for update skip locked

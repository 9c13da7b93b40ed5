update public.row_flags set published_at = now() where id = any (%(ids)s)

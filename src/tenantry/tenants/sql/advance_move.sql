update tenantry.moves
set stage = %(stage)s,
    lanes = %(lanes)s,
    problem = '',
    attempts = 0,
    finished_at = case when %(stage)s in ('done', 'abandoned') then now() end
where id = %(id)s and stage = %(expected)s

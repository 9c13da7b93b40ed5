with matching as materialized (select service, job from {{matching_dead_letters}} as m)
select now() as as_of,
    (select count(*) from {{chosen_dead_letters}} as c) as count,
    (select count(*) from {{chosen_dead_letters}} as c where not is_named) as added,
    (select count(*) from matching where job is not null) as under_way,
    (select count(*) from matching where job is null and service = 'pipelines' and %(kind)s = 'redrive') as left_out

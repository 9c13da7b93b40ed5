with matching as (
    select count(*) as matching,
        count(*) filter (where job is null and service = 'pipelines' and %(kind)s = 'redrive') as left_out
    from {{matching_dead_letters}} as m
),
chosen as (
    select count(*) as count, count(*) filter (where not is_named) as added from {{chosen_dead_letters}} as c
)
select now() as as_of, count, added, left_out, matching - (count - added) - left_out as under_way
from matching, chosen

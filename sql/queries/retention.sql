-- name: collect_finished
-- Delete up to $4 instances that ended longer ago than their retention.
-- $1 $2 $3 retention of done, cancelled and failed rows, milliseconds, bigint   $4 rows at most, int
-- $5 $6 where to go on, exclusive: finished_at timestamptz and id bigint of the last row looked at; -infinity and 0 at the
--    start of a pass. The id belongs in it, because rows that end in one commit share one time.
-- Index gen_durable_gc, walked in its order; only rows of one time are sorted, by id. The comparison of pairs is the only
-- lower bound: with finished_at >= $5 beside it, the bounds look like a narrow range on a table that nobody has analysed,
-- and everything that ever ended is read and sorted for each batch (tried: 300,000 rows, 157 ms against 0.5).
-- Locks for update, not for no key update: the weaker lock would let DELETE wait for a caller's key share [L8]. Spares
-- terminal children of live parents, parents with live children, and keys still reserved.
-- The lock looks at the time again: a row that was retried and has ended anew since the snapshot is a young one.
with ended as materialized (
    select g.id, g.finished_at, g.parent_id, g.status, g.unique_until
    from gendurable.gen_durable as g
    where g.finished_at <= now() - least($1::bigint, $2::bigint, $3::bigint) * interval '1 millisecond'
        and (g.finished_at, g.id) > ($5::timestamptz, $6::bigint)
    order by g.finished_at, g.id
    limit $4::int
),
doomed as materialized (
    select g.id
    from gendurable.gen_durable as g
    where g.id = any (array(
        select e.id
        from ended as e
        where e.finished_at <= now() - case e.status
                when 'done' then $1::bigint
                when 'cancelled' then $2::bigint
                else $3::bigint
            end * interval '1 millisecond'
            and (e.unique_until is null or e.unique_until <= now())
            -- The limits keep these two probes per row; without them a plan may read every live row to join it.
            and (
                select true
                from gendurable.gen_durable as p
                where p.id = e.parent_id
                    and p.finished_at is null
                limit 1
            ) is null
            and (
                select true
                from gendurable.gen_durable as c
                where c.parent_id = e.id
                    and c.finished_at is null
                limit 1
            ) is null
    ))
        and g.finished_at <= now() - least($1::bigint, $2::bigint, $3::bigint) * interval '1 millisecond'
    order by g.id
    for update skip locked
),
deleted as (
    delete from gendurable.gen_durable as g
    where g.id = any (array(select d.id from doomed as d))
    returning g.id
)
select
    (select count(*) from deleted)::int as deleted,
    (select count(*) from ended)::int as seen,
    last.finished_at as reached_at,
    last.id as reached_id
from (select) as always
left join (
    select e.finished_at, e.id from ended as e order by e.finished_at desc, e.id desc limit 1
) as last on true;

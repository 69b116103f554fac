-- name: queue_overview
-- Each queue with its rows by status, its oldest due row and whether it is paused. For people: reads every live row.
select
    coalesce(l.queue, q.name) as queue,
    coalesce(l.runnable, 0)::bigint as runnable,
    coalesce(l.scheduled, 0)::bigint as scheduled,
    coalesce(l.held, 0)::bigint as held,
    coalesce(l.executing, 0)::bigint as executing,
    coalesce(l.waiting, 0)::bigint as waiting,
    coalesce(l.oldest_due_s, 0) as oldest_due_s,
    coalesce(q.paused, false) as paused
from (
    select
        g.queue,
        count(*) filter (where g.status = 'runnable' and not g.held and g.eligible_at <= now()) as runnable,
        count(*) filter (where g.status = 'runnable' and not g.held and g.eligible_at > now()) as scheduled,
        count(*) filter (where g.status = 'runnable' and g.held) as held,
        count(*) filter (where g.status = 'executing') as executing,
        count(*) filter (where g.status in ('awaiting_signal', 'awaiting_children')) as waiting,
        date_part('epoch', now() - min(g.eligible_at) filter (
            where g.status = 'runnable' and not g.held and g.eligible_at <= now()
        )) as oldest_due_s
    from gendurable.gen_durable as g
    where g.finished_at is null
    group by g.queue
) as l
full join gendurable.queues as q on q.name = l.queue
order by 1;

-- name: oldest_due
-- How long the oldest due row of each of the queues $1 (text[]) has waited, seconds; null for none.
-- One probe of gen_durable_pick per priority and queue: future rows and the backlog behind the first are not read.
with recursive priorities (queue, priority) as (
    select
        q.queue,
        (
            select g.priority
            from gendurable.gen_durable as g
            where g.queue = q.queue
                and g.status = 'runnable'
                and not g.held
            order by g.priority, g.eligible_at, g.id
            limit 1
        )
    from unnest($1::text[]) as q (queue)
    union all
    select
        p.queue,
        (
            select g.priority
            from gendurable.gen_durable as g
            where g.queue = p.queue
                and g.status = 'runnable'
                and not g.held
                and g.priority > p.priority
            order by g.priority, g.eligible_at, g.id
            limit 1
        )
    from priorities as p
    where p.priority is not null
)
select
    p.queue,
    date_part('epoch', now() - min(first.eligible_at)) as oldest_due_s
from priorities as p
left join lateral (
    select g.eligible_at
    from gendurable.gen_durable as g
    where g.queue = p.queue
        and g.status = 'runnable'
        and not g.held
        and g.priority = p.priority
        and g.eligible_at <= now()
    order by g.eligible_at
    limit 1
) as first on true
group by p.queue;

-- name: due_or_executing
-- Whether the queues $1 (text[]) still have a row that is due, held or executing; what `--drain` waits for.
-- Three questions, each with the predicate of its own partial index (gen_durable_pick, gen_durable_held, gen_durable_lease),
-- and each stops at the first row: as one condition with "or" it would read every row that ended. Future rows are not read:
-- the pick index is probed once per priority, in its own order, because without the order a scan of the table looks cheaper.
with recursive priorities (queue, priority) as (
    select
        q.queue,
        (
            select g.priority
            from gendurable.gen_durable as g
            where g.queue = q.queue
                and g.status = 'runnable'
                and not g.held
            order by g.priority, g.eligible_at, g.id
            limit 1
        )
    from unnest($1::text[]) as q (queue)
    union all
    select
        p.queue,
        (
            select g.priority
            from gendurable.gen_durable as g
            where g.queue = p.queue
                and g.status = 'runnable'
                and not g.held
                and g.priority > p.priority
            order by g.priority, g.eligible_at, g.id
            limit 1
        )
    from priorities as p
    where p.priority is not null
)
select
    exists (
        select
        from priorities as p
        cross join lateral (
            select g.id
            from gendurable.gen_durable as g
            where g.queue = p.queue
                and g.status = 'runnable'
                and not g.held
                and g.priority = p.priority
                and g.eligible_at <= now()
            order by g.eligible_at, g.id
            limit 1
        ) as due
    )
    or exists (
        select
        from gendurable.gen_durable as g
        where g.held
            and g.queue = any ($1::text[])
            and g.eligible_at <= now()
    )
    or exists (
        select
        from gendurable.gen_durable as g
        where g.lease_expires_at is not null
            and g.queue = any ($1::text[])
    ) as has_work;

-- name: list_nodes
-- Every process that has registered and was not swept, the youngest first.
select
    n.boot, n.node, n.host, n.pid, n.version, n.queues, n.started_at, n.beat_at, n.lease_expires_at > now() as is_alive,
    (select count(*) from gendurable.gen_durable as g where g.lease_expires_at is not null and g.locked_by = n.boot) as executing
from gendurable.nodes as n
order by n.started_at desc
limit 1000;

-- name: count_machines
-- Live rows by machine, version and step: what a deploy has to be able to run. For people: reads every live row.
select g.fsm, g.fsm_version, g.step, g.status::text as status, count(*)::bigint as rows
from gendurable.gen_durable as g
where g.finished_at is null
group by g.fsm, g.fsm_version, g.step, g.status
order by g.fsm, g.fsm_version, g.step, g.status
limit 10000;

-- name: notify
-- Send $2 (payload text) on channel $1 (text), in a transaction of its own: inside a hot commit it would serialise commits.
select pg_notify($1::text, $2::text);

-- name: ping
-- Proves that a connection answers.
select 1 as one;

-- name: discard_plans
-- Throw away this connection's plans, after the table has grown so much that they may scan it.
discard plans;

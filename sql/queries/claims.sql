-- name: claim_runnable
-- Take up to $2 due rows of queue $1 for worker $3, in batch order, and say when the next future one is due.
-- $1 queue text   $2 rows wanted, int   $3 boot id of the worker, text   $4 lease length, milliseconds, bigint
-- $5 $6 $7 where the scan starts: priority smallint, eligible_at timestamptz, id bigint, exclusive. It is the position this
--    queue last reached, so that dead index entries a held snapshot keeps alive are not walked again [L15].
-- $8 take rows with a concurrency key, boolean: false after a collision, so that unkeyed work never waits for it [L13].
-- $9 'fsm@version' text[] that this process failed to resolve lately and leaves to others [L16].
-- Index gen_durable_pick, one short scan per priority: future rows are never read [L12], and the order is exactly the
-- index's, so the scan stops after a batch [L10]. Rows locked elsewhere are skipped, never waited for.
-- The update goes by primary key from an array: a join would turn into a scan of the table once the plan is generic, and
-- a ctid misses rows rewritten between snapshot and lock [L11].
-- A row whose key is taken (by a row executing now, or by one ahead of it in this batch) is held instead of claimed: it
-- leaves the pick index until the key's holder lets go [L14]. The unique index gen_durable_concurrency_active is the proof;
-- what is seen here only makes a violation rare.
-- The commit does not wait for the disk: set_config, for this transaction only. A claim lost with the server is a claim that
-- never was: the row is as it stood before, its outcome is refused or, if this worker has claimed it again with the same
-- number, is an outcome of the same step from the same state. Outcomes do wait, and with them every claim before them.
-- Returns claimed rows in batch order, then the held ones (outcome 'held'), then one row 'next' whose due_in_ms is the
-- time to the next future row, null when there is none or when the batch was full, and whose id is the table's size in
-- pages: a plan made for a small table is thrown away when the table has grown.
with recursive priorities (priority) as (
    (
        select g.priority
        from gendurable.gen_durable as g
        where g.queue = $1
            and g.status = 'runnable'
            and not g.held
            and (g.priority, g.eligible_at, g.id) > ($5::smallint, $6::timestamptz, $7::bigint)
        order by g.priority, g.eligible_at, g.id
        limit 1
    )
    union all
    select (
        select g.priority
        from gendurable.gen_durable as g
        where g.queue = $1
            and g.status = 'runnable'
            and not g.held
            and g.priority > p.priority
        order by g.priority, g.eligible_at, g.id
        limit 1
    )
    from priorities as p
    where p.priority is not null
),
picked as materialized (
    select due.id, due.priority, due.eligible_at, due.concurrency_key
    from priorities as p
    cross join lateral (
        select g.id, g.priority, g.eligible_at, g.concurrency_key
        from gendurable.gen_durable as g
        where g.queue = $1
            and g.status = 'runnable'
            and not g.held
            and g.priority = p.priority
            and (g.eligible_at, g.id) > (
                case when p.priority = $5::smallint then $6::timestamptz else '-infinity' end,
                case when p.priority = $5::smallint then $7::bigint else 0 end
            )
            and g.eligible_at <= now()
            and ($8::boolean or g.concurrency_key is null)
            and (cardinality($9::text[]) = 0 or not (g.fsm || '@' || g.fsm_version) = any ($9::text[]))
        order by g.eligible_at, g.id
        limit $2::int
        for no key update skip locked
    ) as due
    where p.priority is not null
    limit $2::int
),
keyed as (
    select
        p.id,
        p.concurrency_key,
        row_number() over (partition by p.concurrency_key order by p.priority, p.eligible_at, p.id) as place
    from picked as p
    where p.concurrency_key is not null
),
losers as materialized (
    select k.id
    from keyed as k
    where k.place > 1
        -- The limit keeps this a probe of the unique index per key; without it a plan may hash everything that executes.
        or (
            select true
            from gendurable.gen_durable as r
            where r.concurrency_key = k.concurrency_key
                and r.status = 'executing'
                and r.concurrency_shard is null
            limit 1
        )
),
held_back as (
    update gendurable.gen_durable as g
    set held = true, updated_at = now()
    where g.id = any (array(select l.id from losers as l))
    returning g.id, g.concurrency_key
),
claimed as (
    update gendurable.gen_durable as g
    set
        status = 'executing',
        locked_by = $3::text,
        lease_expires_at = now() + $4::bigint * interval '1 millisecond',
        claim = g.claim + 1,
        started_at = coalesce(g.started_at, now()),
        updated_at = now()
    where g.id = any (array(select p.id from picked as p except all select l.id from losers as l))
    returning
        g.id, g.fsm, g.fsm_version, g.step, g.state, g.attempt, g.crashes, g.snoozes, g.claim, g.priority, g.eligible_at,
        g.concurrency_key, g.parent_id, g.correlation_key, g.metadata, g.tags, g.inserted_at, g.deadline_at,
        (g.expires_at <= now() and g.started_at = now()) as is_expired
)
(
    select
        'claimed' as answer, c.id, c.fsm, c.fsm_version, c.step, c.state, c.attempt, c.crashes, c.snoozes, c.claim, c.priority,
        c.eligible_at, c.concurrency_key, c.parent_id, c.correlation_key, c.metadata, c.tags, c.inserted_at,
        coalesce(c.is_expired, false) as is_expired,
        date_part('epoch', c.deadline_at - now()) * 1000 as deadline_in_ms,
        date_part('epoch', now() - c.eligible_at) * 1000 as due_in_ms
    from claimed as c
    order by c.priority, c.eligible_at, c.id
)
union all
select
    'held', h.id, null, null, null, null, null, null, null, null, null, null, h.concurrency_key, null, null, null, null, null,
    false, null, null
from held_back as h
union all
select
    'next', pg_relation_size('gendurable.gen_durable') / 8192, set_config('synchronous_commit', 'off', true), null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, false, null,
    case
        when (select count(*) from picked) < $2::int
            then (
                select date_part('epoch', min(future.eligible_at) - now()) * 1000
                from priorities as p
                cross join lateral (
                    select g.eligible_at
                    from gendurable.gen_durable as g
                    where g.queue = $1
                        and g.status = 'runnable'
                        and not g.held
                        and g.priority = p.priority
                        and g.eligible_at > now()
                    order by g.eligible_at
                    limit 1
                ) as future
                where p.priority is not null
            )
    end;

-- name: release_claims
-- Hand the claims ($1, $2) of worker $3 back as if they had not been taken: attempt unchanged, due when they were, or $4 later.
-- $1 instance ids bigint[], ascending   $2 their claims bigint[]   $3 boot id text
-- $4 milliseconds to wait from now, bigint[], null keeps eligible_at
-- Skips rows that a caller's open transaction holds [L1]; they are handed back by their lease. gen_durable_pkey.
with mine as materialized (
    select t.id, t.delay_ms
    from unnest((select $1::bigint[]), (select $2::bigint[]), (select $4::bigint[])) as t (id, claim, delay_ms)
    cross join lateral (
        select g.id
        from gendurable.gen_durable as g
        where g.id = t.id
            and g.locked_by = $3::text
            and g.claim = t.claim
        limit 1
        for no key update skip locked
    ) as owned
)
update gendurable.gen_durable as g
set
    status = case when g.cancel_reason is null then 'runnable' else 'cancelled' end::gendurable.durable_status,
    finished_at = case when g.cancel_reason is null then null else now() end,
    last_error = coalesce(g.cancel_reason, g.last_error),
    eligible_at = coalesce(now() + mine.delay_ms * interval '1 millisecond', g.eligible_at),
    locked_by = null,
    lease_expires_at = null,
    updated_at = now()
from mine
where g.id = mine.id
returning g.id;

-- name: unhold_keys
-- Give each of the keys $1 that nobody executes now to its next held row; returns the queues that have work for it.
-- $1 concurrency keys text[]
-- A later statement of the transaction that freed the keys, so that its snapshot is younger than the row locks [L5].
-- Index gen_durable_held, one row per key, in batch order; a row somebody else is un-holding is skipped.
with next_up as materialized (
    select first.id
    from unnest($1::text[]) as k (key)
    cross join lateral (
        select g.id
        from gendurable.gen_durable as g
        where g.held
            and g.concurrency_key = k.key
        order by g.priority, g.eligible_at, g.id
        limit 1
        for no key update skip locked
    ) as first
)
update gendurable.gen_durable as g
set held = false, updated_at = now()
where g.id = any (array(select n.id from next_up as n))
returning g.queue;

-- name: key_holders
-- For the keys $1 of rows this claim has just held: which are free, and which are executed by a row nobody is changing.
-- $1 concurrency keys text[]
-- A key in neither answer is being freed at this moment and must be asked again. The lock is what makes 'held' certain:
--
--   flush:   updates the holder ... un-holds (does not see our row) ......... commits
--   claim:                                    holds our row, commits
--   here:                                                        reads: still executing?
--
-- FOR SHARE cannot be had on a row a flush has updated, so 'held' means that its un-holding is still to come [L14].
-- Index gen_durable_concurrency_active.
with holders as materialized (
    select g.concurrency_key
    from gendurable.gen_durable as g
    where g.concurrency_key = any ($1::text[])
        and g.status = 'executing'
        and g.concurrency_shard is null
    for share of g skip locked
)
select
    k.key,
    case
        when exists (select from holders as h where h.concurrency_key = k.key) then 'held'
        when not exists (
            select
            from gendurable.gen_durable as g
            where g.concurrency_key = k.key
                and g.status = 'executing'
                and g.concurrency_shard is null
        ) then 'free'
        else 'changing'
    end as answer
from unnest($1::text[]) as k (key);

-- name: orphaned_held_keys
-- Up to $1 keys that hold rows although nobody executes them: what a process leaves that dies between holding and checking.
-- $1 keys wanted, int
-- Walks gen_durable_held key by key; only the reconciler asks.
with recursive keys (key) as (
    (select g.concurrency_key from gendurable.gen_durable as g where g.held order by g.concurrency_key limit 1)
    union all
    select (
        select g.concurrency_key
        from gendurable.gen_durable as g
        where g.held
            and g.concurrency_key > k.key
        order by g.concurrency_key
        limit 1
    )
    from keys as k
    where k.key is not null
)
select k.key
from keys as k
where k.key is not null
    and not exists (
        select
        from gendurable.gen_durable as g
        where g.concurrency_key = k.key
            and g.status = 'executing'
            and g.concurrency_shard is null
    )
limit $1::int;

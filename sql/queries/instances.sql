-- name: get_instance
-- One instance by id ($1 bigint) or, when that is null, by correlation key ($2 text): the one the key addresses now, else
-- the youngest that carried it. Indexes gen_durable_pkey, gen_durable_correlation; the youngest needs a scan and is for people.
select
    g.id, g.fsm, g.fsm_version, g.step, g.status::text as status, g.queue, g.priority, g.state, g.result, g.attempt, g.crashes,
    g.snoozes, g.last_error, g.errors, g.correlation_key, g.concurrency_key, g.metadata, g.tags, g.parent_id, g.held,
    g.locked_by, g.eligible_at, g.inserted_at, g.updated_at, g.started_at, g.finished_at, g.deadline_at, g.expires_at,
    g.cancel_reason
from gendurable.gen_durable as g
where g.id = coalesce(
    $1::bigint,
    (select o.id from gendurable.gen_durable as o where o.correlation_guard = $2::text),
    (select max(o.id) from gendurable.gen_durable as o where o.correlation_key = $2::text)
);

-- name: list_instances
-- A page of instances, youngest first: rows with an id below $1 that pass every filter that is not null.
-- $1 id bigint, exclusive   $2 rows wanted, int   $3 fsm text   $4 statuses text[]   $5 queue text   $6 tags text[], all of them
-- $7 metadata, JSON text, contained   $8 parent id bigint   $9 correlation key prefix text
-- Walks gen_durable_pkey backwards, or gen_durable_tags, gen_durable_parent where they narrow; for people and pages.
select
    g.id, g.fsm, g.fsm_version, g.step, g.status::text as status, g.queue, g.priority, g.state, g.result, g.attempt, g.crashes,
    g.snoozes, g.last_error, g.errors, g.correlation_key, g.concurrency_key, g.metadata, g.tags, g.parent_id, g.held,
    g.locked_by, g.eligible_at, g.inserted_at, g.updated_at, g.started_at, g.finished_at, g.deadline_at, g.expires_at,
    g.cancel_reason
from gendurable.gen_durable as g
where g.id < $1::bigint
    and ($3::text is null or g.fsm = $3::text)
    and ($4::text[] is null or g.status::text = any ($4::text[]))
    and ($5::text is null or g.queue = $5::text)
    and ($6::text[] is null or g.tags @> $6::text[])
    and ($7::text is null or g.metadata @> $7::jsonb)
    and ($8::bigint is null or g.parent_id = $8::bigint)
    and ($9::text is null or starts_with(g.correlation_key, $9::text))
order by g.id desc
limit $2::int;

-- name: watch_instances
-- Which of the instances $1 (ids bigint[]) have ended, and with what; ids that do not exist come back with a null status.
-- gen_durable_pkey; asked for all waiting callers of a process at once.
select w.id, g.status::text as status, g.finished_at is not null as is_terminal
from unnest($1::bigint[]) as w (id)
left join gendurable.gen_durable as g on g.id = w.id
where g.id is null
    or g.finished_at is not null;

-- name: cancel_instance
-- Cancel one instance by id ($1 bigint) or by the correlation key that addresses it ($2 text), for the reason $3 (text).
-- A waiting row ends at once; an executing one is marked, its worker is told, and it ends at its next commit.
-- Locks the row and waits for it: this is a caller's statement, no worker runs it. gen_durable_pkey, gen_durable_correlation.
-- Also returns the concurrency key of a row that ended while it was not held: it had its key's turn, which must be passed on.
-- Every column that a check ties to the status is set, although it has that value already: when the row was changed between
-- snapshot and lock, the checks first see the row of the snapshot with what was decided about the locked one.
with target as materialized (
    select
        g.id, g.status::text as status, g.locked_by is not null as is_executing, g.finished_at is not null as is_terminal,
        case when not g.held then g.concurrency_key end as turn
    from gendurable.gen_durable as g
    where g.id = coalesce(
        $1::bigint, (select o.id from gendurable.gen_durable as o where o.correlation_guard = $2::text)
    )
    for no key update
),
changed as (
    update gendurable.gen_durable as g
    set
        cancel_reason = coalesce(g.cancel_reason, $3::text),
        last_error = case when t.is_executing then g.last_error else $3::text end,
        status = case when t.is_executing then g.status else 'cancelled' end,
        claim = case when t.is_executing then g.claim else g.claim + 1 end,
        held = false,
        locked_by = case when t.is_executing then g.locked_by end,
        lease_expires_at = case when t.is_executing then g.lease_expires_at end,
        finished_at = case when t.is_executing then g.finished_at else now() end,
        updated_at = now()
    from target as t
    where g.id = t.id
        and not t.is_terminal
    returning g.id
)
select
    t.id, t.status, (select count(*) from changed)::int as changed,
    case when not t.is_executing and not t.is_terminal then t.turn end as turn
from target as t;

-- name: retry_instance
-- Run a failed or cancelled instance ($1 id bigint) again from the step it ended in, with fresh attempts.
-- The unique indexes decide whether its correlation key is still to be had. gen_durable_pkey. The lock is set to null for
-- the reason given at cancel_instance.
with target as materialized (
    select g.id, g.status::text as status, g.queue, g.correlation_key
    from gendurable.gen_durable as g
    where g.id = $1::bigint
    for no key update
),
changed as (
    update gendurable.gen_durable as g
    set
        status = 'runnable',
        attempt = 0,
        crashes = 0,
        snoozes = 0,
        claim = g.claim + 1,
        cancel_reason = null,
        eligible_at = now(),
        deadline_at = case when g.deadline_at <= now() then null else g.deadline_at end,
        expires_at = null,
        locked_by = null,
        lease_expires_at = null,
        finished_at = null,
        updated_at = now()
    from target as t
    where g.id = t.id
        and t.status in ('failed', 'cancelled')
    returning g.id
)
select t.id, t.status, t.queue, t.correlation_key, (select count(*) from changed)::int as changed
from target as t;

-- name: key_owner
-- The instance that the correlation key $1 (text) addresses now. Index gen_durable_correlation.
select g.id from gendurable.gen_durable as g where g.correlation_guard = $1::text;

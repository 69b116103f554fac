-- name: insert_alike
-- Insert rows that differ in nothing but their state and have no correlation key: the fast way, one statement for any number.
-- $1 what they have in common, JSON text   $2 their states, JSON text[]
-- The common part: fsm, version, step, queue, priority, delay_ms or at, concurrency_key, metadata, tags, parent_id,
-- deadline_ms or deadline_at, expires_ms or expires_at. It is one row, so the states are written in input order and the ids that come back, sorted, are
-- the input's order. No conflict is possible.
insert into gendurable.gen_durable (
    fsm, fsm_version, step, queue, priority, eligible_at, concurrency_key, metadata, tags, parent_id, deadline_at, expires_at,
    state
)
select
    t.fsm, t.version, t.step, t.queue, t.priority,
    coalesce(t.at, now() + t.delay_ms * interval '1 millisecond', now()),
    t.concurrency_key, t.metadata, t.tags, t.parent_id,
    coalesce(t.deadline_at, now() + t.deadline_ms * interval '1 millisecond'),
    coalesce(t.expires_at, now() + t.expires_ms * interval '1 millisecond'),
    r.state::jsonb
from jsonb_to_record($1::jsonb) as t (
    fsm text, version int, step text, queue text, priority smallint, at timestamptz, delay_ms bigint,
    concurrency_key text, metadata jsonb, tags text[], parent_id bigint, deadline_at timestamptz, deadline_ms bigint,
    expires_at timestamptz, expires_ms bigint
)
cross join unnest($2::text[]) as r (state)
returning id;

-- name: insert_rows
-- Insert any mix of rows, keyed or not, in one statement; a row whose correlation key is taken is left out.
-- $1 what rows have in common, JSON text[]   $2 which of these each row has, from 1, int[]   $3 states, JSON text[]
-- $4 correlation keys text[], null for none; no key twice   $5 'live', 'ever' or 'none' for each row text[]
-- $6 how long a key stays reserved after the insert, milliseconds, bigint[], null: as the scope says
-- Ids are drawn in input order, so that rows of one insert run in that order; rows are written in key order, so that two
-- inserts of the same new keys in opposite orders wait for each other in one direction only [section 3.3].
-- The unique index gen_durable_correlation decides; what came back is what was written.
insert into gendurable.gen_durable (
    id, fsm, fsm_version, step, queue, priority, eligible_at, concurrency_key, metadata, tags, parent_id, deadline_at,
    expires_at, state, correlation_key, correlation_scope, unique_until
)
select
    r.id, t.fsm, t.version, t.step, t.queue, t.priority,
    coalesce(t.at, now() + t.delay_ms * interval '1 millisecond', now()),
    t.concurrency_key, t.metadata, t.tags, t.parent_id,
    coalesce(t.deadline_at, now() + t.deadline_ms * interval '1 millisecond'),
    coalesce(t.expires_at, now() + t.expires_ms * interval '1 millisecond'),
    r.state::jsonb,
    r.correlation_key,
    case
        when r.correlation_key is null then null
        when r.scope = 'none' then '{}'::gendurable.durable_status[]
        when r.scope = 'ever' then enum_range(null::gendurable.durable_status)
        else '{runnable,executing,awaiting_signal,awaiting_children}'::gendurable.durable_status[]
    end,
    now() + r.unique_ms * interval '1 millisecond'
from (
    select
        nextval(pg_get_serial_sequence('gendurable.gen_durable', 'id')) as id,
        u.template, u.state, u.correlation_key, u.scope, u.unique_ms
    from unnest($2::int[], $3::text[], $4::text[], $5::text[], $6::bigint[])
        with ordinality as u (template, state, correlation_key, scope, unique_ms, ordinal)
    order by u.ordinal
) as r
join (
    select
        d.ordinal, x.fsm, x.version, x.step, x.queue, x.priority, x.at, x.delay_ms, x.concurrency_key, x.metadata, x.tags,
        x.parent_id, x.deadline_at, x.deadline_ms, x.expires_at, x.expires_ms
    from unnest($1::text[]) with ordinality as d (document, ordinal)
    cross join lateral jsonb_to_record(d.document::jsonb) as x (
        fsm text, version int, step text, queue text, priority smallint, at timestamptz, delay_ms bigint,
        concurrency_key text, metadata jsonb, tags text[], parent_id bigint, deadline_at timestamptz, deadline_ms bigint,
    expires_at timestamptz, expires_ms bigint
    )
) as t on t.ordinal = r.template
order by r.correlation_key, r.id
on conflict (correlation_guard) where correlation_guard is not null do nothing
returning id, correlation_key;

-- name: key_owners
-- Who has the correlation keys $1 (text[]) now, after an insert that left them out. A key that was only reserved for a time
-- which is over is freed here, so that the next try of the insert succeeds.
-- Index gen_durable_correlation; freeing locks in key order and skips rows that others hold.
with expired as materialized (
    select g.id
    from gendurable.gen_durable as g
    where g.correlation_guard = any ($1::text[])
        and g.unique_until <= now()
        and g.finished_at is not null
    order by g.correlation_guard
    for no key update skip locked
),
freed as (
    update gendurable.gen_durable as g
    set
        correlation_scope = '{runnable,executing,awaiting_signal,awaiting_children}',
        unique_until = null
    where g.id = any (array(select e.id from expired as e))
    returning g.id
)
select g.id, g.correlation_guard as correlation_key
from gendurable.gen_durable as g
where g.correlation_guard = any ($1::text[])
    and g.id <> all (array(select f.id from freed as f));

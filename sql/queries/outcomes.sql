-- name: commit_done
-- End the claims ($1, $2) of worker $3 as done with the results $4: the batch that an engine of jobs writes all day.
-- $1 instance ids bigint[], ascending   $2 their claims bigint[]   $3 boot id text   $4 results, JSON text[], null: {}
-- The rows are locked and the data carried in one pass over the input, which is in id order, then updated by primary key;
-- a row that a caller's open transaction holds is skipped and not returned [L1]. The guard names no status [L3].
-- The lateral with its limit makes the lock a probe of gen_durable_pkey for each input row, and the sub-selects hide the
-- arrays' lengths, so that no plan, custom or generic, prefers to scan the table for a large batch.
-- A cancellation asked for while the step ran wins over its outcome.
with mine as materialized (
    select t.id, t.result
    from unnest((select $1::bigint[]), (select $2::bigint[]), (select $4::text[])) as t (id, claim, result)
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
    status = case when g.cancel_reason is null then 'done' else 'cancelled' end::gendurable.durable_status,
    result = case when g.cancel_reason is null then coalesce(mine.result, '{}')::jsonb end,
    last_error = g.cancel_reason,
    locked_by = null,
    lease_expires_at = null,
    updated_at = now(),
    finished_at = now()
from mine
where g.id = mine.id
returning g.id;

-- name: commit_outcomes
-- Write any mix of outcomes for the claims ($1, $2) of worker $3; only what is still owned changes.
-- $1 instance ids bigint[], ascending   $2 their claims bigint[]   $3 boot id text
-- $4 status afterwards text[]   $5 next step text[], null keeps it   $6 new state, JSON text[], null keeps it
-- $7 attempt int[]   $8 snoozes int[]   $9 delay, milliseconds, bigint[], null keeps eligible_at
-- $10 eligible_at timestamptz[], wins over the delay   $11 result, JSON text[]   $12 error text[]   $13 its kind text[]
-- $14 cancel reason text[]   $15 whether the key changes boolean[]   $16 the new key text[]
-- Locks in id order, skips rows a caller holds [L1], never names the status in its guard [L3]; gen_durable_pkey serves both
-- the lock and the update. A cancellation asked for meanwhile wins over every outcome; a deadline that has passed wins over
-- an outcome that would go on. An error is appended to the last ten of the row.
-- Returns the rows written, with the status they really have.
with mine as materialized (
    select
        t.id, t.next_step, t.state, t.attempt, t.snoozes, t.result, t.error, t.error_kind, t.is_key_changed, t.new_key,
        case
            when owned.cancel_reason is not null then 'cancelled'
            when t.status = 'runnable' and owned.deadline_at <= now() then 'failed'
            else t.status
        end as status,
        case
            when owned.cancel_reason is not null then owned.cancel_reason
            when t.status = 'runnable' and owned.deadline_at <= now() then 'the deadline has passed'
            else t.error
        end as last_error,
        coalesce(owned.cancel_reason, t.cancel_reason) as cancel_reason,
        coalesce(t.eligible_at, now() + t.delay_ms * interval '1 millisecond') as eligible_at
    from unnest(
        (select $1::bigint[]), (select $2::bigint[]), (select $4::text[]), (select $5::text[]), (select $6::text[]),
        (select $7::int[]), (select $8::int[]), (select $9::bigint[]), (select $10::timestamptz[]),
        (select $11::text[]), (select $12::text[]), (select $13::text[]), (select $14::text[]),
        (select $15::boolean[]), (select $16::text[])
    ) as t (
        id, claim, status, next_step, state, attempt, snoozes, delay_ms,
        eligible_at, result, error, error_kind, cancel_reason, is_key_changed, new_key
    )
    cross join lateral (
        select g.id, g.cancel_reason, g.deadline_at
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
    status = mine.status::gendurable.durable_status,
    step = coalesce(mine.next_step, g.step),
    state = coalesce(mine.state::jsonb, g.state),
    attempt = mine.attempt,
    crashes = case when mine.next_step is null then g.crashes else 0 end,
    snoozes = mine.snoozes,
    eligible_at = case when mine.status = 'runnable' then coalesce(mine.eligible_at, g.eligible_at) else g.eligible_at end,
    result = case when mine.status = 'done' then coalesce(mine.result, '{}')::jsonb end,
    last_error = mine.last_error,
    errors = case
        when mine.error is null then g.errors
        else
            case when jsonb_array_length(g.errors) >= 10 then g.errors - 0 else coalesce(g.errors, '[]') end
            || jsonb_build_object(
                'time', now(), 'step', g.step, 'attempt', g.attempt, 'kind', mine.error_kind, 'text', mine.error
            )
    end,
    cancel_reason = mine.cancel_reason,
    concurrency_key = case when mine.is_key_changed then mine.new_key else g.concurrency_key end,
    locked_by = null,
    lease_expires_at = null,
    updated_at = now(),
    finished_at = case when mine.status <> 'runnable' then now() end
from mine
where g.id = mine.id
returning g.id, mine.status, date_part('epoch', g.eligible_at - now()) * 1000 as due_in_ms;

-- name: claims_still_owned
-- Which of the claims ($1, $2) worker $3 still owns: a row that a flush skipped and that is still owned was only busy.
-- $1 instance ids bigint[]   $2 their claims bigint[]   $3 boot id text
-- Reads without a lock; gen_durable_pkey.
select g.id
from unnest((select $1::bigint[]), (select $2::bigint[])) as t (id, claim)
join gendurable.gen_durable as g on g.id = t.id
where g.locked_by = $3::text
    and g.claim = t.claim;

-- name: outcome_landed
-- After a connection was lost during a flush: which of the claims ($1, $2) were ended by it. Taking a claim away (reap,
-- reclaim) raises the row's claim, giving an outcome does not, so an unlocked row with our claim, or one claimed once
-- more since, was ended by us.
-- $1 instance ids bigint[]   $2 their claims bigint[]
-- Reads without a lock; gen_durable_pkey.
select g.id
from unnest((select $1::bigint[]), (select $2::bigint[])) as t (id, claim)
join gendurable.gen_durable as g on g.id = t.id
where (g.claim = t.claim and g.locked_by is null)
    or (g.claim = t.claim + 1 and g.locked_by is not null);

-- name: lock_claims_waiting
-- The slow lane's first statement: wait for the rows a caller's transaction holds, in id order, under the lock_timeout this
-- transaction has set, so that the outcome that follows finds them free [L1].
-- $1 instance ids bigint[]   $2 boot id text
select g.id
from gendurable.gen_durable as g
where g.id = any ($1::bigint[])
    and g.locked_by = $2::text
order by g.id
for no key update;

-- name: limit_lock_wait
-- Bound every lock wait of this transaction to $1 milliseconds (text, as set_config takes it); ends with the transaction.
select set_config('lock_timeout', $1::text, true);

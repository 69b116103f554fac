-- name: register_node
-- Put this process into the table of live processes.
-- $1 boot id text   $2 node name text   $3 host text   $4 the machine's boot id text   $5 pid namespace text   $6 pid int
-- $7 when the pid started, text   $8 version text   $9 queues text[]   $10 lease length, milliseconds, bigint
insert into gendurable.nodes (
    boot, node, host, host_boot, pid_namespace, pid, pid_started, version, queues, lease_expires_at
)
values (
    $1::text, $2::text, $3::text, $4::text, $5::text, $6::int, $7::text, $8::text, $9::text[],
    now() + $10::bigint * interval '1 millisecond'
)
on conflict (boot) do update
set beat_at = now(), lease_expires_at = excluded.lease_expires_at, queues = excluded.queues;

-- name: beat_node
-- Say that this process lives: $1 boot id text   $2 lease length, milliseconds, bigint
-- No caller can lock this row, so a worker whose instance rows are locked by callers is still known to be alive [L2].
-- Returns nothing when the row was swept; the process then registers again.
update gendurable.nodes as n
set beat_at = now(), lease_expires_at = now() + $2::bigint * interval '1 millisecond'
where n.boot = $1::text
returning n.boot;

-- name: renew_leases
-- Push forward the leases of the claims ($1, $2) that worker $3 still holds; a claim that went to another is left alone.
-- $1 instance ids bigint[], ascending   $2 their claims bigint[]   $3 boot id text   $4 lease length, milliseconds, bigint
-- Skips rows that a caller's open transaction holds [L1, L2]; the guard names no status [L3]; locks in id order.
-- Returns the renewed ones, and whether somebody asked to cancel them meanwhile.
with mine as materialized (
    select t.id
    from unnest((select $1::bigint[]), (select $2::bigint[])) as t (id, claim)
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
set lease_expires_at = now() + $4::bigint * interval '1 millisecond'
where g.id = any (array(select m.id from mine as m))
returning g.id, g.cancel_reason is not null as is_cancelled;

-- name: reap_expired
-- Take up to $1 rows from workers that are gone and hand them back, or fail those that have outlived $2 processes.
-- $1 rows wanted, int   $2 crashes allowed, int   $3 the longest a row waits beyond its own lease, milliseconds, bigint
-- A row is taken when its lease and its worker's have both lapsed, or its own lapsed $3 ago [L2]. Rows locked elsewhere are
-- skipped: their owner is committing, or a caller is. The claim rises, so that a late outcome is known to be late.
-- Index gen_durable_lease; locks in the order of the leases but never waits, so the order cannot deadlock.
-- Everything a process held counts its crash, so the rows beside a poisonous one are suspects like it. From the second crash
-- on they are spread over a growing time, so that what was held together is not claimed together again; the first crash is
-- most often the process's own and costs no time.
-- A scope that leaves out a live status cannot be written; should one be there, its key may belong to another row by now,
-- so the row loses it here instead of making every sweep fail on it [L23].
with expired as materialized (
    select g.id, g.locked_by, g.crashes + 1 >= $2::int as is_poison, g.cancel_reason is not null as is_cancelled
    from gendurable.gen_durable as g
    where g.lease_expires_at <= now()
        and (
            g.lease_expires_at <= now() - $3::bigint * interval '1 millisecond'
            or not exists (
                select
                from gendurable.nodes as n
                where n.boot = g.locked_by
                    and n.lease_expires_at > now()
            )
        )
    order by g.lease_expires_at
    limit $1::int
    for no key update skip locked
)
update gendurable.gen_durable as g
set
    status = case
        when e.is_cancelled then 'cancelled'
        when e.is_poison then 'failed'
        else 'runnable'
    end::gendurable.durable_status,
    claim = g.claim + 1,
    crashes = g.crashes + 1,
    eligible_at = case
        when g.crashes = 0 or e.is_poison or e.is_cancelled then g.eligible_at
        else now() + random() * least(2 ^ (g.crashes + 1), 60) * interval '1 second'
    end,
    correlation_scope = case
        when g.correlation_scope = '{}' or g.correlation_scope @> '{runnable,executing,awaiting_signal,awaiting_children}'
            then g.correlation_scope
        when g.correlation_key is not null then '{}'
    end,
    last_error = case
        when e.is_cancelled then g.cancel_reason
        when e.is_poison
            then format(
                'step %s was running in %s processes that died; max_crashes is %s', g.step, g.crashes + 1, $2::int
            )
        else g.last_error
    end,
    errors = case when jsonb_array_length(g.errors) >= 10 then g.errors - 0 else coalesce(g.errors, '[]') end
    || jsonb_build_object(
        'time', now(), 'step', g.step, 'attempt', g.attempt, 'kind', 'crash', 'text', 'the worker ' || g.locked_by || ' is gone'
    ),
    locked_by = null,
    lease_expires_at = null,
    updated_at = now(),
    finished_at = case when e.is_cancelled or e.is_poison then now() end
from expired as e
where g.id = e.id
returning
    g.id, g.queue, g.status::text as status, g.concurrency_key, e.locked_by, g.fsm, g.step, g.crashes,
    date_part('epoch', greatest(g.eligible_at - now(), interval '0')) * 1000 as due_in_ms;

-- name: expire_boot_leases
-- Let the leases of worker $1, which is proven dead, lapse now, so that the next sweep takes its rows [L17].
-- $1 boot id text   $2 rows at most, int
-- Index gen_durable_lease would do for all workers together; rows locked elsewhere are skipped and keep their lease.
with owned as materialized (
    select g.id
    from gendurable.gen_durable as g
    where g.lease_expires_at > now()
        and g.locked_by = $1::text
    limit $2::int
    for no key update skip locked
)
update gendurable.gen_durable as g
set lease_expires_at = now()
where g.id = any (array(select o.id from owned as o))
returning g.id;

-- name: neighbours
-- Other live processes of this machine: $1 boot id text   $2 the machine's boot id text   $3 pid namespace text
-- $4 silence that makes a process suspect, milliseconds, bigint
select n.boot, n.pid, n.pid_started
from gendurable.nodes as n
where n.host_boot = $2::text
    and n.pid_namespace = $3::text
    and n.boot <> $1::text
    and n.beat_at < now() - $4::bigint * interval '1 millisecond';

-- name: expire_node
-- Let the lease of process $1 (boot id, text), which is proven dead, lapse now.
update gendurable.nodes as n
set lease_expires_at = now()
where n.boot = $1::text
    and n.lease_expires_at > now();

-- name: remove_node
-- Take process $1 (boot id, text) out of the table when it ends in order.
delete from gendurable.nodes as n where n.boot = $1::text;

-- name: sweep_nodes
-- Forget processes that have been silent for $1 milliseconds (bigint) and hold nothing.
delete from gendurable.nodes as n
where n.lease_expires_at < now() - $1::bigint * interval '1 millisecond'
    and not exists (
        select
        from gendurable.gen_durable as g
        where g.lease_expires_at is not null
            and g.locked_by = n.boot
    );

-- name: end_overdue
-- End up to $1 (int) waiting rows whose deadline has passed (failed) or that expired before they first started (cancelled).
-- Executing rows end at their own commit. Indexes gen_durable_deadline and gen_durable_expiry; rows locked elsewhere are
-- skipped and found by the next sweep. A scope that is not whole is dropped, as in reap_expired. Also returns the key of a
-- row that was not held: it had its key's turn, which must be passed on.
with past_deadline as materialized (
    select g.id, case when not g.held then g.concurrency_key end as turn
    from gendurable.gen_durable as g
    where g.deadline_at <= now()
        and g.finished_at is null
        and g.locked_by is null
    order by g.deadline_at
    limit $1::int
    for no key update skip locked
),
never_started as materialized (
    select g.id, case when not g.held then g.concurrency_key end as turn
    from gendurable.gen_durable as g
    where g.expires_at <= now()
        and g.started_at is null
        and g.finished_at is null
        and g.locked_by is null
    order by g.expires_at
    limit $1::int
    for no key update skip locked
),
ended as (
    select p.id, p.turn, 'failed' as status, 'the deadline has passed' as reason
    from past_deadline as p
    union all
    select n.id, n.turn, 'cancelled', 'expired before it started'
    from never_started as n
    where not exists (select from past_deadline as p where p.id = n.id)
)
update gendurable.gen_durable as g
set
    status = e.status::gendurable.durable_status,
    claim = g.claim + 1,
    held = false,
    correlation_scope = case
        when g.correlation_scope = '{}' or g.correlation_scope @> '{runnable,executing,awaiting_signal,awaiting_children}'
            then g.correlation_scope
        when g.correlation_key is not null then '{}'
    end,
    last_error = e.reason,
    cancel_reason = case when e.status = 'cancelled' then e.reason end,
    updated_at = now(),
    finished_at = now()
from ended as e
where g.id = e.id
returning g.id, e.status, g.fsm, g.step, e.turn;

-- name: next_sweep_due
-- Milliseconds until the reaper next has something to do: the first lease, deadline or expiry. Null when nothing is set.
-- Indexes gen_durable_lease, gen_durable_deadline, gen_durable_expiry: one row each.
select date_part('epoch', least(
    (select min(g.lease_expires_at) from gendurable.gen_durable as g where g.lease_expires_at is not null),
    (select min(g.deadline_at) from gendurable.gen_durable as g where g.deadline_at is not null and g.finished_at is null),
    (
        select min(g.expires_at)
        from gendurable.gen_durable as g
        where g.expires_at is not null
            and g.started_at is null
            and g.finished_at is null
    )
) - now()) * 1000 as due_in_ms;

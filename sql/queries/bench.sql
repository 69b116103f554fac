-- name: bench_fill
-- Write $5 (int) due rows of machine $1 (text), first step $2 (text), spread over the queues $3 (text[]), all with the state $4
-- (JSON text). On the server's side, because what a bench measures is never its own preparation.
insert into gendurable.gen_durable (fsm, step, queue, state)
select $1::text, $2::text, ($3::text[])[1 + i % cardinality($3::text[])], $4::jsonb
from generate_series(0, $5::int - 1) as s (i);

-- name: bench_fill_ended
-- Write $1 (int) rows that ended long ago: the history behind which a claim must stay as cheap as without it.
insert into gendurable.gen_durable (fsm, step, status, result, started_at, finished_at)
select 'bench_history', 'run', 'done', '{}', now(), now()
from generate_series(1, $1::int);

-- name: bench_fill_executing
-- Write $1 (int) rows that another worker executes, with leases that outlast any bench.
insert into gendurable.gen_durable (fsm, step, status, locked_by, lease_expires_at, claim, started_at)
select 'bench_noop', 'run', 'executing', 'bench/elsewhere', now() + interval '1 day', 1, now()
from generate_series(1, $1::int);

-- name: bench_analyse
-- Take statistics now, while nothing runs: the ones that make everything that executes look like no row at all.
analyze gendurable.gen_durable;

-- name: bench_analyses
-- How often the instance table was analysed so far, by anybody: 0 proves that a run was on a table without statistics.
select coalesce(sum(s.analyze_count + s.autoanalyze_count), 0)::bigint as analyses
from pg_catalog.pg_stat_all_tables as s
where s.relid = 'gendurable.gen_durable'::regclass;

-- name: bench_progress
-- How many rows ended as done, and the seconds between the first start and the last end, by the database's clock.
-- Reads the whole table; asked once, after the run.
select
    count(*) filter (where g.status = 'done') as done,
    count(*) filter (where g.status in ('failed', 'cancelled')) as failed,
    date_part('epoch', max(g.finished_at) - min(g.started_at)) as seconds
from gendurable.gen_durable as g
where g.locked_by is distinct from 'bench/elsewhere'
    and g.fsm <> 'bench_history';

-- name: bench_latencies
-- Percentiles of the time from insert to done of the rows with an id above $1 (bigint), milliseconds, by the database's clock.
select
    count(*) as samples,
    percentile_cont(0.5) within group (order by date_part('epoch', g.finished_at - g.inserted_at)) * 1000 as p50_ms,
    percentile_cont(0.99) within group (order by date_part('epoch', g.finished_at - g.inserted_at)) * 1000 as p99_ms,
    max(date_part('epoch', g.finished_at - g.inserted_at)) * 1000 as max_ms
from gendurable.gen_durable as g
where g.id > $1::bigint
    and g.status = 'done';

-- name: bench_last_id
-- The highest id so far; 0 in an empty table.
select coalesce(max(g.id), 0) as id from gendurable.gen_durable as g;

-- name: bench_held_by
-- How many rows each worker executes now, by its boot id.
select g.locked_by as boot, count(*) as rows
from gendurable.gen_durable as g
where g.lease_expires_at is not null
group by g.locked_by;

-- name: bench_orphans_started_again
-- Of the rows that died with their worker (crashes above 0): how many, how many of them ended, and the seconds from $1
-- (timestamptz, the kill by the database's clock) until the first and the last of them ended elsewhere.
select
    count(*) as orphans,
    count(g.finished_at) as ended,
    date_part('epoch', min(g.finished_at) - $1::timestamptz) as first_s,
    date_part('epoch', max(g.finished_at) - $1::timestamptz) as last_s
from gendurable.gen_durable as g
where g.crashes > 0;

-- name: bench_now
-- The database's clock at this moment.
select clock_timestamp() as at;

-- name: bench_server
-- What a bench must say about its server: version, durability, and the process that answers (its parent is the postmaster).
select
    current_setting('server_version') as version,
    current_setting('fsync') as fsync,
    current_setting('synchronous_commit') as synchronous_commit,
    pg_backend_pid() as pid;

-- name: bench_transactions
-- Transactions this database has committed so far, single statements included; a backend reports its own within a second.
select s.xact_commit as transactions
from pg_catalog.pg_stat_database as s
where s.datname = current_database();

-- name: bench_no_autovacuum
-- Keep autovacuum from taking statistics while a large table is filled: what is measured on it is the plan made without.
alter table gendurable.gen_durable set (autovacuum_enabled = false);

-- name: bench_drop_schema
-- Remove the schema a bench made for itself, with everything in it.
do '
begin
    execute format(''drop schema if exists %I cascade'', split_part(''gendurable.gen_durable'', ''.'', 1));
end
';

-- name: migration_session
-- Settings of a session that migrates: no statement is cut short (an index on a large table takes its time), and only
-- qualified names are found, so that a file which forgot the schema fails instead of writing elsewhere.
select
    set_config('search_path', 'pg_catalog', false),
    set_config('statement_timeout', '0', false),
    set_config('lock_timeout', '0', false),
    set_config('idle_in_transaction_session_timeout', '0', false);

-- name: migration_try_lock
-- Try to become the one run of this schema; the session holds the lock until it ends.
-- Asked again and again instead of waited for: a waiting statement keeps a snapshot, and a concurrent index build of the
-- run that has the lock would wait for that snapshot, in a circle.
select pg_try_advisory_lock(hashtextextended('gendurable.migrations', 0)) as is_locked;

-- name: migration_begin
-- Start one file's transaction: bound its waits for locks, and prove that the session with the run's lock is still ours.
-- $1 longest wait for one lock, such as 10s, text
-- While a file waits for a table, every later statement on that table waits behind it, so the wait must be short.
-- Behind a transaction pooler another session would answer here, and not get the lock.
select
    set_config('lock_timeout', $1::text, true),
    pg_try_advisory_xact_lock(hashtextextended('gendurable.migrations', 0)) as is_locked;

-- name: migration_schema
-- Create the schema unless it is there; a schema made by an administrator needs no right to create one.
do '
declare
    wanted constant text := split_part(''gendurable.migrations'', ''.'', 1);
begin
    if not exists (select 1 from pg_catalog.pg_namespace where nspname = wanted) then
        execute format(''create schema %I'', wanted);
    end if;
end
';

-- name: migration_table
-- The record of what was applied. The checksum is the SHA-256 of the file; a worker older than oldest_worker must not run.
create table if not exists gendurable.migrations (
    number int primary key,
    name text not null,
    checksum text not null,
    oldest_worker text not null,
    phase text not null check (phase in ('expand', 'contract')),
    applied_at timestamptz not null default now(),
    applied_by text not null default current_user
);

-- name: migration_table_exists
-- Whether the record is there; reads the catalog, so that it needs no right on the schema.
select exists (
    select 1
    from pg_catalog.pg_class as c
    join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
    where n.nspname = split_part('gendurable.migrations', '.', 1)
        and c.relname = 'migrations'
        and c.relkind in ('r', 'p')
) as is_there;

-- name: migrations_applied
-- What was applied, in order.
select m.number, m.name, m.checksum, m.oldest_worker, m.phase, m.applied_at, m.applied_by
from gendurable.migrations as m
order by m.number;

-- name: migration_record
-- Note that a file was applied, in the file's transaction.
-- $1 number int   $2 name text   $3 checksum text   $4 oldest worker text   $5 phase text
insert into gendurable.migrations (number, name, checksum, oldest_worker, phase)
values ($1::int, $2::text, $3::text, $4::text, $5::text);

-- name: migration_forget
-- Note that a file was taken back, in the transaction of its down-script.
-- $1 number int
delete from gendurable.migrations
where number = $1::int;

-- name: migration_wait_lock
-- The lock of a run, waited for; only for the text that people run in psql.
select pg_advisory_lock(hashtextextended('gendurable.migrations', 0));

-- name: migration_unlock
-- Let the next run begin; only for the text that people run in psql, whose session goes on.
select pg_advisory_unlock(hashtextextended('gendurable.migrations', 0));

-- name: schema_objects
-- Everything in the schema $1 (text) that our statements rely on, each with a definition that can be compared.
-- Storage parameters are left out, because tuning them is the operator's right; NOT NULL is told by the columns, because
-- only newer servers keep constraints for it.
with home as (
    select n.oid
    from pg_catalog.pg_namespace as n
    where n.nspname = $1::text
),
relation as (
    select c.oid, c.relname::text as name, c.relkind
    from pg_catalog.pg_class as c
    join home as h on h.oid = c.relnamespace
    where c.relkind in ('r', 'p', 'v', 'm')
)
select 'table' as kind, r.name, r.relkind::text as definition, true as is_valid
from relation as r
union all
select
    'column',
    r.name || '.' || a.attname,
    concat_ws(
        ' ',
        format_type(a.atttypid, a.atttypmod),
        case when a.attnotnull then 'not null' end,
        case a.attidentity when 'a' then 'identity always' when 'd' then 'identity by default' end,
        case a.attgenerated when '' then 'default' when 's' then 'stored' else 'virtual' end
            || ' ' || pg_get_expr(d.adbin, d.adrelid)
    ),
    true
from relation as r
join pg_catalog.pg_attribute as a on a.attrelid = r.oid
left join pg_catalog.pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attnum > 0
    and not a.attisdropped
union all
select 'index', r.name || '.' || i.relname, pg_get_indexdef(i.oid), x.indisvalid and x.indisready
from relation as r
join pg_catalog.pg_index as x on x.indrelid = r.oid
join pg_catalog.pg_class as i on i.oid = x.indexrelid
union all
select 'constraint', r.name || '.' || c.conname, pg_get_constraintdef(c.oid), c.convalidated
from relation as r
join pg_catalog.pg_constraint as c on c.conrelid = r.oid
where c.contype in ('c', 'f', 'p', 'u', 'x')
union all
select 'type', t.typname::text, string_agg(e.enumlabel, ', ' order by e.enumsortorder), true
from home as h
join pg_catalog.pg_type as t on t.typnamespace = h.oid
join pg_catalog.pg_enum as e on e.enumtypid = t.oid
group by t.typname
union all
select 'function', p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')', pg_get_functiondef(p.oid), true
from home as h
join pg_catalog.pg_proc as p on p.pronamespace = h.oid
where p.prokind in ('f', 'p')
union all
select 'trigger', r.name || '.' || t.tgname, pg_get_triggerdef(t.oid), t.tgenabled in ('O', 'A')
from relation as r
join pg_catalog.pg_trigger as t on t.tgrelid = r.oid
where not t.tgisinternal
order by 1, 2;

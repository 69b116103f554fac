-- The function that inserts one job or machine from any language, from triggers and from psql.
-- oldest worker: 0.1.0
-- phase: expand
--
--     select id, inserted
--     from gendurable.insert_job('send_mail', '{"to": "a@example.org"}', correlation_key => 'mail:42');
--
-- The row is part of the caller's transaction: workers see it when that commits. Null stands for the default of a
-- parameter. What the Python client refuses is refused here, with SQLSTATE 22023 and a message that says what to do.
--
--     fsm               name of the job or machine
--     args              its arguments, or the state of a machine: a JSON object, 1 MiB as Postgres prints it, 64 levels
--     queue             where it waits; the queue that a Python class names is not known here
--     priority          -32768 to 32767, lower runs first
--     schedule_in       how long it waits first, at most 100 years; or
--     eligible_at       when it may run, within the years 1970 to 8999
--     correlation_key   at most one row has it, as far as scope says; at most 512 bytes
--     scope             live: until the row ends; ever: as long as the row exists; none: the key is a mere label
--     unique_for        keeps the key reserved this long, also after the end; instead of a scope
--     concurrency_key   rows with the same key run one at a time, or as its limit says; at most 512 bytes
--     step              the step that it starts with; run is the only step of a job
--     fsm_version       the version of the job or machine that runs it
--     metadata          a JSON object to look at, never passed to the step
--     tags              at most 32 labels to filter by
--     deadline_at       it must have ended by then
--     expires_at        it must have started by then
--     notify            wake a worker when the transaction commits, instead of when it polls next. Every commit that
--                       notifies waits for the one before it, in the whole server, so leave it out of busy transactions
--
-- Answers the id and whether a row was written. A key that is taken gives the id of its holder and false; if that is
-- not committed yet, the call waits for its transaction. Under repeatable read and serializable, a holder that this
-- transaction cannot see ends the call with SQLSTATE 40001: try the transaction again.

create function gendurable.insert_job(
    fsm text,
    args jsonb default '{}',
    queue text default 'default',
    priority int default 0,
    schedule_in interval default null,
    eligible_at timestamptz default null,
    correlation_key text default null,
    scope text default 'live',
    unique_for interval default null,
    concurrency_key text default null,
    step text default 'run',
    fsm_version int default 1,
    metadata jsonb default null,
    tags text[] default null,
    deadline_at timestamptz default null,
    expires_at timestamptz default null,
    notify boolean default false
)
returns table (id bigint, inserted boolean)
language plpgsql
volatile
as $function$
#variable_conflict use_column
declare
    tries_max constant int := 3;
    bytes_max constant int := 1048576;
    levels_max constant int := 64;
    -- The driver of the workers cannot read times outside these years [L26].
    earliest constant timestamptz := '1970-01-01 00:00:00+00';
    latest constant timestamptz := '9000-01-01 00:00:00+00';
    what text;
    given_text text;
    given_json jsonb;
    given_time timestamptz;
    given_duration interval;
    due timestamptz;
    scope_statuses gendurable.durable_status[];
    reserved_until timestamptz;
    row_id bigint;
begin
    args := coalesce(args, '{}');
    queue := coalesce(queue, 'default');
    priority := coalesce(priority, 0);
    scope := coalesce(scope, 'live');
    step := coalesce(step, 'run');
    fsm_version := coalesce(fsm_version, 1);

    for what, given_text in
        select n.what, n.given
        from (values ('fsm', fsm), ('queue', queue), ('step', step)) as n (what, given)
        union all
        select 'a tag', t.tag
        from unnest(tags) as t (tag)
    loop
        if given_text is null or given_text !~ '\S' then
            raise exception '% is empty; give it a name', what using errcode = '22023';
        end if;
        if char_length(given_text) > 128 then
            raise exception '% has % characters; at most 128 are allowed', what, char_length(given_text)
                using errcode = '22023';
        end if;
    end loop;
    if cardinality(tags) > 32 then
        raise exception 'there are % tags; at most 32 are allowed', cardinality(tags) using errcode = '22023';
    end if;
    if array_ndims(tags) > 1 then
        raise exception 'tags must be a plain list' using errcode = '22023';
    end if;

    for what, given_text in
        select k.what, k.given
        from (values ('correlation_key', correlation_key), ('concurrency_key', concurrency_key)) as k (what, given)
        where k.given is not null
    loop
        if given_text = '' then
            raise exception '% is empty; give a key or leave it out', what using errcode = '22023';
        end if;
        if octet_length(given_text) > 512 then
            raise exception '% takes % bytes; at most 512 are allowed', what, octet_length(given_text)
                using errcode = '22023';
        end if;
    end loop;

    for what, given_json in
        select j.what, j.given
        from (values ('args', args), ('metadata', metadata)) as j (what, given)
        where j.given is not null
    loop
        if jsonb_typeof(given_json) <> 'object' then
            raise exception '% must be a JSON object, not %', what, jsonb_typeof(given_json) using errcode = '22023';
        end if;
        if octet_length(given_json::text) > bytes_max then
            raise exception '% takes % bytes as JSON; at most % can be stored: keep a reference to it instead',
                what, octet_length(given_json::text), bytes_max
                using errcode = '22023';
        end if;
        -- Levels count from 0 here, so a container at level 64 is the 65th.
        if jsonb_path_exists(given_json, 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")') then
            raise exception '% is nested deeper than % levels', what, levels_max using errcode = '22023';
        end if;
        -- Postgres keeps numbers of any size, which no reader of ours could decode.
        if jsonb_path_exists(
            given_json,
            'strict $.** ? (@.type() == "number" && (@ > 1.7976931348623157e308 || @ < -1.7976931348623157e308))'
        ) then
            raise exception '% holds a number that is too large for a double; use a string', what
                using errcode = '22023';
        end if;
    end loop;

    if priority not between -32768 and 32767 then
        raise exception 'priority is %; give a number from -32768 to 32767', priority using errcode = '22023';
    end if;
    if fsm_version < 1 then
        raise exception 'fsm_version is %; use a whole number from 1', fsm_version using errcode = '22023';
    end if;

    for what, given_duration in
        select d.what, d.given
        from (values ('schedule_in', schedule_in), ('unique_for', unique_for)) as d (what, given)
        where d.given is not null
    loop
        if given_duration < interval '0' or given_duration > interval '36525 days' then
            raise exception '% is %; give a duration from 0 to 100 years', what, given_duration using errcode = '22023';
        end if;
    end loop;
    if unique_for = interval '0' then
        raise exception 'unique_for is 0, which reserves nothing; leave it out' using errcode = '22023';
    end if;
    for what, given_time in
        select t.what, t.given
        from (
            values ('eligible_at', eligible_at), ('deadline_at', deadline_at), ('expires_at', expires_at)
        ) as t (what, given)
        where t.given is not null
    loop
        if given_time < earliest or given_time >= latest then
            raise exception '% is %; give a time within the years 1970 to 8999', what, given_time
                using errcode = '22023';
        end if;
    end loop;
    if schedule_in is not null and eligible_at is not null then
        raise exception 'schedule_in and eligible_at exclude each other; give one' using errcode = '22023';
    end if;
    due := coalesce(eligible_at, now() + schedule_in, now());

    if scope not in ('live', 'ever', 'none') then
        raise exception 'scope is %; use live, ever or none', quote_literal(scope) using errcode = '22023';
    end if;
    if correlation_key is null and scope <> 'live' then
        raise exception 'scope says how long a correlation key is reserved; give one' using errcode = '22023';
    end if;
    if unique_for is not null and (correlation_key is null or scope = 'none') then
        raise exception 'unique_for reserves a correlation key; give one, with scope live or ever'
            using errcode = '22023';
    end if;
    reserved_until := now() + unique_for;
    scope_statuses := case
        when correlation_key is null then null
        when scope = 'none' then '{}'
        when scope = 'ever' or unique_for is not null then enum_range(null::gendurable.durable_status)
        else '{runnable,executing,awaiting_signal,awaiting_children}'
    end;

    for try in 1..tries_max loop
        insert into gendurable.gen_durable as g (
            fsm, fsm_version, step, state, queue, priority, eligible_at, concurrency_key, correlation_key,
            correlation_scope, unique_until, metadata, tags, deadline_at, expires_at
        )
        values (
            insert_job.fsm, insert_job.fsm_version, insert_job.step, args, insert_job.queue, insert_job.priority, due,
            insert_job.concurrency_key, insert_job.correlation_key, scope_statuses, reserved_until,
            insert_job.metadata, nullif(insert_job.tags, '{}'), insert_job.deadline_at, insert_job.expires_at
        )
        on conflict (correlation_guard) where correlation_guard is not null do nothing
        returning g.id into row_id;

        if found then
            if insert_job.notify then
                -- Until due by the wall clock: now() is when the transaction began, perhaps long ago.
                perform pg_notify(
                    split_part('gendurable.insert_job', '.', 1) || '_poke',
                    jsonb_build_object(
                        'q',
                        jsonb_build_object(
                            insert_job.queue,
                            greatest(0, ceil(extract(epoch from due - clock_timestamp()) * 1000))::bigint
                        )
                    )::text
                );
            end if;
            return query select row_id, true;
            return;
        end if;

        -- A reservation that is over, of a row that ended, is freed and the insert tried again. Skips a row that
        -- another transaction holds: it then still counts as the holder, which was true when we looked.
        with expired as materialized (
            select g.id
            from gendurable.gen_durable as g
            where g.correlation_guard = insert_job.correlation_key
                and g.unique_until <= now()
                and g.finished_at is not null
            for no key update skip locked
        )
        update gendurable.gen_durable as g
        set
            correlation_scope = '{runnable,executing,awaiting_signal,awaiting_children}',
            unique_until = null
        where g.id = any (array(select e.id from expired as e));
        continue when found;

        select g.id
        into row_id
        from gendurable.gen_durable as g
        where g.correlation_guard = insert_job.correlation_key;
        if found then
            return query select row_id, false;
            return;
        end if;
        -- The holder ended or was deleted since the insert met it, so the key is free: once more.
    end loop;
    raise exception 'the holder of correlation key % changed % times during the insert; try again',
        quote_literal(correlation_key), tries_max
        using errcode = '40001';
end
$function$;

comment on function gendurable.insert_job is
    'Inserts one job or machine; answers its id and true, or the id of the holder of its correlation key and false.';

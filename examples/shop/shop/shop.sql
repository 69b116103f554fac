-- The outside world's own memory; gendurable knows nothing of it.
create schema shop;

-- Every call of the gateway by order and step, counted before anything else happens.
create table shop.calls (
    order_id text not null,
    step text not null,
    calls int not null,
    primary key (order_id, step)
);

-- What really happened, once for each idempotency key '<order>:<step>'; a repeat only counts up. Amounts are minor units.
create table shop.ledger (
    key text primary key,
    order_id text not null,
    step text not null,
    tenant text not null,
    currency text not null,
    amount bigint not null,
    repeats int not null default 0,
    recorded_at timestamptz not null default now()
);

-- A witness for the demo, not something a shop needs: every write that leaves an instance in an end is noted here, so that
-- an instance that ended twice cannot hide behind its one row.
create table shop.endings (
    instance_id bigint not null,
    status text not null,
    noted_at timestamptz not null default clock_timestamp()
);

create function shop.note_ending() returns trigger
language plpgsql
as $$
begin
    insert into shop.endings (instance_id, status) values (new.id, new.status::text);
    return null;
end
$$;

create trigger shop_note_ending
after update on gendurable.gen_durable
for each row
when (new.finished_at is not null)
execute function shop.note_ending();

"""Random histories of the state table against a model of it that fits on a page.

Two workers claim, commit, forget what they hold (a crash), come back with it when it is too late, beat and reap, while
callers insert and cancel and the clock is set forward. After every step the table is what the model says.
"""

import asyncio
import itertools
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from gendurable.errors import StoreError
from gendurable.model.transition import Transition
from gendurable.store.instances import InstanceStore
from gendurable.store.sql import SqlCatalog
from tests.races.staging import LEASE_MS, TABLE, add_row, connected, shared_database, worker

CRASHES_MAX = 3
WORKERS = ("a", "b")
FUTURE = "=timestamptz '2100-01-01 00:00:00+00'"

workers = st.sampled_from(WORKERS)
keys = st.sampled_from([None, None, "k", "l"])
new_rows = st.tuples(keys, st.integers(0, 1), st.integers(0, 3), st.sampled_from([False, False, False, True]))
outcomes = st.sampled_from(["next", "retry", "snooze", "done", "stop", "cancel", "release", "move"])


@dataclass
class Row:
    """What the model knows about an instance; ``due`` orders the rows and is None for a future one."""

    id: int
    key: str | None
    priority: int
    due: tuple[int, int] | None
    status: str = "runnable"
    worker: str | None = None
    claim: int = 0
    attempt: int = 0
    crashes: int = 0
    snoozes: int = 0
    held: bool = False
    lapsed: bool = False
    cancel_reason: str | None = None

    @property
    def order(self):
        return (self.priority, self.due or (9, 9), self.id)

    @property
    def is_terminal(self):
        return self.status in {"done", "failed", "cancelled"}

    def let_go(self, status):
        self.worker, self.lapsed = None, False
        self.status = "cancelled" if self.cancel_reason is not None else status


class Model:
    """The state table in plain Python."""

    def __init__(self):
        self.rows = {}
        self.tick = itertools.count(1)

    def busy(self, key):
        return any(row.key == key and row.status == "executing" for row in self.rows.values())

    def claim(self, name, count):
        ready = [row for row in self.rows.values() if row.status == "runnable" and not row.held and row.due]
        picked = sorted(ready, key=lambda row: row.order)[:count]
        taken = {row.key for row in self.rows.values() if row.status == "executing"}
        claimed = []
        for row in picked:
            if row.key is not None and row.key in taken:
                row.held = True
                continue
            taken.add(row.key)
            claimed.append(row)
        for row in claimed:
            row.status, row.worker, row.lapsed, row.claim = "executing", name, False, row.claim + 1
        return [row.id for row in claimed]

    def owned(self, name, row_id, claim):
        row = self.rows[row_id]
        return row if (row.worker, row.claim) == (name, claim) else None

    def unhold(self, freed):
        for key in freed:
            held = [row for row in self.rows.values() if row.held and row.key == key]
            if held:
                min(held, key=lambda row: row.order).held = False

    def settle(self, row, outcome):
        row.let_go({"done": "done", "stop": "failed", "cancel": "cancelled"}.get(outcome, "runnable"))
        if outcome == "release":
            return
        if outcome == "cancel" and row.cancel_reason is None:
            row.cancel_reason = "its step"
        row.attempt = {"next": 0, "move": 0, "retry": row.attempt + 1}.get(outcome, row.attempt)
        row.crashes = {"next": 0, "move": 0}.get(outcome, row.crashes)
        row.snoozes = {"next": 0, "move": 0, "snooze": row.snoozes + 1}.get(outcome, row.snoozes)
        if row.status == "runnable" and outcome in {"next", "retry", "move"}:
            row.due = (1, next(self.tick))
        if row.status == "runnable" and outcome == "snooze":
            row.due = None
        if outcome == "move":
            row.key = None

    def reap(self):
        lapsed = [row for row in self.rows.values() if row.lapsed]
        for row in lapsed:
            row.crashes += 1
            row.claim += 1
            row.let_go("failed" if row.crashes >= CRASHES_MAX else "runnable")
            if row.status == "runnable" and row.crashes >= 2:
                row.due = None
        self.unhold(sorted({row.key for row in lapsed if row.key is not None}))
        return sorted(row.id for row in lapsed)

    def cancel(self, row):
        if row.is_terminal:
            return
        if row.status == "executing":
            row.cancel_reason = row.cancel_reason or "a caller"
            return
        turn = row.key if not row.held else None
        row.cancel_reason, row.claim, row.held = "a caller", row.claim + 1, False
        row.status = "cancelled"
        if turn is not None:
            self.unhold([turn])


def transition(row_id, claim, key, attempt, snoozes, outcome):
    """What a worker that has this claim sends for an outcome."""
    fields = {"id": row_id, "claim": claim, "outcome": outcome, "held_key": key, "attempt": attempt, "snoozes": snoozes}
    match outcome:
        case "next" | "move":
            fields |= {"status": "runnable", "step": "second", "attempt": 0, "snoozes": 0}
            fields |= {"is_key_changed": outcome == "move"}
        case "retry":
            fields |= {"status": "runnable", "attempt": attempt + 1, "error": "oops", "error_kind": "E"}
        case "snooze":
            fields |= {"status": "runnable", "snoozes": snoozes + 1, "delay_ms": 3_600_000}
        case "done":
            fields |= {"status": "done"}
        case "stop":
            fields |= {"status": "failed", "error": "gave up", "error_kind": "stop"}
        case "cancel":
            fields |= {"status": "cancelled", "cancel_reason": "its step"}
    return Transition(**fields)


class StateTable(RuleBasedStateMachine):
    """The rules; ``stage`` is set by the test and lives longer than an example."""

    stage = None

    def __init__(self):
        super().__init__()
        self.model = Model()
        self.hands = {name: [] for name in WORKERS}
        self.stage.do(self.stage.connection.execute(f"delete from {TABLE}"))

    @initialize(rows=st.lists(new_rows, min_size=4, max_size=8))
    def start_with(self, rows):
        for row in rows:
            self.insert(row)

    @rule(row=new_rows)
    def insert(self, row):
        key, priority, age, is_future = row
        eligible_at = FUTURE if is_future else f"=timestamptz '2020-01-01 00:00:00+00' - {age} * interval '1 s'"
        row_id = self.stage.do(
            add_row(self.stage.connection, concurrency_key=key, priority=priority, eligible_at=eligible_at)
        )
        self.model.rows[row_id] = Row(id=row_id, key=key, priority=priority, due=None if is_future else (0, -age))

    @rule(name=workers, count=st.integers(1, 5))
    def claim(self, name, count):
        expected = self.model.claim(name, count)
        claims = self.stage.do(self.stage.workers[name].claim(count))
        assert [claim.id for claim in claims] == expected
        self.hands[name] += claims

    @rule(name=workers, data=st.data(), chosen=st.lists(outcomes, min_size=2, max_size=4))
    def commit_several(self, name, data, chosen):
        self.commit(name, data, chosen)

    @rule(name=workers, data=st.data(), chosen=st.lists(outcomes, min_size=1, max_size=1))
    def commit(self, name, data, chosen):
        """Owned or long lost: a worker does not know."""
        hand = self.hands[name]
        if not hand:
            return
        places = data.draw(st.lists(st.integers(0, len(hand) - 1), min_size=1, max_size=len(chosen), unique=True))
        by_id = {hand[place].id: (hand[place], outcome) for place, outcome in zip(places, chosen, strict=False)}
        for one, outcome in by_id.values():
            hand.remove(one)
            assert outcome
        released = [one for one, outcome in by_id.values() if outcome == "release"]
        batch = [
            transition(one.id, one.claim, one.concurrency_key, one.attempt, one.snoozes, outcome)
            for one, outcome in sorted(by_id.values(), key=lambda pair: pair[0].id)
            if outcome != "release"
        ]
        store = self.stage.workers[name]
        if released:
            written = self.stage.do(store.claims.release_claims(released, delays_ms=[None] * len(released)))
            assert written == self.expect(name, [(one.id, one.claim, "release") for one in released])
        if batch:
            answer = self.stage.do(store.outcomes.commit(batch))
            expected = self.expect(name, [(one.id, one.claim, one.outcome) for one in batch])
            assert answer.statuses.keys() == expected
            assert self.stage.do(store.outcomes.still_owned(batch)) == set()

    def expect(self, name, entries):
        """Let the model write a batch: all rows first, then the keys they let go."""
        written, freed = set(), set()
        at = next(self.model.tick)
        for row_id, claim, outcome in entries:
            row = self.model.owned(name, row_id, claim)
            if row is None:
                continue
            key = row.key
            self.model.settle(row, outcome)
            if row.due is not None and row.due[0] == 1 and outcome in {"next", "retry", "move"}:
                row.due = (1, at)
            written.add(row_id)
            freed |= {key} - {None}
        self.model.unhold(sorted(freed))
        return written

    @rule(name=workers, comes_back=st.sampled_from([True, True, False]))
    def crash(self, name, comes_back):
        """The process is gone, or only asleep: then it comes back with claims that it has lost meanwhile."""
        self.stage.do(
            self.stage.connection.execute(
                f"update {TABLE} set lease_expires_at = now() - interval '1 s' where locked_by = $1", name
            )
        )
        for row in self.model.rows.values():
            row.lapsed = row.lapsed or row.worker == name
        if not comes_back:
            self.hands[name] = []

    @rule(name=workers, by=workers)
    def crash_and_reap(self, name, by):
        self.crash(name, comes_back=True)
        self.reap(by)

    @rule(name=workers)
    def beat(self, name):
        held = {claim.id: claim.claim for claim in self.hands[name]}
        if not held:
            return
        renewed = self.stage.do(self.stage.workers[name].leases.renew_leases(held, lease_ttl_ms=LEASE_MS))
        owned = [row for row_id, claim in held.items() if (row := self.model.owned(name, row_id, claim))]
        assert renewed == {row.id: row.cancel_reason is not None for row in owned}
        for row in owned:
            row.lapsed = False

    @rule(name=workers)
    def reap(self, name):
        reaped = self.stage.do(
            self.stage.workers[name].leases.reap_expired(rows_max=1000, crashes_max=CRASHES_MAX, patience_ms=0)
        )
        assert sorted(row.id for row in reaped) == self.model.reap()
        for row in reaped:
            spread_s = 2**row.crashes if (row.status, row.crashes >= 2) == ("runnable", True) else 0
            assert 0 <= row.due_in_s <= spread_s
        # The spread is random, and its time would come in the middle of a history: only the clock's rule lets it come.
        self.stage.do(
            self.stage.connection.execute(
                f"update {TABLE} set eligible_at = '2100-01-01 00:00:00+00'"
                " where id = any ($1::bigint[]) and status = 'runnable' and crashes >= 2",
                [row.id for row in reaped],
            )
        )

    @rule(data=st.data())
    def cancel(self, data):
        if self.model.rows:
            # Rather one that runs: that is where a cancel meets an outcome.
            running = [row.id for row in self.model.rows.values() if row.status == "executing"]
            row = self.model.rows[data.draw(st.sampled_from(running * 3 + sorted(self.model.rows)))]
            self.stage.do(self.stage.instances.cancel(instance_id=row.id, key=None, reason="a caller"))
            self.model.cancel(row)

    @rule()
    def set_clock_forward(self):
        self.stage.do(
            self.stage.connection.execute(
                f"update {TABLE} set eligible_at = now() where eligible_at > now() and status = 'runnable'"
            )
        )
        at = next(self.model.tick)
        for row in self.model.rows.values():
            if row.due is None and row.status == "runnable":
                row.due = (1, at)

    @rule()
    def reconcile(self):
        expected = sorted(
            {row.key for row in self.model.rows.values() if row.held and not self.model.busy(row.key)} - {None}
        )
        orphans = self.stage.do(self.stage.workers["a"].claims.orphaned_held_keys(keys_max=10))
        assert orphans == expected
        if orphans:
            self.stage.do(self.stage.workers["a"].claims.unhold_keys(orphans))
            self.model.unhold(orphans)

    @invariant()
    def the_table_is_what_the_model_says(self):
        seen = self.stage.do(
            self.stage.connection.fetch(
                f"""
                select
                    id, concurrency_key, status::text, locked_by, claim, attempt, crashes, snoozes, held,
                    coalesce(lease_expires_at < now(), false), cancel_reason, finished_at is not null
                from {TABLE}
                order by id
                """
            )
        )
        assert [tuple(row) for row in seen] == [
            (
                row.id, row.key, row.status, row.worker, row.claim, row.attempt, row.crashes, row.snoozes, row.held,
                row.lapsed, row.cancel_reason, row.is_terminal,
            )
            for row in sorted(self.model.rows.values(), key=lambda row: row.id)
        ]  # fmt: skip

    @invariant()
    def whoever_is_held_waits_for_somebody(self):
        """L14: a held row's key is executed, or another row of it has its turn."""
        for row in self.model.rows.values():
            if row.held:
                siblings = [other for other in self.model.rows.values() if other.key == row.key and not other.held]
                assert any(not other.is_terminal for other in siblings)


class Stage:
    """The database under all examples, with the loop that its connections belong to."""

    def __init__(self, runner, connection, workers_, instances):
        self.runner = runner
        self.connection = connection
        self.workers = workers_
        self.instances = instances

    def do(self, awaitable):
        async def wait():
            return await awaitable

        return self.runner.run(wait())


@pytest.fixture
def stage(postgres, template_database):
    with shared_database(postgres, template_database) as dsn, asyncio.Runner() as runner:
        exits = []

        async def enter(context):
            exits.append(context)
            return await context.__aenter__()

        (connection,) = runner.run(enter(connected(dsn, 1)))
        both = {name: runner.run(enter(worker(dsn, name))) for name in WORKERS}
        yield Stage(runner, connection, both, InstanceStore(both["a"].database))
        for context in reversed(exits):
            runner.run(context.__aexit__(None, None, None))


def run_histories(stage, *, examples, phases=tuple(Phase), is_random=True):
    StateTable.stage = stage
    run_state_machine_as_test(
        StateTable,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            database=None,
            phases=phases,
            derandomize=not is_random,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_any_history_leaves_the_table_as_the_model_says(stage):
    """Sections 3.1 and 3.2: fencing, keys, crashes and cancels in every mixture, not only those somebody thought of."""
    run_histories(stage, examples=100)


MUTATIONS = {
    "an outcome without the claim in its guard": ("commit_outcomes", "and g.claim = t.claim", ""),
    "a reap that leaves the claim as it was": ("reap_expired", "claim = g.claim + 1,", ""),
    "a crash that a new step inherits": (
        "commit_outcomes",
        "when mine.next_step is null then g.crashes else 0",
        "when true then g.crashes",
    ),
    "a first crash that makes the row wait": ("reap_expired", "when g.crashes = 0 or", "when"),
    "a cancel that an outcome overrides": (
        "commit_outcomes",
        "when owned.cancel_reason is not null then 'cancelled'",
        "",
    ),
    "a key given to two rows": ("claim_runnable", "where k.place > 1", "where k.place > 2"),
    "a key that nobody gives on": ("unhold_keys", "limit 1", "limit 0"),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_model_notices(stage, mutation):
    """That the test above can fail: each of these is a mistake that somebody could make."""
    name, wrong, right = MUTATIONS[mutation]
    for one in stage.workers.values():
        text = one.database.sql.text(name)
        assert wrong in text
        one.database.sql = SqlCatalog()
        one.database.sql._texts[name] = text.replace(wrong, right)

    with pytest.raises((AssertionError, StoreError)):
        run_histories(stage, examples=300, phases=[Phase.generate], is_random=False)

"""Versions of one machine side by side, and what each keeps of the other's state."""

import gendurable as gd
from tests.runtime.running import ids_of, running, soon, until, until_row


class OldState(gd.State):
    amount: int = 0


class NewState(gd.State):
    amount: int = 0
    currency: str = "EUR"


def old() -> type[gd.Machine]:
    class Old(gd.Machine[OldState], name="Pay", version=1):
        @gd.step
        async def start(self, ctx: gd.Context[OldState]) -> gd.Outcome:
            return gd.Next(self.end, state=ctx.state.replace(amount=ctx.state.amount + 1))

        @gd.step
        async def end(self, ctx: gd.Context[OldState]) -> gd.Outcome:
            return gd.Done({"version": ctx.version, "amount": ctx.state.amount})

    return Old


def new() -> type[gd.Machine]:
    class New(gd.Machine[NewState], name="Pay", version=2):
        @gd.step
        async def start(self, ctx: gd.Context[NewState]) -> gd.Outcome:
            return gd.Done({"version": ctx.version, "currency": ctx.state.currency})

    return New


async def test_rows_run_on_the_version_they_started_with(dsn):
    """A running order must not change its course in the middle because of a deploy."""
    one, two = old(), new()
    async with running(dsn, one, two) as engine:
        first = await engine.client.insert(one.with_state(amount=1))
        second = await engine.client.insert(two.with_state(currency="CHF"))
        assert await engine.client.result(first.id, timeout=10) == {"version": 1, "amount": 2}
        assert await engine.client.result(second.id, timeout=10) == {"version": 2, "currency": "CHF"}


async def test_during_a_deploy_each_process_runs_the_versions_it_has(dsn):
    """Old and new workers share the queue; neither runs nor spoils the other's rows."""
    one, two = old(), new()
    async with running(dsn, one) as before, running(dsn, two) as after:
        firsts = await after.client.insert_many([one.with_state(amount=n) for n in range(5)])
        seconds = await before.client.insert_many([two.with_state() for _ in range(5)])
        for n, answer in enumerate(firsts):
            assert await soon(before.client.result(answer.id)) == {"version": 1, "amount": n + 1}
        for answer in seconds:
            read = await soon(before.client.wait(answer.id))
            assert (read.result["version"], read.attempt) == (2, 0)


async def test_fields_that_a_version_does_not_know_are_kept(dsn, connection):
    """A newer process wrote them; an older one that runs the row in between must not drop them."""
    one = old()
    async with running(dsn, one) as engine:
        answer = await engine.client.insert(one.with_state(amount=1), delay=3600)
        await connection.execute(
            """
            update gendurable.gen_durable
            set state = state || '{"currency": "CHF", "more": {"a": [1, null]}}', eligible_at = now()
            """
        )
        engine.parts.hub.poke("default")
        await engine.client.result(answer.id, timeout=10)
        read = await engine.client.get(answer.id)

    assert read.state == {"amount": 2, "currency": "CHF", "more": {"a": [1, None]}}


async def test_a_plain_dict_state_is_replaced_as_a_whole(dsn):
    """It has no declared fields, so leaving one out means removing it."""

    class Loose(gd.Machine[dict]):
        @gd.step
        async def start(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            return gd.Next(self.end, state={"b": 2})

        @gd.step
        async def end(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            return gd.Done()

    async with running(dsn, Loose) as engine:
        answer = await engine.client.insert(Loose.with_state({"a": 1}))
        await engine.client.result(answer.id, timeout=10)
        assert (await engine.client.get(answer.id)).state == {"b": 2}


async def test_during_a_deploy_a_step_that_only_the_newer_code_has_is_left_to_it(dsn, connection):
    """L16, E27: the older code must neither fail the row nor ask its handler, which cannot know what the step means.

    Rows of the same machine at steps it does have, it goes on running.
    """
    handled: list[object] = []

    class Before(gd.Machine[dict], name="Order"):
        @gd.step
        async def price(self, ctx: gd.Context[dict]) -> gd.Outcome:
            return gd.Done({"by": "before", **ctx.state})

        def handle(self, error: Exception, _ctx: gd.Context[dict]) -> gd.Outcome:
            handled.append(error)
            return gd.Stop("the older code's idea")

    class After(gd.Machine[dict], name="Order"):
        @gd.step
        async def price(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            return gd.Next(self.check)

        @gd.step
        async def check(self, ctx: gd.Context[dict]) -> gd.Outcome:
            return gd.Done({"by": "after", **ctx.state})

    async with running(dsn, Before) as before:
        ids = ids_of(await before.client.insert_many([After.with_state({"n": n}) for n in range(5)], step="check"))
        await until(lambda: before.metrics.unresolved.total() >= 5)
        rows = [await until_row(connection, instance_id, status="runnable") for instance_id in ids]
        assert {(row["step"], row["attempt"], row["crashes"], row["errors"]) for row in rows} == {("check", 0, 0, None)}
        other = await before.client.insert(Before.with_state({"n": 7}))
        assert await soon(before.client.result(other.id)) == {"by": "before", "n": 7}
        # Or it could take them again and again, a second at a time.
        before.parts.pickers["default"].drain()
        async with running(dsn, After) as after:
            for n, instance_id in enumerate(ids):
                assert await soon(after.client.result(instance_id)) == {"by": "after", "n": n}

    assert handled == []


async def test_a_version_nobody_has_waits_without_spending_anything(dsn, connection):
    """It was rolled back; the row must be as it was when the version returns."""
    one, two = old(), new()
    async with running(dsn, one) as engine:
        answer = await engine.client.insert(two.with_state())
        await until(lambda: engine.metrics.unresolved.total() == 1)
        row = await until_row(connection, answer.id, status="runnable")
        assert (row["attempt"], row["crashes"], row["errors"], row["last_error"]) == (0, 0, None, None)
    async with running(dsn, two) as engine:
        assert (await soon(engine.client.result(answer.id)))["version"] == 2

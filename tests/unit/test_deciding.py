"""From an answer to the change of the row: every case without a database."""

import datetime as dt

import pytest

import gendurable as gd
from gendurable.errors import InvalidValueError, MissingOutcomeError, StateDecodeError, UnknownStepError
from gendurable.model.claim import Claim
from gendurable.runtime.deciding import (
    ERROR_CHARS_MAX,
    Policy,
    check_target,
    decide,
    default_outcome,
    error_text,
    outcome_of_answer,
    storable,
)

POLICY = Policy(max_attempts=3, max_snoozes=2, backoff_s=lambda attempt: 10.0 * (attempt + 1))


class WalkState(gd.State):
    n: int = 0


class Walk(gd.Machine[WalkState]):
    @gd.step
    async def start(self, _ctx: gd.Context[WalkState]) -> gd.Outcome:
        return gd.Done()

    @gd.step
    async def end(self, _ctx: gd.Context[WalkState]) -> gd.Outcome:
        return gd.Done()


@gd.job(max_attempts=1, backoff=lambda _attempt: 0.5)
async def job(_ctx: gd.Context) -> None:
    """Do nothing."""


def claim(**changes: object) -> Claim:
    fields: dict[str, object] = {
        "id": 7,
        "claim": 3,
        "machine": "Walk",
        "version": 1,
        "step": "start",
        "state": '{"n": 1, "unknown": {"kept": true}}',
        "attempt": 0,
        "crashes": 0,
        "snoozes": 0,
        "queue": "default",
        "priority": 0,
        "concurrency_key": None,
        "parent_id": None,
        "correlation_key": None,
        "metadata": None,
        "tags": None,
        "eligible_at": dt.datetime(2030, 1, 1, tzinfo=dt.UTC),
        "inserted_at": dt.datetime(2030, 1, 1, tzinfo=dt.UTC),
        "is_expired": False,
        "deadline_in_ms": None,
        "late_ms": 0.0,
        "claimed_at": 0.0,
    }
    return Claim(**(fields | changes))


def decided(outcome: gd.Outcome, *, error: Exception | None = None, **changes: object):
    return decide(outcome, claim(**changes), Walk.definition, POLICY, error=error)


def test_every_transition_carries_the_fence_and_the_key_it_frees():
    """Without the fence an old worker could write; without the key its next row would wait for the reconciler."""
    for outcome in (gd.Next("end"), gd.Retry(), gd.Snooze(1), gd.Done(), gd.Stop("x"), gd.Cancel()):
        transition = decided(outcome, concurrency_key="k")
        assert (transition.id, transition.claim, transition.held_key) == (7, 3, "k")


def test_next_resets_what_belongs_to_a_step():
    """Attempts and snoozes are counted for one step."""
    transition = decided(gd.Next("end"), attempt=2, snoozes=5)

    assert (transition.status, transition.step, transition.attempt, transition.snoozes) == ("runnable", "end", 0, 0)
    assert (transition.delay_ms, transition.state, transition.is_key_changed) == (0, None, False)


def test_next_carries_its_options():
    """Each has a column of its own."""
    at = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)

    assert decided(gd.Next("end", delay=1.5)).delay_ms == 1500
    assert decided(gd.Next("end", at=at)).at == at
    changed = decided(gd.Next("end", concurrency_key="k"))
    released = decided(gd.Next("end", concurrency_key=None))
    assert (changed.is_key_changed, changed.concurrency_key) == (True, "k")
    assert (released.is_key_changed, released.concurrency_key) == (True, None)


def test_a_new_state_keeps_the_stored_fields_this_version_does_not_know():
    """A newer version wrote them."""
    assert decided(gd.Next("end", state=WalkState(n=2))).state == '{"unknown":{"kept":true},"n":2}'


def test_retry_spends_an_attempt_and_waits_for_the_backoff():
    """E30: the machine's, else the engine's; an explicit delay stands."""
    assert (decided(gd.Retry(), attempt=1).attempt, decided(gd.Retry(), attempt=1).delay_ms) == (2, 20_000)
    assert decided(gd.Retry(delay=0)).delay_ms == 0
    assert decide(gd.Retry(), claim(), job.definition, POLICY).delay_ms == 500


def test_snooze_spends_none_and_is_capped():
    """Later is no failure, but for ever is."""
    assert (decided(gd.Snooze(2), attempt=1).attempt, decided(gd.Snooze(2)).snoozes) == (1, 1)
    capped = decided(gd.Snooze(2), snoozes=2)
    assert (capped.status, "max_snoozes is 2" in capped.error) == ("failed", True)


def test_terminal_outcomes():
    """Done with a result or none, failed with its reason, cancelled with its own."""
    assert (decided(gd.Done()).status, decided(gd.Done()).result) == ("done", None)
    assert decided(gd.Done({"a": 1})).result == '{"a":1}'
    assert (decided(gd.Stop("why")).status, decided(gd.Stop("why")).error) == ("failed", "why")
    assert (decided(gd.Cancel("why")).status, decided(gd.Cancel("why")).cancel_reason) == ("cancelled", "why")


def test_a_value_that_cannot_be_stored_fails_the_row_with_its_place():
    """E26: no retry can help."""
    for outcome, place in ((gd.Done({"a": [object()]}), "result.a[0]"), (gd.Next("end", state=7), "state")):
        transition = decided(outcome, attempt=1, concurrency_key="k")
        assert (transition.status, transition.attempt, transition.held_key) == ("failed", 1, "k")
        assert place in transition.error


@pytest.mark.parametrize("backoff_s", [float("nan"), float("inf"), 1e300])
def test_a_backoff_beyond_reason_fails_the_row(backoff_s):
    """The database could not hold the time."""
    policy = Policy(max_attempts=3, max_snoozes=1, backoff_s=lambda _attempt: backoff_s)
    transition = decide(gd.Retry(), claim(), Walk.definition, policy)

    assert (transition.status, "backoff" in transition.error) == ("failed", True)


def test_the_error_that_led_to_an_outcome_is_kept_with_the_row():
    """E25: also when the outcome is a retry or a success of the handler."""
    transition = decided(gd.Retry(), error=ValueError("bad luck"))

    assert (transition.error_kind, transition.error) == ("ValueError", "ValueError: bad luck")
    assert decided(gd.Done(), error=ValueError("x")).error == "ValueError: x"
    assert decided(gd.Stop("own words"), error=ValueError("x")).error == "own words"


@pytest.mark.parametrize(("attempt", "kind"), [(0, gd.Retry), (1, gd.Retry), (2, gd.Stop), (9, gd.Stop)])
def test_the_default_policy_retries_while_attempts_are_left(attempt, kind):
    """E29: max_attempts 3 are three runs: attempts 0, 1 and 2."""
    assert isinstance(default_outcome(ValueError(), claim(attempt=attempt), Walk.definition, POLICY), kind)
    assert isinstance(default_outcome(ValueError(), claim(), job.definition, POLICY), gd.Stop)


@pytest.mark.parametrize("error", [StateDecodeError("does not fit"), UnknownStepError("Walk", "gone", ["start"])])
def test_what_no_retry_can_mend_ends_at_once(error):
    """E27: the same in every attempt, so it never loops; the reason says what somebody has to mend."""
    outcome = default_outcome(error, claim(attempt=0), Walk.definition, POLICY)

    assert isinstance(outcome, gd.Stop)
    assert str(error) in outcome.reason


def test_answers_are_outcomes_for_machines_and_results_for_jobs():
    """A step that forgets its return is told so; a job's None is its result."""
    outcome = gd.Next("end")
    assert outcome_of_answer(outcome, Walk.definition, claim()) is outcome
    assert outcome_of_answer({"a": 1}, job.definition, claim()).result == {"a": 1}
    with pytest.raises(MissingOutcomeError, match="forget `return`"):
        outcome_of_answer(None, Walk.definition, claim())
    with pytest.raises(InvalidValueError):
        outcome_of_answer(7, job.definition, claim())


def test_a_target_must_exist():
    """E28: found where it is returned."""
    check_target(gd.Next("end"), Walk.definition)
    with pytest.raises(UnknownStepError) as refused:
        check_target(gd.Next("gone"), Walk.definition)
    assert (refused.value.machine, refused.value.step) == ("Walk", "gone")


def test_error_texts_can_always_be_stored():
    """The text of an error is the least trustworthy of all values."""
    text = error_text(ValueError("a\0b\ud800" + "x" * 20_000))

    assert text.startswith("ValueError: ab?")
    assert len(text) == ERROR_CHARS_MAX
    assert storable("\0") == ""

"""The slots of one queue: claimed rows wait here, run in tasks of their own, and leave as outcomes for the flusher."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from gendurable.logs import get_logger
from gendurable.machine.registry import MiddlewareFunction, Registry
from gendurable.metrics import Metrics
from gendurable.model.claim import Claim
from gendurable.model.transition import Transition, Verdict
from gendurable.runtime.deciding import Policy
from gendurable.runtime.holdings import Holdings
from gendurable.runtime.left import Left
from gendurable.runtime.picking import Pace
from gendurable.runtime.stepping import Interruption, Run, StepCaller, knows_step
from gendurable.runtime.suspects import SUSPECT_CRASHES, SuspectPlace

log = get_logger(__name__)


class Settle(Protocol):
    """Told what became of an outcome, once."""

    def __call__(self, transition: Transition, verdict: Verdict, due_in_s: float | None) -> None:
        """``due_in_s`` is set when the row goes on: seconds until it may run."""
        ...


class OutcomeSink(Protocol):
    """Where outcomes go to become durable."""

    def put(self, transition: Transition, settle: Settle) -> None:
        """Queue an outcome; ``settle`` is called once it is durable or refused."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutorOptions:
    """How one queue runs in this process."""

    queue: str
    concurrency: int
    sync_threads: int
    timeout_s: float


class Executor:
    """Runs the claimed rows of one queue, at most ``concurrency`` at once."""

    def __init__(
        self,
        options: ExecutorOptions,
        *,
        registry: Registry,
        policy: Policy,
        holdings: Holdings,
        suspects: SuspectPlace,
        sink: OutcomeSink,
        metrics: Metrics,
        may_start: Callable[[], bool],
        on_release: Callable[[Claim], None],
        on_continue: Callable[[str, float], None],
        on_ended: Callable[[int], None],
    ) -> None:
        """Nothing runs until :meth:`start`.

        Args:
            options: The queue and its limits.
            registry: Where machines are found.
            policy: Defaults for retries.
            holdings: Every claim in hand, for the heartbeat.
            suspects: The place that all queues of this process share for rows which may kill it.
            sink: The flusher of this queue.
            metrics: What is counted.
            may_start: False while this process has missed its heartbeats for a lease: it was frozen, its rows may be
                another's by now, and starting them would only repeat work.
            on_release: Takes a row that was cut off and must be handed back.
            on_continue: Told the queue and the seconds until due when a row goes on.
            on_ended: Told an instance whose end is durable.
        """
        self.options = options
        self.name = f"executor:{options.queue}"
        self._registry = registry
        self._policy = policy
        self._holdings = holdings
        self._suspects = suspects
        self._sink = sink
        self._metrics = metrics
        self._may_start = may_start
        self._on_release = on_release
        self._on_continue = on_continue
        self._on_ended = on_ended
        self._on_free: Callable[[], None] = lambda: None
        self._waiting: deque[Claim] = deque()
        self._suspect: Claim | None = None
        self._runs: set[Run] = set()
        self._lingering_threads = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at_s = float("inf")
        self._idle = asyncio.Event()
        self._idle.set()
        self._threads = ThreadPoolExecutor(options.sync_threads, thread_name_prefix=f"gendurable-{options.queue}")
        self._caller: StepCaller | None = None
        self._pace = Pace()
        self.finished_total = 0
        self.unflushed = 0

    def start(self, *, resources: Mapping[str, Any], middleware: Sequence[MiddlewareFunction]) -> None:
        """Take what steps need; call before the first :meth:`submit`."""
        self._caller = StepCaller(
            policy=self._policy,
            resources=resources,
            middleware=middleware,
            threads=self._threads,
            on_thread=self._count_lingering,
            on_deadline=self._arm,
        )

    def close(self) -> None:
        """Let go of the threads; one that still runs user code is left to end with the process."""
        for run in self._runs:
            # What the end of the loop cancels now is nobody's error, and no handler is to be asked about it.
            run.interruption = Interruption.CUT
        if self._alarm is not None:
            self._alarm.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def on_free(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever a slot becomes free."""
        self._on_free = wake

    @property
    def pace(self) -> Pace:
        """How fast this queue finishes steps."""
        return self._pace

    @property
    def running(self) -> int:
        """Slots taken: running steps, and threads that outlived theirs."""
        return len(self._runs) + self._lingering_threads

    @property
    def waiting(self) -> int:
        """Claimed rows that wait for a slot."""
        return len(self._waiting) + (self._suspect is not None)

    @property
    def lingering_threads(self) -> int:
        """Threads that still run although their step's outcome was decided."""
        return self._lingering_threads

    def submit(self, claims: Sequence[Claim]) -> Left:
        """Run these rows as slots allow, except a suspect, which :meth:`start_suspect` starts.

        Returns:
            Those that must be handed back. Nothing of them has run.
        """
        left, suspects = Left(), []
        for claim in claims:
            definition = self._registry.find(claim.machine, claim.version)
            if definition is None:
                left.unknown_machines.append(claim)
            elif not knows_step(definition, claim.step):
                left.unknown_steps.append(claim)
            elif claim.crashes >= SUSPECT_CRASHES:
                suspects.append(claim)
            else:
                self._waiting.append(claim)
        if suspects:
            chosen, refused = self._suspects.share_out(suspects, time.monotonic())
            left.suspects.extend(refused)
            if chosen is not None:
                self._suspect = chosen
        self._fill_slots()
        return left

    def start_suspect(self) -> bool:
        """Run the suspect of the last claim, if there was one; call when all that was left is handed back.

        Were it started before, a crash would count for the others as well: they are this process's until then.
        """
        if self._suspect is None:
            return False
        self._waiting.appendleft(self._suspect)
        self._suspect = None
        self._fill_slots()
        return True

    def take_back_waiting(self) -> list[Claim]:
        """Give up every row that has not started, for handing back."""
        if self._suspect is not None:
            self._waiting.appendleft(self._suspect)
            self._suspect = None
        taken = list(self._waiting)
        self._waiting.clear()
        for claim in taken:
            self._suspects.leave(claim)
        return taken

    def cancel(self, instance_ids: Sequence[int]) -> None:
        """Interrupt the steps of instances somebody cancelled."""
        asked = set(instance_ids)
        for run in list(self._runs):
            if run.claim.id in asked:
                run.interrupt(Interruption.CANCELLED)

    def cut(self) -> int:
        """Interrupt every running step, for the end of a drain; their rows are handed back. Returns how many."""
        runs = list(self._runs)
        for run in runs:
            run.interrupt(Interruption.CUT)
        return len(runs)

    async def wait_idle(self) -> None:
        """Return when no step runs and none waits."""
        while self._runs or self._waiting:
            self._idle.clear()
            await self._idle.wait()

    def after_beat(self, lost: Mapping[int, int]) -> None:
        """Give up waiting claims (instance id to fence) that are lost, and start what a missed beat held back.

        The fence matters: this worker may have flushed the row and claimed it again while the beat was under way, and
        the new claim is not lost.
        """
        gone = [claim for claim in self._waiting if lost.get(claim.id) == claim.claim]
        if gone:
            for claim in gone:
                self._waiting.remove(claim)
                self._suspects.leave(claim)
                self._holdings.remove(claim.id, claim.claim)
            log.warning("waiting rows went to another worker", queue=self.options.queue, rows=len(gone))
        self._slot_freed()

    def _fill_slots(self) -> None:
        if self._waiting and not self._may_start():
            return
        free = self.options.concurrency - self.running
        while free > 0 and self._waiting:
            claim = self._waiting.popleft()
            free -= 1
            self._start(claim)

    def _start(self, claim: Claim) -> None:
        definition = self._registry.find(claim.machine, claim.version)
        assert definition is not None
        now_s = time.monotonic()
        run = Run(claim, definition, timeout_s=self.options.timeout_s, now_s=now_s)
        self._metrics.start_delay.observe(claim.late_ms / 1000 + now_s - claim.claimed_at, (self.options.queue,))
        self._runs.add(run)
        run.task = asyncio.get_running_loop().create_task(self._run(run))
        self._arm(run.deadline_s)

    async def _run(self, run: Run) -> None:
        claim = run.claim
        assert self._caller is not None
        try:
            transition = await self._caller.run(run)
        finally:
            self._runs.discard(run)
            self.finished_total += 1
            self._pace.finished()
        metrics = self._metrics
        metrics.step_duration.observe(time.monotonic() - run.started_s, (claim.machine, claim.step))
        outcome = "release" if transition is None else transition.outcome
        metrics.steps_executed.inc((claim.machine, claim.step, outcome))
        if transition is None:
            self._suspects.leave(claim)
            self._on_release(claim)
        else:
            self.unflushed += 1
            self._sink.put(transition, self._settled(claim))
        self._slot_freed()

    def _settled(self, claim: Claim) -> Settle:
        def settle(transition: Transition, verdict: Verdict, due_in_s: float | None) -> None:
            self.unflushed -= 1
            self._holdings.remove(claim.id, claim.claim)
            # Not before its outcome is durable: until then the next one's crash would count for it as well.
            self._suspects.leave(claim)
            if verdict is Verdict.COMMITTED:
                self._metrics.steps_committed.inc((claim.machine, claim.step, transition.outcome))
                if due_in_s is not None:
                    self._on_continue(claim.queue, due_in_s)
                else:
                    self._on_ended(claim.id)
            elif verdict is Verdict.STALE:
                self._metrics.outcomes_stale.inc((claim.machine, claim.step))
                log.warning(
                    "outcome refused, the row went to another worker",
                    instance_id=claim.id,
                    machine=claim.machine,
                    step=claim.step,
                    outcome=transition.outcome,
                )
            self._on_free()

        return settle

    def _slot_freed(self) -> None:
        self._fill_slots()
        if not self._runs and not self._waiting:
            self._idle.set()
        self._on_free()

    def _count_lingering(self, change: int) -> None:
        self._lingering_threads += change
        if change < 0:
            self._slot_freed()

    def _arm(self, deadline_s: float) -> None:
        """Keep one timer at the earliest deadline; with equal time limits it is set once, not for every step."""
        if self._alarm_at_s <= deadline_s:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at_s = deadline_s
        self._alarm = asyncio.get_running_loop().call_later(max(0.0, deadline_s - time.monotonic()), self._ring)

    def _ring(self) -> None:
        """Interrupt the steps that have run too long and set the timer for the next."""
        self._alarm = None
        self._alarm_at_s = float("inf")
        now_s = time.monotonic()
        next_s: float | None = None
        for run in self._runs.copy():
            if run.deadline_s <= now_s:
                run.interrupt(Interruption.TIMEOUT)
            elif next_s is None or run.deadline_s < next_s:
                next_s = run.deadline_s
        if next_s is not None:
            self._arm(next_s)

"""Which process is proven dead: a wrong yes takes rows from somebody alive, a wrong no only costs a lease [L17]."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gendurable.runtime.identity import pid_started, proves_dead

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux says when a process started")


@pytest.fixture
def child():
    """A process that waits for its input to end."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    process.stdin.close()


def test_a_process_that_runs_is_not_dead(child):
    """Anything else would take rows from a worker that works."""
    started = pid_started(child.pid)

    assert started is not None
    assert not proves_dead(child.pid, started)
    assert not proves_dead(os.getpid(), pid_started(os.getpid()))


def test_a_process_that_is_gone_is_dead(child):
    """After a restart its rows need not wait for their leases."""
    started = pid_started(child.pid)
    child.kill()
    child.wait()

    assert proves_dead(child.pid, started)


def test_a_process_nobody_has_waited_for_is_dead(child):
    """In a container whose first process does not look after orphans, a killed worker stays in the table for ever."""
    started = pid_started(child.pid)
    child.kill()
    deadline_s = time.monotonic() + 10
    while not proves_dead(child.pid, started):
        assert time.monotonic() < deadline_s, "a killed process is not known to be dead"
        time.sleep(0.005)

    assert Path(f"/proc/{child.pid}").exists()


def test_a_pid_that_another_process_has_now_proves_the_first_one_dead(child):
    """Pids are used again, the sooner the fuller the machine."""
    assert proves_dead(child.pid, "1")


def test_a_start_time_that_was_never_known_proves_nothing(child):
    """Outside Linux the lease decides."""
    assert not proves_dead(child.pid, "unknown")

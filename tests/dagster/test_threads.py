"""Ops side by side: as Dagster's own executors run them, but for when they begin."""

# No `from __future__ import annotations`: Dagster reads the annotations of an op as objects.

import os
import signal
from collections.abc import Iterator
from threading import Barrier, BrokenBarrierError, Event, Timer, current_thread

import dagster as dg
import pytest

from assets.threads import check_terminated, threads

TOGETHER = Barrier(2, timeout=30)
"""Two ops pass it only if both run."""
SEEN: list[str] = []
ONCE = Event()
SLOT = "one-slot"


@pytest.fixture(autouse=True)
def _anew() -> None:
    TOGETHER.reset()
    SEEN.clear()
    ONCE.clear()


@pytest.fixture
def stored(tmp_path: object) -> Iterator[dg.DagsterInstance]:
    """Dagster's storage on disk, as runs have it that the daemon launches."""
    with dg.DagsterInstance.local_temp(str(tmp_path), {"telemetry": {"enabled": False}}) as instance:
        yield instance


def waiting(name: str, pool: str | None = None) -> dg.OpDefinition:
    """An op that ends when another one is with it."""

    @dg.op(name=name, out=dg.Out(dg.Nothing), pool=pool)
    def wait() -> None:
        TOGETHER.wait()
        SEEN.append(name)

    return wait


def then(name: str, error: Exception | None = None) -> dg.OpDefinition:
    """An op that comes after others, and may fail once."""

    @dg.op(name=name, ins={"after": dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing))
    def follow() -> None:
        SEEN.append(name)
        if error is not None and not ONCE.is_set():
            ONCE.set()
            raise error

    return follow


@dg.success_hook
def told(context: dg.HookContext) -> None:
    SEEN.append(f"hook of {context.op.name}")


@dg.job(executor_def=threads(2))
def two_and_one_after() -> None:
    then("last")([waiting("left")(), waiting("right")()])


@dg.job(executor_def=threads(2))
def one_fails_and_its_own_are_skipped() -> None:
    then("after_torn")(then("torn", ValueError("torn"))(waiting("left")()))
    then("after_sound")(then("sound")(waiting("right")()))


@dg.job(executor_def=threads(2), hooks={told})
def one_is_tried_again() -> None:
    then("last")([then("again", dg.RetryRequested(1, 0.1))(waiting("left")()), waiting("right")()])


@dg.job(executor_def=threads(2))
def both_need_a_pool() -> None:
    waiting("left", SLOT)()
    waiting("right", SLOT)()


def terminated(context: dg.OpExecutionContext) -> None:
    """Asks for the end of the run, as Dagster does, and goes on."""
    context.instance.report_run_canceling(context.run)
    os.kill(os.getpid(), signal.SIGINT)
    ONCE.wait(0.5)
    SEEN.append(current_thread().name)


@dg.op(pool=SLOT)
def terminates(context: dg.OpExecutionContext) -> None:
    """Asks for the end of its run, and goes on to its own end."""
    terminated(context)


@dg.job(executor_def=threads(1))
def is_terminated() -> None:
    terminates.alias("first")()
    terminates.alias("second")()


@dg.op(ins={"after": dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing), pool=SLOT)
def held() -> None:
    """An op whose slot another run has."""
    SEEN.append("held")


@dg.op(out=dg.Out(dg.Nothing))
def terminates_soon(context: dg.OpExecutionContext) -> None:
    """Asks for the end of the run when the next op waits for its slot."""
    context.instance.report_run_canceling(context.run)
    Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()


@dg.job(executor_def=threads(1))
def waits_for_a_slot_and_is_terminated() -> None:
    held(terminates_soon())


@dg.op(out=dg.Out(dg.Nothing), pool=SLOT)
def commits_twice(context: dg.OpExecutionContext) -> None:
    """Goes on after it has asked for the end of its run, until it looks."""
    terminated(context)
    check_terminated()
    SEEN.append("committed twice")


@dg.job(executor_def=threads(1))
def is_terminated_between_two_commits() -> None:
    commits_twice()


def run(job: dg.JobDefinition, instance: dg.DagsterInstance) -> dg.JobExecutionResult:
    """A run with the job's own executor: `execute_in_process` would bring another one."""
    found: dg.JobExecutionResult = dg.execute_job(
        dg.reconstructable(globals()[job.name]), instance, raise_on_error=False
    )
    return found


def ended(result: dg.JobExecutionResult, kind: str) -> set[str]:
    return {str(event.step_key) for event in result.all_events if event.event_type_value == kind}


def test_ops_that_are_ready_run_at_once_and_the_next_level_after_them(stored: dg.DagsterInstance) -> None:
    with run(two_and_one_after, stored) as result:
        assert result.success
        assert SEEN[-1] == "last"
        assert ended(result, "STEP_SUCCESS") == {"left", "right", "last"}
        assert len(stored.all_logs(result.run_id, of_type=dg.DagsterEventType.STEP_SUCCESS)) == 3


def test_what_follows_a_failed_op_is_not_run_and_the_others_are(stored: dg.DagsterInstance) -> None:
    with run(one_fails_and_its_own_are_skipped, stored) as result:
        assert not result.success
        assert ended(result, "STEP_FAILURE") == {"torn"}
        assert ended(result, "STEP_SUCCESS") == {"left", "right", "sound", "after_sound"}
        assert "after_torn" not in SEEN


def test_an_op_is_tried_again_and_hooks_are_called(stored: dg.DagsterInstance) -> None:
    with run(one_is_tried_again, stored) as result:
        assert result.success
        assert ended(result, "STEP_RESTARTED") == {"again"}
        assert SEEN.count("again") == 2
        assert "hook of last" in SEEN


def test_a_pool_of_one_slot_lets_one_op_run_at_a_time(
    stored: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.event_log_storage.set_concurrency_slots(SLOT, 1)
    monkeypatch.setattr(TOGETHER, "_timeout", 0.5)
    with run(both_need_a_pool, stored) as result:
        assert not result.success, "one waits for the other, which waits for the slot"
        [failed, *_] = result.filter_events(lambda event: event.is_step_failure)
        assert BrokenBarrierError.__name__ in str(failed.step_failure_data.error)


@pytest.mark.parametrize(
    ("job", "seen"),
    [(is_terminated, 1), (waits_for_a_slot_and_is_terminated, 0), (is_terminated_between_two_commits, 1)],
    ids=lambda one: getattr(one, "name", None),
)
def test_a_terminated_run_ends_with_its_running_op_and_keeps_no_slot(
    stored: dg.DagsterInstance, job: dg.JobDefinition, seen: int
) -> None:
    stored.event_log_storage.set_concurrency_slots(SLOT, 1)
    another = "another run"
    if job is waits_for_a_slot_and_is_terminated:
        assert stored.event_log_storage.claim_concurrency_slot(SLOT, another, "op").is_claimed
    result = run(job, stored)
    assert len(SEEN) == seen
    status = stored.get_run_by_id(result.run_id)
    assert status is not None
    assert status.status is dg.DagsterRunStatus.CANCELED
    slots = stored.event_log_storage.get_concurrency_info(SLOT).claimed_slots
    assert {slot.run_id for slot in slots} <= {another}

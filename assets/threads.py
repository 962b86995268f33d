"""An executor of Dagster that runs the independent ops of a job side by side, in threads of the run's process.

An op of a tick sends a few requests to the engine, and waits. Of Dagster's own executors one runs an op at a time, and
the others start a process for each op, which takes longer than a step. This one runs what is ready, level by level, as
`spark.engine.tick` does: all landings, then all tables that read these alone, and so on. So no table steps while a
topic of the run lands.

Dagster has no public interface for executors that run ops in their own process. The private modules below are those
that its own executor uses; `pyproject.toml` holds Dagster to the minor version that the tests of this executor ran on.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import ContextVar
from functools import partial
from queue import SimpleQueue
from threading import Event
from typing import TYPE_CHECKING

import dagster as dg
from dagster._core.events import EngineEventData
from dagster._core.execution.api import ExecuteRunWithPlanIterable
from dagster._core.execution.compute_logs import create_compute_log_file_key
from dagster._core.execution.context_creation_job import PlanExecutionContextManager
from dagster._core.execution.plan.execute_plan import _trigger_hook, dagster_event_sequence_for_step
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext
from dagster._core.execution.retries import RetryMode
from dagster._core.execution.step_dependency_config import StepDependencyConfig
from dagster._utils.interrupts import raise_interrupts_as

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dagster._core.execution.context.system import (
        PlanExecutionContext,
        PlanOrchestrationContext,
        StepExecutionContext,
    )
    from dagster._core.execution.plan.active import ActiveExecution
    from dagster._core.execution.plan.plan import ExecutionPlan
    from dagster._core.execution.plan.step import ExecutionStep


PAUSE = 0.1  # seconds between two looks at a pool: Dagster's own interval is 0 while an op waits for a slot

_TERMINATED: ContextVar[Event | None] = ContextVar("terminated", default=None)
"""In the thread of an op, set when its run was terminated."""


def threads(width: int) -> dg.ExecutorDefinition:
    """Return an executor that runs at most `width` ops at a time.

    A run that is terminated begins no further level. It ends when the running ops have ended; an op that commits
    several times ends at the next call of `check_terminated`.
    """

    @dg.executor(name="threads")
    def executor(_context: dg.InitExecutorContext) -> Threads:
        return Threads(width)

    return executor


def check_terminated() -> None:
    """Raise DagsterExecutionInterruptedError in an op whose run was terminated."""
    terminated = _TERMINATED.get()
    if terminated is not None and terminated.is_set():
        raise dg.DagsterExecutionInterruptedError


class Threads(dg.Executor):
    """Runs ops in threads of this process."""

    def __init__(self, width: int) -> None:
        self.width = width

    @property
    def retries(self) -> RetryMode:
        """Ops are retried in the same run."""
        return RetryMode.ENABLED

    @property
    def step_dependency_config(self) -> StepDependencyConfig:
        """An op starts when all that it depends on has succeeded."""
        return StepDependencyConfig.default()

    def execute(
        self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan
    ) -> Iterator[dg.DagsterEvent]:
        """Run the ops of a plan; yield what happens."""
        yield dg.DagsterEvent.engine_event(
            plan_context,
            f"Running up to {self.width} ops side by side (pid: {os.getpid()})",
            EngineEventData.in_process(os.getpid(), execution_plan.step_keys_to_execute),
        )
        yield from ExecuteRunWithPlanIterable(
            execution_plan=plan_context.execution_plan,
            iterator=partial(_executed, width=self.width, dependencies=self.step_dependency_config),
            execution_context_manager=PlanExecutionContextManager(
                job=plan_context.job,
                retry_mode=plan_context.retry_mode,
                execution_plan=plan_context.execution_plan,
                run_config=plan_context.run_config,
                dagster_run=plan_context.dagster_run,
                instance=plan_context.instance,
                raise_on_error=plan_context.raise_on_error,
                output_capture=plan_context.output_capture,
                step_dependency_config=self.step_dependency_config,
            ),
        )


def _executed(
    job_context: PlanExecutionContext, execution_plan: ExecutionPlan, width: int, dependencies: StepDependencyConfig
) -> Iterator[dg.DagsterEvent]:
    with ExitStack() as stack:
        pools = stack.enter_context(InstanceConcurrencyContext(job_context.instance, job_context.dagster_run))
        active = stack.enter_context(
            execution_plan.start(
                job_context.retry_mode, instance_concurrency_context=pools, step_dependency_config=dependencies
            )
        )
        logs = job_context.instance.compute_log_manager
        file_key = create_compute_log_file_key()  # type: ignore[no-untyped-call]
        log_key = logs.build_log_key_for_run(job_context.run_id, file_key)
        log_context = stack.enter_context(logs.capture_logs(log_key))  # a log that cannot be written fails the run
        yield dg.DagsterEvent.capture_logs(job_context, list(execution_plan.step_keys_to_execute), log_key, log_context)
        for key in execution_plan.step_keys_to_execute:
            # A terminated run does not see the end of its last ops, at which Dagster frees their slots.
            stack.callback(pools.free_step, key)
        workers = ThreadPoolExecutor(width, "op")
        # When the run fails or is terminated, no further op begins. Those that have begun end first.
        stack.callback(workers.shutdown, cancel_futures=True)
        while not active.is_complete:
            if active.check_for_interrupts():
                raise dg.DagsterExecutionInterruptedError
            ready = active.get_steps_to_execute()
            yield from active.concurrency_event_iterator(job_context)
            if ready:
                yield from _side_by_side(job_context, active, ready, workers)
            else:  # until a retry is due, or a pool may have a free slot
                with raise_interrupts_as(dg.DagsterExecutionInterruptedError):
                    time.sleep(max(active.sleep_interval(), PAUSE))  # type: ignore[no-untyped-call]


def _side_by_side(
    context: PlanExecutionContext, active: ActiveExecution, steps: Sequence[ExecutionStep], workers: ThreadPoolExecutor
) -> Iterator[dg.DagsterEvent]:
    """Run ops that do not depend on each other. This thread alone changes the state of the run."""
    happened: SimpleQueue[tuple[str, dg.DagsterEvent] | Future[None]] = SimpleQueue()
    terminated = Event()

    def run(step_context: StepExecutionContext) -> None:
        _TERMINATED.set(terminated)
        for event in dagster_event_sequence_for_step(step_context):
            happened.put((step_context.step.key, event))

    contexts = [context.for_step(step, active.get_known_state()) for step in steps]
    running = {workers.submit(run, one): one for one in contexts}
    events: dict[str, list[dg.DagsterEvent]] = {one.step.key: [] for one in contexts}
    for future in running:
        future.add_done_callback(happened.put)
    while running:
        try:
            with raise_interrupts_as(dg.DagsterExecutionInterruptedError):
                told = happened.get()
        except dg.DagsterExecutionInterruptedError:
            terminated.set()
            raise
        if isinstance(told, Future):
            ended = running.pop(told)
            told.result()  # raises what the caller of the run asked to be raised
            active.verify_complete(context, ended.step.key)
            for event in active.plan_events_iterator(context):  # ops that are skipped because of this one
                events[ended.step.key].append(event)
                yield event
            yield from _trigger_hook(ended, events[ended.step.key])
        else:
            key, event = told
            events[key].append(event)
            yield event
            active.handle_event(event)

"""What keeps ticks going: which failures are tried again, and what is forgotten."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from pyspark.errors.exceptions.base import RetriesExceeded
from pyspark.errors.exceptions.connect import AnalysisException, SparkConnectGrpcException

from assets.maintenance import delete_runs
from assets.retries import retried
from assets.specs import TOPOLOGY_TAG
from spark.engine.errors import NotCommitted, PlanChanged
from spark.engine.offsets import KafkaUnavailable, TopicMissing


@pytest.mark.parametrize(
    "error",
    [
        KafkaUnavailable("no broker"),
        NotCommitted("others were first"),
        SparkConnectGrpcException("gone"),
        RetriesExceeded(errorClass="RETRIES_EXCEEDED", messageParameters={}),
    ],
)
def test_what_passes_by_itself_is_tried_again(error: Exception) -> None:
    with pytest.raises(dg.RetryRequested) as raised, retried():
        raise error
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("error", [PlanChanged("run `tidetable rebuild a.b`"), TopicMissing("no topic 'a'")])
def test_what_needs_somebody_fails_at_once_in_our_words(error: Exception) -> None:
    with pytest.raises(dg.Failure) as raised, retried():
        raise error
    assert raised.value.description == str(error)
    assert not raised.value.allow_retries


def test_what_the_engine_answers_is_not_tried_again() -> None:
    with pytest.raises(AnalysisException), retried():
        raise AnalysisException("no such column")


@dg.op
def nothing() -> None:
    pass


@dg.job(tags={TOPOLOGY_TAG: "a"})
def ours() -> None:
    nothing()


@dg.job
def others() -> None:
    nothing()


def test_old_runs_of_ours_are_forgotten_with_their_files(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides={"telemetry": {"enabled": False}}) as instance:
        runs = [job.execute_in_process(instance=instance).run_id for job in (ours, ours, others)]
        now = datetime.now(UTC)
        assert delete_runs(instance, ["a"], [dg.DagsterRunStatus.SUCCESS], now - timedelta(days=1)) == 0
        assert delete_runs(instance, ["a"], [dg.DagsterRunStatus.FAILURE], now) == 0
        assert delete_runs(instance, [], [dg.DagsterRunStatus.SUCCESS], now) == 0
        assert delete_runs(instance, ["b"], [dg.DagsterRunStatus.SUCCESS], now) == 0
        assert delete_runs(instance, ["a"], [dg.DagsterRunStatus.SUCCESS], now) == 2
        assert [run.run_id for run in instance.get_runs()] == runs[2:]
        assert not any(tmp_path.glob(f"history/runs/{runs[0]}*"))
        assert any(tmp_path.glob(f"history/runs/{runs[2]}*"))

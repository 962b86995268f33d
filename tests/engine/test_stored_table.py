"""A table's log says what the table was computed from, or says that it no longer can."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from deltalake import DeltaTable

from spark.engine.errors import ChangesExpired, LogBroken, PositionLost
from spark.engine.log import commit, delta_log, table
from spark.engine.log.position import CLOSED, Input, Position
from spark.engine.log.stored_table import ChangedVersion, StoredTable
from spark.engine.offsets import TopicOffsets
from tests.engine.logs import Entry, appended, created, merged, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.engine import Engine

NAME = "shop/items"


def at(n: int, epoch: str = "one", data_version: int = 0) -> Position:
    """The position of the n-th commit."""
    return Position(NAME, epoch, n, run="run", cut={}, inputs={}, data_version=data_version)


def clean_up(path: str, oldest: int) -> None:
    """Remove the log before a version, as Delta does behind a checkpoint."""
    DeltaTable(path).create_checkpoint()
    for version in range(oldest):
        os.remove(f"{path}/_delta_log/{version:020}.json")


def test_a_position_is_read_back_as_it_was_written() -> None:
    position = Position(
        table=NAME,
        epoch="one",
        n=7,
        run="run",
        cut={"cluster/a-b.c": TopicOffsets("topic id", {0: 12, 10: 3}), "cluster/empty": TopicOffsets("x", {})},
        inputs={"_landing/a-b.c": Input("table id", 3)},
        data_version=4,
        whole=True,
        floor={3: 100},
    )
    assert Position.from_json(position.to_json()) == position


@pytest.mark.parametrize("text", [None, "", "null", "7", "[1]", "{}", '"tidetable"', '{"tidetable": 2}', "{"])
def test_what_others_wrote_into_a_commit_is_no_position(text: str | None) -> None:
    assert Position.from_json(text) is None


def test_there_is_no_state_where_there_is_no_table(tmp_path: Path) -> None:
    assert StoredTable(NAME, str(tmp_path / "items")).state() is None
    (tmp_path / "items" / "_delta_log").mkdir(parents=True)
    assert StoredTable(NAME, str(tmp_path / "items")).state() is None


def test_a_table_just_created_is_at_its_anchor(tmp_path: Path) -> None:
    state = StoredTable(NAME, write(str(tmp_path / "items"), created(at(0)))).state()
    assert state is not None
    assert (state.version, state.data_version, state.position) == (0, 0, at(0))


def test_the_newest_commit_of_ours_is_the_position(tmp_path: Path) -> None:
    path = write(str(tmp_path / "items"), created(at(0)), appended(at(1), 5), merged(at(2), updated=1, deleted=2))
    state = StoredTable(NAME, path).state()
    assert state is not None
    assert (state.version, state.data_version, state.position) == (2, 2, at(2))
    assert state.metrics["numTargetRowsDeleted"] == 2


def test_a_commit_that_changed_no_row_leaves_the_data_version(tmp_path: Path) -> None:
    path = write(
        str(tmp_path / "items"),
        created(at(0)),
        appended(at(1), 5),
        appended(at(2, data_version=1), 0),
        merged(at(3, data_version=1)),
    )
    state = StoredTable(NAME, path).state()
    assert state is not None
    assert (state.version, state.data_version, state.position.n) == (3, 1, 3)
    assert [(commit.version, commit.data_version) for commit in StoredTable(NAME, path).commits()] == [
        (3, 1),
        (2, 1),
        (1, 1),
    ]


def test_maintenance_by_others_is_walked_past_and_changes_no_data(tmp_path: Path) -> None:
    chores = ["OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "ADD COLUMNS"]
    path = write(str(tmp_path / "items"), created(at(0)), appended(at(1), 5), *(Entry(chore) for chore in chores))
    state = StoredTable(NAME, path).state()
    assert state is not None
    assert (state.version, state.data_version, state.position) == (7, 1, at(1))


@pytest.mark.parametrize(
    "foreign",
    [
        pytest.param(Entry("UPDATE", {"numUpdatedRows": 1}), id="UPDATE"),
        pytest.param(Entry("DELETE"), id="DELETE"),
        pytest.param(Entry("WRITE", {"numOutputRows": 3}), id="an append"),
        pytest.param(Entry("WRITE"), id="an append that counts nothing"),
        pytest.param(Entry("MERGE"), id="a MERGE that counts nothing"),
        pytest.param(Entry("SOMETHING NEW"), id="an operation we do not know"),
    ],
)
def test_a_change_of_data_by_others_moves_the_data_version_and_not_the_position(tmp_path: Path, foreign: Entry) -> None:
    path = write(str(tmp_path / "items"), created(at(0)), appended(at(1), 5), foreign, Entry("OPTIMIZE"))
    state = StoredTable(NAME, path).state()
    assert state is not None
    assert (state.version, state.data_version, state.position) == (3, 2, at(1))


def test_a_table_that_somebody_restored_does_not_know_what_it_holds(tmp_path: Path) -> None:
    path = write(str(tmp_path / "items"), created(at(0)), appended(at(1), 5), appended(at(2), 5), Entry("RESTORE"))
    with pytest.raises(PositionLost, match=r"restored in version 3, .* run `tidetable rebuild shop.items`"):
        StoredTable(NAME, path).state()


def test_a_restore_before_a_new_epoch_is_history(tmp_path: Path) -> None:
    path = write(
        str(tmp_path / "items"),
        created(at(0)),
        appended(at(1), 5),
        Entry("RESTORE"),
        Entry("SET TBLPROPERTIES", position=at(0, "two", data_version=2), anchor=at(0, "two", data_version=2)),
        merged(at(1, "two", data_version=2), updated=1),
    )
    state = StoredTable(NAME, path).state()
    assert state is not None
    assert (state.version, state.data_version, state.position.epoch) == (4, 4, "two")
    assert [commit.version for commit in StoredTable(NAME, path).commits()] == [4]


def test_a_table_replaced_by_no_rows_changed(tmp_path: Path) -> None:
    nothing = Entry("WRITE", {"numOutputRows": 0}, at(2, data_version=1), overwrites=True)
    path = write(str(tmp_path / "items"), created(at(0)), appended(at(1), 5), nothing)
    state = StoredTable(NAME, path).state()
    assert state is not None
    assert state.data_version == 2
    [found] = StoredTable(NAME, path).changed_versions(since=1, until=2)
    assert found == ChangedVersion(2, None, at(2, data_version=1), replaced=True)


def test_a_log_that_no_longer_holds_the_span_is_refused(tmp_path: Path) -> None:
    commits = (appended(at(n, data_version=n - 1), 1) for n in range(1, 6))
    path = write(str(tmp_path / "items"), created(at(0)), *commits)
    assert len(StoredTable(NAME, path).changed_versions(since=2, until=5)) == 3
    clean_up(path, oldest=4)
    assert len(StoredTable(NAME, path).changed_versions(since=3, until=5)) == 2
    with pytest.raises(ChangesExpired, match=r"begins at version 4: it does not say what changed since version 2$"):
        StoredTable(NAME, path).changed_versions(since=2, until=5)


def test_a_log_that_lost_only_commits_without_a_change_tells_all(tmp_path: Path) -> None:
    later = (appended(at(n, data_version=1), n // 5) for n in range(2, 6))
    path = write(str(tmp_path / "items"), created(at(0)), appended(at(1), 5), *later)
    clean_up(path, oldest=4)
    assert [found.version for found in StoredTable(NAME, path).changed_versions(since=1, until=5)] == [5]
    with pytest.raises(ChangesExpired, match="begins at version 4"):
        StoredTable(NAME, path).changed_versions(since=0, until=5)


def test_a_log_is_read_while_others_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 60
    path = write(str(tmp_path / "items"), created(at(0)), *(appended(at(n), 5) for n in range(1, count)))
    later = write(str(tmp_path / "later"), created(at(0)), *(appended(at(n), 5) for n in range(1, 1_000)))
    busy, read = iter(range(count, 1_000)), delta_log._commit_info

    def overtaken(table: str, version: int) -> str | None:
        name = f"_delta_log/{next(busy):020}.json"
        shutil.copy(Path(later) / name, Path(path) / name)
        return read(table, version)

    table = StoredTable(NAME, path)
    monkeypatch.setattr(delta_log, "_commit_info", overtaken)
    found = table.changed_versions(since=1, until=2)
    assert [(one.version, one.position) for one in found] == [(2, at(2))]
    state = table.state()
    assert state is not None
    assert state.version == state.data_version == state.position.n >= count
    commits = [(one.version, one.position.n) for one in table.commits()]
    assert commits == [(n, n) for n in range(len(commits), 0, -1)]


def _is_from(n: int, position: Position) -> bool:
    return position.n >= n


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many tables were opened, and how many commits were read."""
    counts: Counter[str] = Counter()

    def counted(name: str, function: Callable[..., Any]) -> None:
        def counting(*arguments: object) -> object:
            counts[name] += 1
            return function(*arguments)

        monkeypatch.setattr(delta_log, function.__name__, counting)

    counted("opened", delta_log.opened)
    counted("commits", delta_log._commit_info)
    return counts


QUIET = 3_000
"""Commits of ours without a changed row."""


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Write the log of a table that was quiet for many commits; `others` are commits of somebody else in between."""
    logs: dict[tuple[int, ...], str] = {}

    def written(*others: int) -> str:
        if others not in logs:
            path = str(tmp_path_factory.mktemp("quiet") / "items")
            entries, n = [created(at(0)), appended(at(1), 5)], 1
            while len(entries) < QUIET:
                foreign = len(entries) in others
                n += not foreign
                entries.append(Entry("OPTIMIZE") if foreign else appended(at(n, data_version=1), 0))
            logs[others] = write(path, *entries, appended(at(n + 1, data_version=1), 1))
        return logs[others]

    return written


@pytest.mark.parametrize("others", [(), (500,), (3, 1_000, 1_001, QUIET - 1)])
def test_what_changed_in_a_long_quiet_log_is_found_in_a_few_reads(
    quiet: Callable[..., str], reads: Counter[str], others: tuple[int, ...]
) -> None:
    table = StoredTable(NAME, quiet(*others))
    assert [found.version for found in table.changed_versions(since=0, until=QUIET)] == [QUIET, 1]
    assert table.changed_versions(since=1, until=QUIET - 1) == []
    assert table.latest_equivalent_version(1) == QUIET - 1
    assert [commit.version for commit in table.changing_commits()] == [QUIET, 1]
    assert reads["commits"] < 30 + 80 * len(others)


def test_a_pin_that_did_not_move_reads_no_commit(quiet: Callable[..., str], reads: Counter[str]) -> None:
    assert StoredTable(NAME, quiet()).changed_versions(since=1, until=1) == []
    assert reads["commits"] == 0


def test_a_change_by_others_while_a_quiet_step_was_computed_is_found(tmp_path: Path) -> None:
    """The step read the table before the change, so its position says that version 1 was the last that changed."""
    steps = [appended(at(n, data_version=1), 0) for n in range(2, 100)]
    path = write(str(tmp_path / "items"), created(at(0)), appended(at(1), 5), *steps[:50], Entry("UPDATE"), *steps[50:])
    found = StoredTable(NAME, path).changed_versions(since=1, until=100)
    assert found == [ChangedVersion(52, None, None)]


def test_the_oldest_commit_for_which_something_holds_is_found_by_halves(
    quiet: Callable[..., str], reads: Counter[str]
) -> None:
    table = StoredTable(NAME, quiet(3, 1_000))
    all_commits = list(table.commits())
    for n in (1, 2, 3, 700, 1_000, QUIET - 3, QUIET - 2):
        reads.clear()
        found = table.oldest_commit(partial(_is_from, n))
        assert found == next(commit for commit in all_commits if commit.position.n == n)
        assert reads["commits"] < 50
    assert table.oldest_commit(lambda position: position.n > QUIET) is None
    assert table.oldest_commit(lambda _: True) == all_commits[-1]


def test_a_table_is_opened_once_and_then_read_on(tmp_path: Path, reads: Counter[str]) -> None:
    path = write(str(tmp_path / "items"), created(at(0)), appended(at(1), 5))
    later = write(
        str(tmp_path / "later"),
        created(at(0)),
        appended(at(1), 5),
        appended(at(2), 5),
        Entry("SET TBLPROPERTIES", position=at(0, "two"), anchor=at(0, "two")),
        appended(at(1, "two"), 5),
    )
    table = StoredTable(NAME, path)
    assert table.state() is not None
    reads.clear()
    for version in (2, 3, 4):
        shutil.copy(f"{later}/_delta_log/{version:020}.json", f"{path}/_delta_log")
        assert table.state() == StoredTable(NAME, later).state() if version == 4 else table.version() == version
    assert reads["opened"] == 1, "the other table"


@pytest.mark.parametrize("length", [1, 2, 3, 9])
def test_a_table_that_was_created_again_is_opened_again(tmp_path: Path, length: int) -> None:
    path = str(tmp_path / "items")
    table = StoredTable(NAME, write(path, created(at(0)), appended(at(1), 5), appended(at(2), 5)))
    before = table.state()
    shutil.rmtree(path)
    assert table.state() is None
    entries = [created(at(0, "new")), *(appended(at(n, "new"), 7) for n in range(1, length))]
    write(path, *entries, table_id="10000000-0000-4000-8000-000000000000")
    after = table.state()
    assert before is not None
    assert after is not None
    assert (after.id, after.position) == ("10000000-0000-4000-8000-000000000000", at(length - 1, "new"))


def test_a_copy_that_was_put_back_is_opened_again(tmp_path: Path) -> None:
    """It has the same id, and maybe more commits than the table had."""
    path, copy = tmp_path / "items", tmp_path / "copy"
    table = StoredTable(NAME, write(str(path), created(at(0)), appended(at(1), 5)))
    shutil.copytree(path, copy)
    other = write(str(tmp_path / "other"), created(at(0)), appended(at(1), 5), *[appended(at(2), 1)] * 3)
    shutil.copy(f"{other}/_delta_log/{2:020}.json", path / "_delta_log")
    assert table.version() == 2
    shutil.rmtree(path)
    shutil.copytree(copy, path)
    assert table.version() == 1
    assert table.state() is not None
    other = write(str(tmp_path / "more"), created(at(0)), appended(at(1), 5), appended(at(2), 7), appended(at(3), 7))
    for version in (2, 3):
        shutil.copy(f"{other}/_delta_log/{version:020}.json", path / "_delta_log")
    state = table.state()
    assert state is not None
    assert (state.version, state.position, state.metrics["numOutputRows"]) == (3, at(3), 7)


def test_a_table_is_read_on_after_its_log_was_cleaned_up(tmp_path: Path) -> None:
    later = write(str(tmp_path / "later"), created(at(0)), *(appended(at(n), 5) for n in range(1, 9)))
    path = write(str(tmp_path / "items"), created(at(0)), *(appended(at(n), 5) for n in range(1, 4)))
    table = StoredTable(NAME, path)
    assert table.version() == 3
    shutil.rmtree(path)
    shutil.copytree(later, path)
    clean_up(path, oldest=6)
    state = table.state()
    assert state is not None
    assert (state.version, state.position) == (8, at(8))


def test_an_object_store_is_read_as_a_folder_is(tmp_path: Path) -> None:
    path = write(str(tmp_path / "items"), created(at(0)), *(appended(at(n), 5) for n in range(1, 70)))
    here, there = StoredTable(NAME, path), StoredTable(NAME, f"file://{path}")
    assert there.state() == here.state()
    assert list(there.commits()) == list(here.commits())


def test_a_change_by_others_belongs_to_the_commit_of_ours_before_it(tmp_path: Path) -> None:
    path = write(
        str(tmp_path / "items"), created(at(0)), appended(at(1), 5), Entry("UPDATE"), merged(at(2), updated=1), Entry()
    )
    found = [(commit.version, commit.data_version) for commit in StoredTable(NAME, path).commits()]
    assert found == [(3, 4), (1, 2)]


def test_the_position_is_found_behind_any_number_of_foreign_commits(tmp_path: Path) -> None:
    foreign = [Entry("OPTIMIZE")] * 60
    path = write(str(tmp_path / "items"), created(at(0)), appended(at(1), 5), *foreign)
    state = StoredTable(NAME, path).state()
    assert state is not None
    assert (state.data_version, state.position) == (1, at(1))


def test_positions_of_another_table_or_epoch_are_not_ours(tmp_path: Path) -> None:
    other = replace(at(5), table="shop/other")
    path = write(str(tmp_path / "items"), created(at(0)), appended(at(1), 5), appended(other, 1))
    state = StoredTable(NAME, path).state()
    assert state is not None
    assert (state.position, state.data_version) == (at(1), 2)


def test_a_new_epoch_counts_from_its_anchor(tmp_path: Path) -> None:
    fresh = at(0, "two", data_version=1)
    path = write(
        str(tmp_path / "items"),
        created(at(0)),
        appended(at(1), 5),
        appended(at(CLOSED), 0),
        Entry("SET TBLPROPERTIES", position=fresh, anchor=fresh),
    )
    state = StoredTable(NAME, path).state()
    assert state is not None
    assert (state.version, state.data_version, state.position) == (3, 1, fresh)
    assert list(StoredTable(NAME, path).commits()) == []


def test_a_position_whose_number_was_not_committed_is_lost(tmp_path: Path) -> None:
    unfenced = replace(appended(at(2), 1), fenced=False)
    path = write(str(tmp_path / "items"), created(at(0)), appended(at(1), 5), unfenced)
    with pytest.raises(PositionLost, match=r"number 2, but 1 was committed: run `tidetable rebuild shop.items`"):
        StoredTable(NAME, path).state()


def test_a_number_that_was_committed_without_its_position_is_lost(tmp_path: Path) -> None:
    path = write(str(tmp_path / "items"), created(at(0)), appended(at(1), 5), appended(at(2), 1))
    DeltaTable(path).create_checkpoint()
    for name in os.listdir(f"{path}/_delta_log"):
        if name.endswith((".json", ".crc")):
            os.remove(f"{path}/_delta_log/{name}")
    with pytest.raises(PositionLost, match=r"number 0, but 2 was committed: run `tidetable rebuild shop.items`"):
        StoredTable(NAME, path).state()


def test_an_epoch_that_was_closed_and_not_replaced_is_lost(tmp_path: Path) -> None:
    path = write(str(tmp_path / "items"), created(at(0)), appended(at(1), 5), appended(at(CLOSED), 0))
    with pytest.raises(PositionLost, match="tidetable rebuild"):
        StoredTable(NAME, path).state()
    left = StoredTable(NAME, path).salvaged_state()
    assert (left.position.epoch, left.position.n, left.data_version) == ("one", 0, 2)


@pytest.mark.parametrize("anchor", [None, replace(at(0), table="shop/other")])
def test_a_table_that_is_not_ours_is_never_taken_for_one(tmp_path: Path, anchor: Position | None) -> None:
    path = write(str(tmp_path / "items"), Entry("CREATE TABLE", anchor=anchor))
    for look in (StoredTable.state, StoredTable.salvaged_state, StoredTable.commits):
        with pytest.raises(PositionLost, match="move it away"):
            look(StoredTable(NAME, path))


def test_the_commits_of_a_span_are_those_that_changed_data(tmp_path: Path) -> None:
    path = write(
        str(tmp_path / "items"),
        created(at(0)),
        appended(at(1), 5),
        appended(at(2), 0),
        Entry("UPDATE"),
        Entry("OPTIMIZE"),
        merged(at(3), inserted=1, updated=2, deleted=3),
        appended(at(4), 1),
    )
    assert StoredTable(NAME, path).changed_versions(since=1, until=5) == [
        ChangedVersion(5, 6, at(3)),
        ChangedVersion(3, None, None),
    ]
    assert StoredTable(NAME, path).changed_versions(since=5, until=5) == []


def test_deltas_own_log_is_read_as_these_logs_are(engine: Engine, tmp_path: Path) -> None:
    path, session = str(tmp_path / "items"), engine.session()
    try:
        # VACUUM lists files by this many tasks: 10,000 by default, which is most of a minute on a small machine.
        session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
        schema = session.sql("SELECT 1L AS id, 'x' AS name").schema
        state = table.create(session, StoredTable(NAME, path), schema, "run", "{}")
        rows = session.sql("SELECT id, 'x' AS name FROM range(3)")
        position = replace(state.position, n=1)
        appended = commit.append(rows, StoredTable(NAME, path), position)
        assert appended is not None
        assert (appended.version, appended.data_version, appended.position) == (1, 1, position)

        empty = replace(position, n=2, data_version=1)
        assert commit.append(rows.where("false"), StoredTable(NAME, path), empty) is not None
        for chore in (
            f"OPTIMIZE delta.`{path}`",
            f"VACUUM delta.`{path}`",
            f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('x' = 'y')",
            f"ALTER TABLE delta.`{path}` ADD COLUMNS (more int)",
        ):
            session.sql(chore).collect()
        state_after = StoredTable(NAME, path).state()
        assert state_after is not None
        assert state_after.version > 2
        assert (state_after.data_version, state_after.position) == (1, empty)

        for change in (
            f"UPDATE delta.`{path}` SET name = 'y' WHERE id = 1",
            f"DELETE FROM delta.`{path}` WHERE id = 2",
        ):
            session.sql(change).collect()
            changed = StoredTable(NAME, path).state()
            assert changed is not None
            assert (changed.data_version, changed.position) == (changed.version, empty)
    finally:
        session.stop()


def test_an_open_table_whose_store_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Away:
        def open_input_stream(self, _: str) -> NoReturn:
            raise OSError("\x1b[31mGeneric S3 error\x1b[0m\nand a stack")

    monkeypatch.setattr(delta_log, "store", lambda _: Away())
    with pytest.raises(LogBroken, match=r"^s3://bucket/orders cannot be read: Generic S3 error\. Where the lake"):
        delta_log.entry("s3://bucket/orders", 3)

"""Tasks on real Dask workers: results, killed workers, killed schedulers, poison, cancellation."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import node_tasks
from harness import wait_until
from nodes_support import DaskCluster, dask_cluster
from waystage.nodes import (
    Mark,
    NodesError,
    NodesRefused,
    Task,
    TaskKilled,
    Where,
    join,
    marked,
    shared_folder,
)
from waystage.task import no_progress


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DaskCluster]:
    with dask_cluster(tmp_path / "dask", 2) as started:
        yield started


def run(cluster: DaskCluster, tasks: list[Task], **more: Any) -> list[Any]:
    found: list[Any] = []
    with join(Where(cluster.address)) as engine:
        engine.run(tasks, lambda task, value: found.append(value), no_progress, **more)
    return found


def test_every_task_gives_its_result_once_also_those_that_follow_from_others(cluster: DaskCluster) -> None:
    found: list[int] = []

    def finished(task: Task, value: int) -> list[Task]:
        found.append(value)
        return [Task("further", node_tasks.double, (value,))] if value < 20 else []

    with join(Where(cluster.address)) as engine:
        engine.run([Task(f"task {n}", node_tasks.double, (n,)) for n in range(1, 20)], finished, no_progress)
    expected = []
    waiting = [2 * n for n in range(1, 20)]
    while waiting:
        expected += waiting
        waiting = [2 * value for value in waiting if value < 20]
    assert sorted(found) == sorted(expected)


def test_workers_import_what_tasks_need_before_the_first_of_them(cluster: DaskCluster) -> None:
    with join(Where(cluster.address)) as engine:
        engine.prepare(["no_module_of_this_name", "colorsys"])

        def imported() -> bool:
            found: list[bool] = []
            tasks = [Task(f"look {n}", node_tasks.has_imported, ("colorsys",)) for n in range(4)]
            engine.run(tasks, lambda task, value: found.append(value), no_progress)
            return all(found)

        wait_until(imported)


def test_a_worker_killed_in_the_middle_costs_only_its_task(cluster: DaskCluster, tmp_path: Path) -> None:
    folder = tmp_path / "said"
    folder.mkdir()

    def kill() -> None:
        wait_until(lambda: list(folder.glob(f"began-*-{cluster.workers[0].pid}")))
        cluster.kill(0)

    killer = threading.Thread(target=kill)
    killer.start()
    found = run(cluster, [Task(f"task {n}", node_tasks.slow, (str(folder), n, 0.5)) for n in range(6)])
    killer.join()
    assert sorted(found) == list(range(6))
    began = [path.name.split("-")[1] for path in folder.glob("began-*")]
    assert len(began) <= 7


def test_a_worker_killed_between_its_rename_and_its_report_does_no_harm(
    cluster: DaskCluster, tmp_path: Path
) -> None:
    found = run(cluster, [Task("one", node_tasks.kills_after_its_file, (str(tmp_path / "file"),))])
    assert found == ["whole"]
    wait_until(lambda: [worker.poll() is None for worker in cluster.workers].count(False) == 1)


def test_an_error_is_raised_as_it_was_with_the_name_of_the_node(cluster: DaskCluster) -> None:
    with pytest.raises(ValueError, match="no such luck") as caught:
        run(cluster, [Task("task 7", node_tasks.fails, ("no such luck",))])
    assert any("task 7 failed on" in note for note in caught.value.__notes__)


def test_an_error_that_may_pass_is_tried_again_and_not_for_ever(cluster: DaskCluster, tmp_path: Path) -> None:
    folder = tmp_path / "attempts"
    folder.mkdir()
    assert run(cluster, [Task("one", node_tasks.fails_for_a_while, (str(folder),))]) == [2]


def test_a_task_that_kills_every_worker_is_named_and_not_its_neighbours(tmp_path: Path) -> None:
    # Two workers at once, and two when it runs alone.
    with dask_cluster(tmp_path / "dask", 0, allowed_failures=1) as cluster:
        for _ in range(6):
            cluster.add_worker()
        cluster.wait_for(6)
        tasks = [Task(f"good {n}", node_tasks.double, (n,)) for n in range(8)]
        tasks.insert(3, Task("poison", node_tasks.kills_its_worker))
        with pytest.raises(TaskKilled, match=r"^poison: .* was killed"):
            run(cluster, tasks)


def test_a_dead_scheduler_ends_the_work_with_a_sentence(cluster: DaskCluster, tmp_path: Path) -> None:
    folder = tmp_path / "said"
    folder.mkdir()

    def kill() -> None:
        wait_until(lambda: list(folder.glob("began-*")))
        assert cluster.scheduler is not None
        cluster.scheduler.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(NodesError, match=r"scheduler at .* does not answer any more: finished work is kept"):
        run(cluster, [Task(f"task {n}", node_tasks.slow, (str(folder), n, 60.0)) for n in range(4)])
    killer.join()


def test_an_interrupt_ends_tasks_that_run_before_the_command_ends(
    cluster: DaskCluster, tmp_path: Path
) -> None:
    folder = tmp_path / "said"
    folder.mkdir()

    def interrupt() -> None:
        wait_until(lambda: len(list(folder.glob("began-*"))) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    killer = threading.Thread(target=interrupt)
    killer.start()
    with pytest.raises(KeyboardInterrupt):
        run(cluster, [Task(f"task {n}", node_tasks.slow, (str(folder), n, 30.0)) for n in range(8)])
    killer.join()
    assert len(list(folder.glob("began-*"))) == 2
    time.sleep(1.0)
    assert not list(folder.glob("ended-*"))
    assert run(cluster, [Task("next", node_tasks.double, (4,))]) == [8]


def test_an_address_without_a_scheduler_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NodesError, match="no Dask scheduler answers at"), join(Where("tcp://127.0.0.1:9")):
        pass


def test_a_scheduler_without_workers_is_one_sentence(tmp_path: Path, monkeypatch: Any) -> None:
    with dask_cluster(tmp_path / "dask", 0) as cluster, join(Where(cluster.address)) as engine:
        engine._patience_s = 1.0
        with pytest.raises(NodesError, match="has had no worker for 1 s: start some"):
            engine.run([Task("one", node_tasks.double, (1,))], lambda task, value: None, no_progress)


def test_a_node_that_lacks_a_path_is_refused_by_name(cluster: DaskCluster, tmp_path: Path) -> None:
    missing = tmp_path / "absent"
    with pytest.raises(NodesRefused, match=f"{missing} cannot be read there: No such file"):
        run(cluster, [Task("one", node_tasks.double, (1,))], marks=[Mark(str(missing), str(missing))])


def test_another_version_at_a_worker_is_refused(cluster: DaskCluster, monkeypatch: Any) -> None:
    from waystage.nodes import remote

    monkeypatch.setattr(remote.Job, "version", "9.9.9", raising=False)
    monkeypatch.setattr(remote.Job.__init__, "__defaults__", ((), "9.9.9", os.geteuid()))
    with pytest.raises(NodesRefused, match=r"and this command is 9\.9\.9: install the same version"):
        run(cluster, [Task("one", node_tasks.double, (1,))])


def test_folders_of_killed_commands_are_removed_and_those_of_running_ones_stay(tmp_path: Path) -> None:
    left = tmp_path / ".waystage-nodes-0011223344556677"
    left.mkdir()
    (left / "marker").touch()
    with shared_folder(tmp_path) as (first, _):
        assert not left.exists()
        with shared_folder(tmp_path) as (second, mark):
            assert first.is_dir() and second.is_dir() and Path(mark.path).parent == second
    stale = tmp_path / f".waystage-copy-{0:016x}-0123456789abcdef.part"
    stale.touch()
    with marked(tmp_path) as one, marked(tmp_path) as other:
        assert not stale.exists() and Path(one.path).exists() and Path(other.path).exists()
    assert list(tmp_path.iterdir()) == []

"""What is ready for the next run: Ray, and workers that are forked with their libraries."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests.integration.ready import forked
from tests.kit.programs import python
from tests.kit.sweeps import run


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ready")
    temporary = Path(tempfile.mkdtemp(prefix="tl-", dir="/tmp"))  # paths of sockets are short
    done = python("-m", "tests.integration.ready", folder, TMPDIR=str(temporary))
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"what"')]
    left = list(temporary.glob("tunelight-*"))
    shutil.rmtree(temporary)
    return {"folders": {"left": left}} | {line["what"]: line for line in lines}


@pytest.mark.apart
def test_a_second_run_is_on_the_same_ray_in_new_processes_that_import_modules_as_they_are_now(said: Any) -> None:
    first, again = said["first"], said["again"]
    assert first["kept"]
    assert first["session"] == again["session"]
    assert first["pid"] != again["pid"]
    assert first["forked"]
    assert again["forked"]
    assert first["niceness"] == os.nice(0)
    assert [said[what]["said"] for what in ("first", "again", "edited")] == [1, 1, 22]
    assert {said[what]["seen"] for what in ("first", "again", "edited")} == {1}
    assert said["edited"]["session"] == said["first"]["session"]


@pytest.mark.apart
def test_another_environment_needs_another_ray_and_gets_it(said: dict[str, dict[str, Any]]) -> None:
    assert said["edited"]["variable"] == 0
    assert said["environment"]["variable"] == 7
    assert said["environment"]["session"] != said["edited"]["session"]


@pytest.mark.apart
def test_without_reuse_or_after_a_shutdown_nothing_is_kept(said: dict[str, dict[str, Any]]) -> None:
    assert [said["alone"][name] for name in ("kept", "forked")] == [False, False]
    assert [said["after"][name] for name in ("kept", "forked")] == [True, True]
    assert not said["shutdown"]["kept"]
    assert not said["folders"]["left"]


def test_workers_on_a_ray_that_was_there_are_forked_too(ray4: Any, tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        tl.report({"loss": 0.0, "forked": forked()})

    results = run({"x": tl.uniform(0, 1)}, train, tmp_path, 1)
    assert results.trials[0].history[0]["forked"]


def test_forked_workers_draw_ids_of_their_own(ray4: Any) -> None:
    import ray

    class Drawer:
        def drawn(self) -> tuple[bool, set[str]]:
            found = [ray.NodeID.from_random().hex()]
            for _ in range(3):  # the generator is a thread's
                thread = threading.Thread(target=lambda: found.append(ray.NodeID.from_random().hex()))
                thread.start()
                thread.join()
            return forked(), set(found)

    actors: list[Any] = [ray.remote(num_cpus=0)(Drawer).remote() for _ in range(2)]
    (one_forked, one), (two_forked, two) = ray.get([actor.drawn.remote() for actor in actors], timeout=60)
    for actor in actors:
        ray.kill(actor)
    assert one_forked
    assert two_forked
    assert len(one | two) == 8

"""Programs of their own: what a sweep shows on their terminal, does without, and leaves ready for the next run."""

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
from tests import flavours
from tests.doors import PACKAGE
from tests.integration.ready import forked
from tests.kit.programs import python
from tests.kit.sweeps import run

SCRIPT = """
import os, signal, sys
from pathlib import Path

import ray

import tunelight as tl
from tunelight.extras.digits import DigitsClassifier, DigitsData

def train(config):
    for number in range(tl.get_context().number, 3):
        if number == 1 and tl.get_context().rank == 1 and not (flag := Path(config["folder"], "killed")).exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        tl.report({"loss": 1.0})

if __name__ == "__main__":
    ray.init(address="local", num_cpus=2, include_dashboard=False)
    tl.run(
        {"model.lr": tl.loguniform(1e-3, 1e-1)}, model=DigitsClassifier, data=DigitsData, max_epochs=1,
        metric="val_loss", num_samples=2, workers=2, storage=sys.argv[1], name="s",
    )
    for stream in (sys.stdout, sys.stderr):
        print("the next sweep", file=stream, flush=True)
    tl.run({"folder": sys.argv[1]}, train, metric="loss", num_samples=1, workers=2, storage=sys.argv[1], name="t")
    ray.shutdown()
"""


@pytest.mark.apart
def test_a_sweep_shows_its_own_lines_and_none_of_ray_s_or_lightning_s_also_of_a_fault_that_was_survived(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = python("script.py", tmp_path, cwd=tmp_path, **os.environ)
    (out, after), (errors, later) = (text.split("the next sweep\n") for text in (done.stdout, done.stderr))
    # Not counted: a step that takes its time, and the line of each minute, as `s  0/2 done  1m 00s`.
    own = [line for line in out.splitlines() if line and not line.endswith(" ...") and not line.startswith("s  ")]
    assert len(own) == 3, out
    assert own[-1].startswith("Sweep s ended after")
    # Ray's own start, which the program asked for: how it authenticates, and that it is up.
    rays_start = ("authentication_token_setup.py", "worker.py")
    others = [line for line in errors.splitlines() if line and not any(name in line for name in rays_start)]
    assert not others, errors
    log = (tmp_path / "s" / "trial_00000" / "log.txt").read_text()
    assert "[0] `Trainer.fit` stopped: `max_epochs=1` reached." in log
    assert "litlogger" not in log
    assert "entry point" not in log
    assert (tmp_path / "killed").exists()
    assert "trial 00000 finished" in after
    assert "worker died" not in after + later


LEAN = """
import os, sys
import ray
import tunelight as tl

def train(config):
    import importlib.util
    import pytorch_lightning as pl
    from tests.lean import DRIVER_ONLY
    from tests.kit.training import Line, LineData
    there = [name for name in DRIVER_ONLY if importlib.util.find_spec(name)]
    assert not there, there
    trainer = pl.Trainer(strategy=tl.RayStrategy(), max_epochs=3, callbacks=[tl.TuneReportCheckpointCallback()],
                         logger=False, enable_checkpointing=False)
    trainer.fit(Line(lr=config["lr"]), datamodule=LineData())

if __name__ == "__main__":
    import optuna, plotly, rich
    os.environ["PYTHONPATH"] = sys.argv[1]  # of all that Ray starts, and not of this driver
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    results = tl.run(
        {"lr": tl.loguniform(0.001, 0.1)}, train=train, metric="val_loss", workers=2, num_samples=3, max_epochs=3,
        scheduler="asha", storage="runs", progress=False, seed=1,
    )
    assert not results.errors, results.errors
    print(tl.__file__, len(results))
"""


@pytest.mark.apart
def test_a_sweep_runs_without_the_extras_on_nodes_without_what_only_drivers_use(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("extras"))
    shutil.copytree(PACKAGE.parent / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("integration", "unit"))
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("from tests.lean import hide\n\nhide()\n")
    script = tmp_path / "sweep.py"
    script.write_text(flavours.written(LEAN))
    nodes = os.pathsep.join([str(hidden), str(tmp_path)])
    done = python(script, nodes, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert f"{tmp_path}/tunelight/__init__.py 3" in done.stdout


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
def test_another_environment_gets_another_ray_and_none_is_kept_without_reuse_or_after_a_shutdown(said: Any) -> None:
    assert said["edited"]["variable"] == 0
    assert said["environment"]["variable"] == 7
    assert said["environment"]["session"] != said["edited"]["session"]
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

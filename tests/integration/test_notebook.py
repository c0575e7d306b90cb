"""Notebooks: the one in examples/ runs from end to end, and an interrupted cell ends its workers."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

from tests import docs, flavours
from tests.kit.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"
CELL_LIMIT_S = 200
"""Several times what a cell needs on two cores; a loaded machine takes its time."""

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a kernel that writes nothing to the home folder."""
    folders = {name: str(tmp_path / name.lower()) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR")}
    return {**flavours.as_a_user(), **folders}


def empty(folder: Path) -> bool:
    """Tell whether no process works in a folder."""
    return not any(
        (process.info["cwd"] or "").startswith(str(folder)) and process.info["status"] != psutil.STATUS_ZOMBIE
        for process in psutil.process_iter(["cwd", "status"])
    )


def shown(cell: Any) -> str:
    """Return all that a cell shows as text."""
    return "\n".join(out.get("text") or out.get("data", {}).get("text/plain", "") for out in cell.outputs)


def seconds(cell: Any) -> float:
    found = re.search(r"([\d.]+) s; ", shown(cell))
    assert found is not None, shown(cell)
    return float(found[1])


def test_the_example_is_stored_without_outputs_and_machine_paths() -> None:
    notebook = nbformat.read(EXAMPLE, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)
    assert str(Path.home()) not in EXAMPLE.read_text()
    assert str(docs.ROOT) not in EXAMPLE.read_text()


@pytest.mark.apart
@pytest.mark.timeout(180)  # on two cores
def test_the_example_runs_and_leaves_no_process(environment: dict[str, str], tmp_path: Path) -> None:
    notebook = nbformat.read(EXAMPLE, as_version=4)
    runner = NotebookClient(
        notebook, timeout=CELL_LIMIT_S, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    runner.execute(env=environment)
    first, second, back, sweep, table, figure, best = (
        next(cell for cell in notebook.cells if sign in cell.source)
        for sign in ("seed_everything", "go on from", "best_model_path", "tl.run", "dataframe()", "plot(", "best.yaml")
    )
    assert seconds(second) < seconds(first)
    assert "Epoch 7/7" in shown(second)  # rank 0's progress, drawn here
    assert "\x1b[1A" not in shown(second)
    assert len(re.findall("Epoch", shown(second))) <= 2  # in place, not once for each batch
    tested, predicted = re.findall(r"0\.\d{4}", shown(back).splitlines()[-2])
    assert float(tested) == pytest.approx(float(predicted), abs=1e-4)
    assert "12 trials" in shown(sweep)
    assert len(re.findall(r"FINISHED|STOPPED", shown(table))) == 12
    assert "application/vnd.plotly.v1+json" in figure.outputs[-1].data
    assert re.search(r"'model.hidden': \d+}: 9\d\.\d% of the test images are right", shown(best))
    until(lambda: empty(tmp_path), 10, every_s=0.1)


class Kernel:
    """A kernel of a test's own, and what its cells show."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.manager, self.client = start_new_kernel(
            startup_timeout=90, kernel_name="python3", cwd=str(folder), env=environment
        )
        self.text = ""
        self.interrupted: float | None = None

    def run(self, code: str, interrupt_at: str | None = None) -> str | None:
        """Run a cell; return its error's name. Interrupt it when it has shown what ``interrupt_at`` matches."""
        self.text = ""

        def take(message: Any) -> None:
            content = message["content"]
            self.text += content.get("text") or content.get("data", {}).get("text/plain", "")
            if interrupt_at is not None and self.interrupted is None and re.search(interrupt_at, self.text):
                self.interrupted = time.monotonic()
                self.manager.interrupt_kernel()

        reply = self.client.execute_interactive(code, timeout=CELL_LIMIT_S, output_hook=take, stop_on_error=False)
        error: str | None = reply["content"].get("ename")
        return error

    def end(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(environment: dict[str, str], tmp_path: Path) -> Iterator[Kernel]:
    made = Kernel(environment, tmp_path)
    yield made
    made.end()


SETUP = """
import os
import pytorch_lightning as pl
import tunelight as tl
from tunelight.extras.digits import DigitsClassifier, DigitsData

class Telling(DigitsClassifier):
    def on_train_start(self):
        print("process", os.getpid())

def fit(epochs):
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    strategy = tl.RayStrategy(num_workers=2)
    trainer = pl.Trainer(max_epochs=epochs, accelerator="cpu", strategy=strategy, **quiet)
    trainer.fit(Telling(), datamodule=DigitsData())
"""


@pytest.mark.slow
def test_an_interrupted_cell_ends_its_workers_within_seconds(kernel: Kernel, tmp_path: Path) -> None:
    assert kernel.run(flavours.written(SETUP)) is None, kernel.text
    assert kernel.run("fit(100_000)", interrupt_at=r"(?s)process \d+\n.*process \d+\n") == "SystemExit"  # Lightning's
    assert kernel.interrupted is not None
    assert time.monotonic() - kernel.interrupted < 15
    workers = [int(pid) for pid in re.findall(r"process (\d+)", kernel.text)]
    assert len(workers) == 2
    until(lambda: not any(psutil.pid_exists(pid) for pid in workers), 10, every_s=0.1)

    assert kernel.run("fit(1); print('and on')") is None, kernel.text  # the notebook lives, with new workers
    assert "and on" in kernel.text
    assert kernel.run("import ray; ray.shutdown()") is None
    kernel.end()
    until(lambda: empty(tmp_path), 10, every_s=0.1)

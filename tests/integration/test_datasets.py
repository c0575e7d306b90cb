"""Ray Data on a real Ray: who sees which rows, where its tasks run, and what is left of it."""

from __future__ import annotations

import itertools
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray.tune.schedulers import TrialScheduler
from typer.testing import CliRunner

import tunelight as tl
from tests.conftest import share_holdings
from tests.kit.recording import read_lines
from tests.kit.sweeps import run
from tests.kit.training import note, notes, trainer
from tunelight import messages
from tunelight.cli import app
from tunelight.errors import DataError, ResourceError
from tunelight.extras.digits import DigitsClassifier, load_digits
from tunelight.messages import RESULT_KEY
from tunelight.schedulers.base import GangScheduler

# Ray Data's own, of each copy that it makes of its settings.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:`{name}` is deprecated:DeprecationWarning")
    for name in ("use_push_based_shuffle", "use_polars", "use_arrow_tensor_v2")
]
ROWS = 1077


def write_digits(folder: Path, files: int = 4) -> dict[str, dict[str, str]]:
    """Write the digits' training and validation images as Parquet; return them as ``datasets=`` of a sweep."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for part, data in zip(("train", "val"), load_digits(0)[:2], strict=True):
        (folder / part).mkdir(parents=True)
        images, labels = (tensor.numpy() for tensor in data.tensors)
        for number, rows in enumerate(np.array_split(np.arange(len(labels)), files)):
            table = pa.table(
                {
                    "row": rows,
                    "image": [image.ravel() for image in images[rows]],
                    "label": labels[rows],
                }
            )
            pq.write_table(table, folder / part / f"{number}.parquet", row_group_size=100)
    return {part: {"parquet": str(folder / part)} for part in ("train", "val")}


def to_batch(rows: dict[str, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    images = np.stack([np.asarray(image, np.float32) for image in rows["image"]]).reshape(-1, 1, 8, 8)
    return torch.tensor(images), torch.tensor(rows["label"]), torch.tensor(rows["row"])


class Seen(DigitsClassifier):
    """A classifier that writes down which rows each batch gave it, one file a rank."""

    def on_fit_start(self) -> None:
        self.start = secrets.token_hex(4)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        images, labels, rows = batch
        note("seen", batch=[self.current_epoch, batch_idx, self.start, rows.tolist()])
        return super().training_step((images, labels), batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch[:2], batch_idx)


def seen(trial: tl.TrialResult) -> dict[int, list[list[int]]]:
    """Return each epoch's rows, rank by rank; what a later start trained on again counts once."""
    epochs: dict[int, list[list[int]]] = {}
    for lines in notes(trial, "seen"):
        kept: dict[int, list[Any]] = {}
        for epoch, index, start, rows in (line["batch"] for line in lines):
            batches = kept.setdefault(epoch, [])
            while batches and batches[-1][1] != start and batches[-1][0] >= index:
                batches.pop()
            batches.append((index, start, rows))
        for epoch, batches in kept.items():
            epochs.setdefault(epoch, []).append([row for *_, rows in batches for row in rows])
    return epochs


def digits(config: dict[str, Any]) -> None:
    """Train on the sweep's datasets, with a checkpoint at every report: one an epoch, or each ``every`` batches."""
    report = tl.TuneReportCheckpointCallback({"loss": "val_loss", "acc": "val_acc"}, on="validation_end")
    model = Seen(lr=config["lr"], hidden=64)
    often = {"val_check_interval": config["every"]} if config.get("every") else {}
    data = tl.RayDataModule(batch_size=32, collate_fn=to_batch)
    trainer(config.get("epochs", 2), report, num_sanity_val_steps=0, **often).fit(model, datamodule=data)


@pytest.fixture(scope="module")
def parquet(ray4: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Return the digits as ``datasets=``, with Ray Data's own actors (one of each a cluster) started."""
    import ray

    ray.data.DataContext.get_current().enable_progress_bars = False
    assert ray.data.range(2).map_batches(lambda rows: rows).materialize().count() == 2
    share_holdings()
    return write_digits(tmp_path_factory.mktemp("digits"))


def sweep(tmp_path: Path, train: Any = digits, epochs: int = 2, every: int = 0, **kwargs: Any) -> tl.SweepResults:
    space = {"lr": tl.loguniform(1e-3, 1e-1), "epochs": epochs, "every": every}
    results = run(space, train, tmp_path, [{"lr": 0.01}], metric="acc", mode="max", **kwargs)
    assert not results.errors, results.errors[0].error
    return results


def check_epochs(trial: tl.TrialResult, epochs: int, ranks: int = 2) -> dict[int, list[list[int]]]:
    """Check that each epoch gave each row to one rank, but those that equal shards have to drop."""
    found = seen(trial)
    assert sorted(found) == list(range(epochs))
    for shards in found.values():
        assert [len(rows) for rows in shards] == [ROWS // ranks] * ranks
        everything = [row for rows in shards for row in rows]
        assert len(set(everything)) == len(everything) == ROWS // ranks * ranks
    return found


def test_a_sweep_on_parquet_sees_each_row_once_an_epoch_and_learns(tmp_path: Path, parquet: dict[str, Any]) -> None:
    results = sweep(tmp_path, datasets=parquet, cache=True, epochs=8)
    found = check_epochs(results.best, 8)
    assert found[0] != found[1]
    assert results.best.value is not None
    assert results.best.value >= 0.95
    assert "cached dataset 'train': 1077 rows" in (tmp_path / "s" / "record.jsonl").read_text()


class Resize(GangScheduler):
    """Give a gang one size after the other, five reports after it has the last one; then stop its trial."""

    resizes = True

    def __init__(self, at: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.at, self.sizes, self.wanted = at, list(sizes), 1

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        number = result["training_iteration"]
        if number >= self.at and result[f"{RESULT_KEY}/workers"] == self.wanted:
            if not self.sizes:
                return str(TrialScheduler.STOP)
            self.at, self.wanted = number + 5, self.sizes.pop(0)
            trial.temporary_state.ray_actor.decide.remote(messages.Resize(self.wanted))
        return str(TrialScheduler.CONTINUE)


@pytest.mark.slow
@pytest.mark.timeout(300)  # a worker imports torch meanwhile
def test_a_gang_that_is_resized_sees_whole_epochs_again_after_that_in_which_it_was(tmp_path, parquet):
    results = sweep(
        tmp_path, datasets=parquet, cache=True, scheduler=Resize(3, (2, 1)), epochs=500, every=8, workers=(1, 2)
    )
    sizes = [line["workers"] for line in read_lines(results.folder) if line["kind"] == "report"]
    assert [size for size, _ in itertools.groupby(sizes)] == [1, 2, 1]
    reports = list(zip((report["epoch"] for report in results.best.history), sizes, strict=True))
    changed = {epoch for (epoch, size), (_, after) in itertools.pairwise(reports) if size != after}
    whole = set(range(reports[-1][0])) - changed
    assert len(whole) > 3
    for epoch in whole:
        rows = [row for shard in seen(results.best)[epoch] for row in shard]
        assert len(set(rows)) == len(rows) >= ROWS - 1, f"epoch {epoch}"


@pytest.mark.slow
def test_the_command_line_runs_a_file_that_names_its_data(tmp_path, parquet, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("space.yaml").write_text(
        f"""
space:
  model.lr: {{choice: [0.01]}}
  data.columns: {{choice: [[image, label]]}}
  data.batch_size: 32
model: tunelight.extras.digits:DigitsClassifier
data: tunelight:RayDataModule
datasets:
  train: {{parquet: {parquet["train"]["parquet"]}}}
  val: {parquet["val"]["parquet"]}
cache: true
metric: val_acc
mode: max
num_samples: 1
max_epochs: 12
scheduler: fifo
workers: 2
seed: 3
trainer_args: {{log_every_n_steps: 5}}
"""
    )
    done = CliRunner().invoke(app, ["run", "space.yaml", "--name", "s"])
    assert done.exit_code == 0, done.output
    (trial,) = tl.SweepResults.load(tmp_path / "tunelight_runs" / "s").trials
    assert trial.state == "FINISHED"
    assert trial.history[-1]["val_acc"] >= 0.95
    log = (trial.path / "log.txt").read_text()
    assert "Dataset" not in log
    assert "ray-data" not in log, "Ray Data's own lines belong into Ray's logs"


def test_bad_datasets_are_told_before_a_trial_starts(tmp_path: Path, parquet: dict[str, Any]) -> None:
    import ray

    with pytest.raises(DataError, match="'train' has 1 row, fewer than there are ranks"):
        sweep(tmp_path, datasets={"train": ray.data.range(1).materialize()})
    with pytest.raises(ResourceError, match="data_cpus=1 whole CPUs"):
        sweep(tmp_path, datasets=parquet, workers=4)


@pytest.mark.slow
def test_a_streamed_dataset_comes_in_the_same_order_again(tmp_path: Path, parquet: dict[str, Any]) -> None:
    runs = [sweep(tmp_path, name=name, datasets=parquet) for name in "ab"]
    orders = [check_epochs(run.best, 2) for run in runs]
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]
    assert runs[0].best.value == runs[1].best.value

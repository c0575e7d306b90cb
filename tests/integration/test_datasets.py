"""Ray Data on a real Ray: who sees which rows, where its tasks run, and what is left of it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from ray.tune.schedulers import TrialScheduler
from typer.testing import CliRunner

import tunelight as tl
from tests.conftest import share_holdings
from tests.integration.feeding import digits, seen, write_digits
from tunelight import messages
from tunelight.cli import app
from tunelight.errors import DataError, ResourceError
from tunelight.messages import RESULT_KEY
from tunelight.schedulers.base import GangScheduler

# Ray Data's own, of each copy that it makes of its settings.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:`{name}` is deprecated:DeprecationWarning")
    for name in ("use_push_based_shuffle", "use_polars", "use_arrow_tensor_v2")
]
ROWS = 1077


@pytest.fixture(scope="module")
def parquet(ray4: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Return the digits as ``datasets=``, with Ray Data's own actors (one of each a cluster) started."""
    import ray

    ray.data.DataContext.get_current().enable_progress_bars = False
    assert ray.data.range(2).map_batches(lambda rows: rows).materialize().count() == 2
    share_holdings()
    return write_digits(tmp_path_factory.mktemp("digits"))


def sweep(tmp_path: Path, train: Any = digits, epochs: int = 2, every: int = 0, **kwargs: Any) -> tl.SweepResults:
    settings: dict[str, Any] = {
        "metric": "acc", "mode": "max", "num_samples": 1, "workers": 2, "seed": 7, "storage": tmp_path, "name": "s",
        "scheduler": "fifo", "progress": False, "baselines": [{"lr": 0.01}],
    }  # fmt: skip
    results = tl.run({"lr": tl.loguniform(1e-3, 1e-1), "epochs": epochs, "every": every}, train, **(settings | kwargs))
    assert not results.errors, results.errors[0].error
    return results


def record(folder: Path, kind: str, key: str) -> list[Any]:
    lines = map(json.loads, (folder / "record.jsonl").read_text().splitlines())
    return [line[key] for line in lines if line["kind"] == kind]


def check_epochs(folder: Path, epochs: int, ranks: int = 2) -> dict[int, list[list[int]]]:
    """Check that each epoch gave each row to one rank, but those that equal shards have to drop."""
    found = seen(folder)
    assert sorted(found) == list(range(epochs))
    for shards in found.values():
        assert [len(rows) for rows in shards] == [ROWS // ranks] * ranks
        everything = [row for rows in shards for row in rows]
        assert len(set(everything)) == len(everything) == ROWS // ranks * ranks
    return found


def test_a_sweep_on_parquet_sees_each_row_once_an_epoch_and_learns(
    ray4: Any, tmp_path: Path, parquet: dict[str, Any]
) -> None:
    results = sweep(tmp_path, datasets=parquet, cache=True, epochs=8)
    found = check_epochs(results.best.path, 8)
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
def test_a_gang_that_is_resized_sees_whole_epochs_again_after_that_in_which_it_was(
    ray4: Any, tmp_path: Path, parquet: dict[str, Any]
) -> None:
    run = sweep(
        tmp_path, datasets=parquet, cache=True, scheduler=Resize(3, (2, 1)), epochs=500, every=8, workers=(1, 2)
    )
    sizes = record(run.folder, "report", "workers")
    assert [size for size, _ in itertools.groupby(sizes)] == [1, 2, 1]
    reports = list(zip((report["epoch"] for report in run.best.history), sizes, strict=True))
    changed = {epoch for (epoch, size), (_, after) in itertools.pairwise(reports) if size != after}
    whole = set(range(reports[-1][0])) - changed
    assert len(whole) > 3
    for epoch in whole:
        rows = [row for shard in seen(run.best.path)[epoch] for row in shard]
        assert len(set(rows)) == len(rows) >= ROWS - 1, f"epoch {epoch}"


@pytest.mark.slow
def test_the_command_line_runs_a_file_that_names_its_data(
    ray4: Any, tmp_path: Path, parquet: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_bad_datasets_are_told_before_a_trial_starts(ray4: Any, tmp_path: Path, parquet: dict[str, Any]) -> None:
    import ray

    with pytest.raises(DataError, match="'train' has 1 row, fewer than there are ranks"):
        sweep(tmp_path, datasets={"train": ray.data.range(1).materialize()})
    with pytest.raises(ResourceError, match="data_cpus=1 whole CPUs"):
        sweep(tmp_path, datasets=parquet, workers=4)


@pytest.mark.slow
def test_a_streamed_dataset_comes_in_the_same_order_again(ray4: Any, tmp_path: Path, parquet: dict[str, Any]) -> None:
    runs = [sweep(tmp_path, name=name, datasets=parquet) for name in "ab"]
    orders = [check_epochs(run.best.path, 2) for run in runs]
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]
    assert runs[0].best.value == runs[1].best.value

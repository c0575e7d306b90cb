"""What tl.run refuses before Ray starts, and leaves no folder for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
import ray
from ray import tune
from torch import nn

import tunelight as tl
from tunelight.digits import DigitsClassifier
from tunelight.errors import (
    DataError,
    ImportPathError,
    ResourceError,
    SettingsError,
    TrainFunctionError,
    TunelightError,
)
from tunelight.settings import Settings
from tunelight.space.check import check_settings


def train(config: dict[str, Any]) -> None:
    """Never run."""


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"scheduler": {"name": "asha", "grace_perid": 2}}, SettingsError, "Did you mean 'grace_period'"),
        ({"scheduler": tl.ASHA}, SettingsError, r"scheduler=ASHA is a class. Make an object of it: scheduler=ASHA\(\)"),
        ({"scheduler": tune.schedulers.ASHAScheduler}, SettingsError, "AsyncHyperBandScheduler is a class"),
        ({"scheduler": 3}, SettingsError, "scheduler must be a name"),
        (
            {"scheduler": optuna.pruners.MedianPruner()},
            SettingsError,
            "such as scheduler='asha' or",
        ),
        ({"scheduler": "pbt"}, SettingsError, "hyperparam_mutations.*scheduler='gang_pbt'"),
        ({"scheduler": "pb2"}, SettingsError, "'pb2'.*scheduler='gang_pbt'"),
        ({"scheduler": "pbt_replay"}, SettingsError, "policy_file.*'gang_pbt'"),
        ({"scheduler": "bohb"}, SettingsError, "Did you mean 'hb_bohb'"),
        ({"scheduler": "hb_bohb"}, SettingsError, "works with Ray Tune's TuneBOHB"),
        ({"scheduler": "resource_changing"}, SettingsError, "reuse_gangs=False, or.*'elastic_asha'"),
        ({"scheduler": {"name": "hyperband", "max_tt": 3}}, SettingsError, "has no 'max_tt'. Did you mean 'max_t'"),
        ({"searcher": "rando"}, SettingsError, "Did you mean 'random'"),
        ({"searcher": "optuna"}, SettingsError, "There is no searcher 'optuna'. There are: random, grid, auto, tpe"),
        ({"searcher": tl.OptunaSearcher}, SettingsError, r"searcher=OptunaSearcher is a class. Make an object"),
        ({"searcher": optuna.samplers.TPESampler}, SettingsError, r"searcher=TPESampler is a class. Make an object"),
        ({"searcher": optuna.create_study()}, SettingsError, "searcher=study.sampler"),
        ({"workers": 2, "resources_per_trial": {"extra_cpu": 3}}, SettingsError, "hold 2 together"),
        ({"resources_per_trial": {"cpu": 1, "gpu": 1}}, SettingsError, "the head trains nothing"),
        ({"storage": "s33://bucket/sweeps"}, SettingsError, "Did you mean 's3'"),
        ({"datasets": {"train": "nowhere"}}, DataError, "there is no such file or folder"),
        ({"metric": ("loss", "max")}, SettingsError, "Say metric='loss', mode='max'"),
        ({"runtime_env": {"env_var": {}}}, SettingsError, "Did you mean 'env_vars'"),
        ({"runtime_env": {"env_vars": {"A": 1}}}, SettingsError, "must be text, not int. Quote it"),
        ({"train": "train.py"}, ImportPathError, "is a file, not an import path.* 'train:train'"),
        ({"train": None, "model": nn.Linear}, TrainFunctionError, "model=Linear is no LightningModule"),
        ({"address": "127.0.0.1:1"}, ResourceError, "does not answer"),
    ],
)
def test_it_is_refused_with_a_sentence(
    tmp_path: Path, given: dict[str, Any], error: type[TunelightError], says: str
) -> None:
    settings: dict[str, Any] = {"train": train, "metric": "loss", "storage": tmp_path / "new" / "folder", **given}
    with pytest.raises(error, match=says):
        tl.run({"x": tl.uniform(0, 1)}, **settings)
    assert not ray.is_initialized()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "more", "says"),
    [
        ({"strategy": "ddp"}, {}, "strategy='ddp'.*say backend='ddp'"),
        ({"strategy": "fsdp"}, {"workers": 2}, "say backend='sharded'"),
        ({"strategy": nn.Identity()}, {"workers": 2}, "strategy=Identity.*say backend='ddp'"),
        ({"accelerator": "gpu"}, {}, "no worker holds a GPU. Say gpus_per_worker=1"),
        ({"accelerator": "tpu"}, {"gpus_per_worker": 1}, "workers train on CPUs, or with gpus_per_worker=1 on GPUs"),
        ({"accelerator": "mps"}, {"workers": 2}, "an Apple GPU trains one worker alone. Say workers=1"),
        ({"devices": 2}, {}, "devices=2.*say workers="),
        ({"num_nodes": 2}, {}, "num_nodes=2.*say workers="),
    ],
)
def test_a_trainer_that_is_told_what_its_workers_are_not(
    tmp_path: Path, args: dict[str, Any], more: dict[str, Any], says: str
) -> None:
    told: dict[str, Any] = {"model": DigitsClassifier, "metric": "loss", "storage": tmp_path / "new", **more}
    with pytest.raises(SettingsError, match=says):
        tl.run({"model.lr": tl.uniform(0, 1)}, trainer_args=args, **told)
    name, value = next(iter(args.items()))
    with pytest.raises(SettingsError, match=says):
        tl.run({"model.lr": tl.uniform(0, 1), f"trainer.{name}": tl.choice([value])}, **told)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "more"),
    [
        ({"accelerator": "cpu", "devices": 1, "num_nodes": 1}, {"workers": 2}),
        ({"accelerator": "gpu"}, {"gpus_per_worker": 1}),
        ({"accelerator": "mps"}, {"workers": 1}),
        ({"accelerator": "cuda"}, {"resources_per_trial": {"extra_gpu": 2}, "gpus_per_worker": 1}),
        ({"strategy": nn.Identity()}, {}),
    ],
)
def test_a_trainer_that_is_told_what_its_workers_are(args: dict[str, Any], more: dict[str, Any]) -> None:
    settings = Settings(model=DigitsClassifier, metric="loss", trainer_args=args, **more)
    check_settings(tl.SearchSpace({"model.lr": tl.uniform(0, 1)}), settings)


def test_a_strategy_of_tunelight_s_is_the_trainer_s_to_have() -> None:
    settings = Settings(
        model=DigitsClassifier, metric="loss", workers=2, trainer_args={"strategy": tl.RayStrategy(static_graph=True)}
    )
    check_settings(tl.SearchSpace({"model.lr": tl.uniform(0, 1)}), settings)


def test_the_place_of_a_trainer_argument_in_a_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(
        "space:\n  model.lr: 0.1\nmodel: tunelight.digits:DigitsClassifier\nmetric: loss\n"
        "trainer_args:\n  strategy: ddp\n"
    )
    with pytest.raises(SettingsError, match=r"space.yaml:6:3: The Trainer gets strategy='ddp'"):
        tl.run(file, storage=tmp_path / "new")


def test_what_is_swapped_is_told(tmp_path: Path) -> None:
    swapped: Any = tl.run
    with pytest.raises(TunelightError, match=r"search space comes first.* is 'train'. Swap them"):
        swapped(train, {"x": tl.uniform(0, 1)}, metric="loss", storage=tmp_path)


def test_a_folder_that_was_there_before_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise ConnectionError("no")

    monkeypatch.setattr(ray, "init", refuse)
    (tmp_path / "old").mkdir()
    with pytest.raises(ResourceError, match="does not answer"):
        tl.run({"x": tl.uniform(0, 1)}, train, metric="loss", storage=tmp_path / "old", address="auto")
    assert [path.name for path in tmp_path.rglob("*")] == ["old"]

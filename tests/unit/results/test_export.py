"""Trials as files: for LightningCLI and a shell, with their checkpoints beside them; and the best few."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.kit.recording import Writer
from tests.unit.results.test_results import saved
from tunelight.errors import CheckpointError, SettingsError
from tunelight.policies import FailurePolicy
from tunelight.settings.checks import plain_setting

CONFIG = {"model.lr": 1e-05, "model.hidden": 64, "data.batch_size": 32, "trainer.gradient_clip_val": 0.5}
TOLD: dict[str, Any] = {
    "model": "tunelight.extras.digits:DigitsClassifier",
    "data": "tunelight.extras.digits:DigitsData",
    "max_epochs": 8,
    "workers": 2,
    "cpus_per_worker": 1,
    "gpus_per_worker": 0,
    "backend": "ddp",
    "failures": {"max_failures": 3},
    "trainer_args": {"precision": "bf16-mixed", "logger": [{"object": "x:Y"}]},
}


def sweep(folder: Path, config: Any = None, **told: Any) -> Any:
    """Return the results of a recorded ``model=`` sweep."""
    written = Writer(folder, **{**TOLD, **told})
    written.trial(0.5, 0.2, config=CONFIG if config is None else config)
    return written.load()


def test_lightning_cli_gets_seed_model_data_and_a_trainer_with_its_workers(tmp_path):
    path = sweep(tmp_path).export_best(tmp_path / "best.yaml", "lightning-cli")
    assert "# Trial 00000 of the sweep digits: loss=0.2 at report 2." in path.read_text()
    assert "Left out, for they are objects: trainer_args logger." in path.read_text()
    assert yaml.safe_load(path.read_text()) == {
        "seed_everything": 0,
        "model": {"lr": 1e-05, "hidden": 64},
        "data": {"batch_size": 32},
        "trainer": {
            "max_epochs": 8,
            "accelerator": "cpu",
            "precision": "bf16-mixed",
            "gradient_clip_val": 0.5,
            "strategy": {"class_path": "tunelight.RayStrategy", "init_args": {"num_workers": 2}},
        },
    }


@pytest.mark.parametrize(
    ("told", "name", "arguments"),
    [
        ({"workers": [1, 4]}, "RayStrategy", {"num_workers": [1, 4]}),
        (
            {"backend": "horovod", "cpus_per_worker": 2},
            "HorovodRayStrategy",
            {"num_workers": 2, "num_cpus_per_worker": 2},
        ),
        ({"backend": "sharded", "gpus_per_worker": 1}, "RayShardedStrategy", {"num_workers": 2, "use_gpu": True}),
        (
            {"gpus_per_worker": 0.5},
            "RayStrategy",
            {"num_workers": 2, "use_gpu": True, "resources_per_worker": {"GPU": 0.5}},
        ),
        (
            {"resources_per_trial": {"cpu": 1, "extra_cpu": 2, "extra_custom_resources": {"disk": 4}}},
            "RayStrategy",
            {"num_workers": 2, "resources_per_worker": {"disk": 2.0}},
        ),
        ({"failures": {"max_failures": 5}}, "RayStrategy", {"num_workers": 2, "failures": 5}),
        ({"evaluation": "exact"}, "RayStrategy", {"num_workers": 2, "evaluation": "exact"}),
        ({"evaluation": "exact", "workers": [1, 4]}, "RayStrategy", {"num_workers": [1, 4]}),
    ],
)
def test_the_strategy_asks_for_what_trials_had(tmp_path, told, name, arguments):
    data = yaml.safe_load(sweep(tmp_path, **told).export_best(tmp_path / "b.yaml", "lightning-cli").read_text())
    assert data["trainer"]["strategy"] == {"class_path": f"tunelight.{name}", "init_args": arguments}
    assert data["trainer"].get("accelerator") == (None if told.get("gpus_per_worker") else "cpu")


def test_a_strategy_of_the_sweep_s_own_stays_and_a_nested_configuration_is_the_same(tmp_path):
    found = sweep(tmp_path, {"model": {"lr": 0.1}, "data": {"batch_size": 8}}, trainer_args={"strategy": "ddp"})
    data = yaml.safe_load(found.export_best(tmp_path / "b.yaml").read_text())
    assert (data["model"], data["data"], data["trainer"]["strategy"]) == ({"lr": 0.1}, {"batch_size": 8}, "ddp")


SCRIPT = {"model": None, "data": None, "script": "train.py", "call": {"file": "train.py", "args": ["fit"]}}
FUNCTION = {"model": None, "data": None, "train": "jobs:train"}
MODEL_KEY, KEY = {"model.lr": 0.1}, {"lr": 0.1}


@pytest.mark.parametrize(
    ("told", "config", "form", "said"),
    [
        ({}, KEY, "lightning-cli", r"key 'lr' does not say whose argument it is.*format='yaml' or 'json'"),
        ({"datasets": {"train": {"csv": "a"}}}, CONFIG, "lightning-cli", r"served datasets= .*format='yaml'"),
        (
            {"trainer_args": {"callbacks": [{"object": "x:Y"}], "logger": {"object": "x:Z"}}},
            *(CONFIG, "lightning-cli", r"trainer_args callbacks held objects.*class_path and init_args, or"),
        ),
        ({}, CONFIG, "shell", r"did not tune a script.*format='lightning-cli' or 'yaml'"),
        (FUNCTION, MODEL_KEY, "lightning-cli", r"this one has no model=.*format='yaml'"),
        (FUNCTION, KEY, "shell", r"did not tune a script.*format='yaml'"),
        (SCRIPT, MODEL_KEY, "lightning-cli", r"this one tuned a script.*format='shell' or 'yaml'"),
        *(({}, CONFIG, gone, f"no format '{gone}'.*yaml, json, lightning-cli, shell") for gone in ("hydra", "python")),
    ],
)
def test_a_format_that_cannot_describe_the_training_is_refused_by_name(tmp_path, told, config, form, said):
    with pytest.raises(SettingsError, match=said):
        sweep(tmp_path, config, **told).export_best(tmp_path / ("b.sh" if form == "shell" else "b.yaml"), form)


def of_script(folder: Path, config: Any = None, call: Any = None, **told: Any) -> Any:
    call = {"file": "train.py", "args": [], **(call or {})}
    return sweep(folder, {"lr": 0.1} if config is None else config, **{**TOLD, **SCRIPT, "call": call, **told}).best


@pytest.mark.parametrize(
    ("told", "options"),
    [
        ({}, "--workers 2"),
        ({"workers": [1, 4], "evaluation": "exact"}, "--workers 4 | --set evaluation=exact"),
        ({"gpus_per_worker": 0.5, "backend": "sharded"}, "--workers 2 --gpus 0.5 | --set backend=sharded"),
        ({"failures": {"max_failures": 0}}, """| --set 'failures={"max_failures": 0}'"""),
        ({"mode": "max"}, "--set mode=max"),
        ({"resources_per_trial": {"cpu": 1}}, """| --set 'resources_per_trial={"cpu": 1}'"""),
        (
            {"resources_per_trial": {"cpu": 1, "extra_gpu": 4}, "gpus_per_worker": 1},
            """--gpus 1 | --set 'resources_per_trial={"cpu": 1, "extra_gpu": 4}\'""",
        ),
        ({"repeats": {"folds": 5, "top": 1}}, "--workers 2"),
    ],
)
def test_the_command_says_what_the_trial_had(tmp_path, told, options):
    trial = of_script(tmp_path, **{"failures": plain_setting(FailurePolicy()), **told})
    shown = shlex.join(trial.command)
    assert shown.startswith("tunelight train train.py ")
    for option in options.split("|"):
        assert option.strip() in shown
    assert f"--seed {trial.seed}" in shown
    assert shown.count("--set") == options.count("--set") + ("metric" not in told)
    assert ("resources" in shown) is ("--workers" not in shown)
    text = trial.export(tmp_path / "best.sh").read_text()
    assert f'exec {shown} "$@"' in text
    assert ("trained on 5 folds" in text) is ("repeats" in told)
    plain = "backend" not in told
    assert (trial.plain_command is not None) is plain is ("Without tunelight: " in text)


PL, TORCHRUN = ["pytorch_lightning"], "torchrun --nproc_per_node 2 train.py"
DEVICES = {"options": [{"names": ["--devices", "-d"], "dest": "devices", "kind": "value"}], "devices": "devices"}
ENV = "env PL_GLOBAL_SEED={seed}"


@pytest.mark.parametrize(
    ("call", "plain"),
    [
        ({}, f"{TORCHRUN} --lr=0.1"),
        ({"imported": PL}, f"{ENV} PL_TRAINER_DEVICES=2 PL_TRAINER_STRATEGY=ddp {TORCHRUN} --lr=0.1"),
        ({"imported": PL, **DEVICES}, f"{ENV} {TORCHRUN} --lr=0.1 --devices=2"),
        (
            {"imported": PL, "style": "lightning", "args": ["fit"], "devices": "trainer.devices"},
            f"{ENV} {TORCHRUN} fit --lr=0.1 --trainer.devices=2",
        ),
        (
            {"imported": PL, "style": "hydra", "devices": "++trainer.devices"},
            f"{ENV} {TORCHRUN} lr=0.1 ++trainer.devices=2",
        ),
        ({"args": ["--out=${trial_dir}"]}, f"{TORCHRUN} --out=. --lr=0.1"),
        ({"imported": ["accelerate"]}, f"env ACCELERATE_USE_CPU=true {TORCHRUN} --lr=0.1"),
        ({"module": "pkg.train"}, "torchrun --nproc_per_node 2 -m pkg.train --lr=0.1"),
    ],
)
def test_the_plain_command_joins_its_ranks(tmp_path, call, plain):
    trial = of_script(tmp_path, call=call)
    assert shlex.join(trial.plain_command) == plain.format(seed=trial.seed)
    assert ("${trial_dir}" in shlex.join(trial.command)) is ("--out" in plain)


def test_a_script_that_uses_wandb_gets_its_configuration_as_keys(tmp_path):
    config = {"lr": 0.1, "net": {"act": "a,b", "sizes": [1, 2]}}
    trial = of_script(tmp_path, config, {"imported": ["wandb"], "args": ["--epochs", "3"], "style": "fire"})
    assert trial.plain_command is None
    words = trial.command[: trial.command.index("--workers")]
    assert words == ["tunelight", "train", "train.py", "lr=0.1", 'net={"act": "a,b", "sizes": [1, 2]}']
    assert trial.command[-4:] == ["--set=style=fire", "--", "--epochs", "3"]


def test_a_configuration_that_changed_on_the_way_says_so(tmp_path):
    written = Writer(tmp_path, **TOLD)
    trial = written.trial(0.5, 0.2, config=CONFIG, state="RUNNING")
    written.record.append(
        "config",
        trial=trial,
        training_iteration=1,
        parent="00009",
        parent_iteration=1,
        config={**CONFIG, "model.lr": 0.3},
    )
    path = written.load().export_best(tmp_path / "b.yaml", "lightning-cli")
    assert "changed on the way" in path.read_text()
    assert yaml.safe_load(path.read_text())["model"]["lr"] == 0.3


def test_the_checkpoint_is_copied_with_the_command_to_judge_it_and_its_weights_are_safetensors(tmp_path, monkeypatch):
    from safetensors.torch import load_file

    shared = torch.arange(6.0).reshape(2, 3)
    state = {"a": shared, "tied": shared, "t": shared.T, "count": torch.tensor(3), "extra": {"no": "tensor"}}
    found = saved(Writer(tmp_path, **TOLD), {"state_dict": state, "epoch": 1}, **CONFIG)
    path = found.export_best(tmp_path / "out" / "best.yaml", "yaml", checkpoint=True)
    assert yaml.safe_load(path.read_text())["checkpoint"] == str(tmp_path / "out" / "best.ckpt")
    assert torch.load(tmp_path / "out" / "best.ckpt")["epoch"] == 1
    assert (tmp_path / "out" / "best.safetensors").stat().st_mode == (tmp_path / "out" / "best.ckpt").stat().st_mode
    weights = load_file(tmp_path / "out" / "best.safetensors")
    assert sorted(weights) == ["a", "count", "t", "tied"]
    assert torch.equal(weights["t"], shared.T)
    assert int(weights["count"]) == 3
    monkeypatch.chdir(tmp_path)
    path = found.export_best("best.yaml", "lightning-cli", checkpoint=True)
    assert f"python train.py validate --config best.yaml --ckpt_path {tmp_path / 'best.ckpt'}" in path.read_text()


def test_a_folder_that_training_code_wrote_is_copied_as_it_is(tmp_path):
    written = Writer(tmp_path, **TOLD)
    path = written.checkpoint(written.trial(0.5, config=CONFIG), 1, 0.5)
    path.unlink(missing_ok=True)
    path.mkdir()
    (path / "model.bin").write_text("weights")
    written.load().export_best(tmp_path / "best.yaml", checkpoint=True)
    assert (tmp_path / "best.ckpt" / "model.bin").read_text() == "weights"


def test_a_checkpoint_that_would_run_code_is_not_opened(tmp_path):
    with pytest.raises(CheckpointError, match="has no checkpoint to copy"):
        sweep(tmp_path / "none").export_best(tmp_path / "b.yaml", checkpoint=True)
    with pytest.raises(CheckpointError, match="opening it would run code"):
        saved(Writer(tmp_path, **TOLD), {"state_dict": {}, "object": Writer}, **CONFIG).export_best(
            tmp_path / "b.yaml", checkpoint=True
        )


@pytest.mark.parametrize(
    ("mode", "order"), [("min", ["00002", "00000", "00003"]), ("max", ["00001", "00000", "00003"])]
)
def test_top_are_the_best_by_their_best_report(tmp_path, mode, order):
    written = Writer(tmp_path, mode=mode)
    for losses in ((0.5,), (0.9,), (0.1,), (0.5,), (), (float("nan"),)):
        written.trial(*losses)
    found = written.load()
    assert [trial.id for trial in found.top(3)] == order
    assert len(found.top(9)) == 4
    with pytest.raises(SettingsError, match="k must be a whole number"):
        found.top(0)


OBJECTS: dict[str, Any] = {
    "model.cell": [["torch.nn:GRU", "torch.nn:GRU"]],
    "model.kind": [["Kind.A", {"enum": "my.parts:Kind", "name": "A"}]],
    "model.aug": [["Aug(p=0.5)", {"dataclass": "my.parts:Aug", "fields": {"p": {"value": 0.5}}}]],
    "data.sizes": [[[1, 2], {"tuple": [{"value": 1}, {"value": 2}]}]],
}
OBJECT_CONFIG = {key: pairs[0][0] for key, pairs in OBJECTS.items()}


def test_objects_are_texts_and_references_in_yaml_and_named_in_lightning_cli_s_words(tmp_path):
    results = sweep(tmp_path, OBJECT_CONFIG, space_objects=OBJECTS)
    told = yaml.safe_load(results.export_best(tmp_path / "best.yaml", "yaml").read_text())
    assert told["config"] == OBJECT_CONFIG
    assert told["objects"] == {key: pairs[0][1] for key, pairs in OBJECTS.items()}
    cli = yaml.safe_load(results.export_best(tmp_path / "cli.yaml", "lightning-cli").read_text())
    assert cli["model"] == {"cell": "torch.nn.GRU", "kind": "A", "aug": {"p": 0.5}}
    assert cli["data"] == {"sizes": [1, 2]}


@pytest.mark.parametrize("reference", [None, "__main__:GRU", "a:b; import os", {"enum": "a:B", "name": "c()"}])
def test_an_object_that_no_module_has_is_refused(tmp_path, reference):
    results = sweep(tmp_path, {"model.cell": "GRU"}, space_objects={"model.cell": [["GRU", reference]]})
    with pytest.raises(SettingsError, match=r"model.cell is 'GRU', an object that cannot be imported"):
        results.export_best(tmp_path / "best.yaml", "lightning-cli")


def test_with_one_worker_it_needs_no_launcher_and_a_masked_secret_is_pointed_out(tmp_path):
    trial = of_script(tmp_path, call={"args": ["--store=s3://me:***@host"]}, workers=1)
    assert trial.plain_command == ["python", "train.py", "--store=s3://me:***@host", "--lr=0.1"]
    assert "A secret was masked" in trial.export(tmp_path / "best.sh").read_text()

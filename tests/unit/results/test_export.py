"""Trials as files: for LightningCLI, Hydra and Python, with their checkpoints beside them; and the best few."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.unit.results.test_results import Writer
from tunelight.errors import CheckpointError, SettingsError, StorageError
from tunelight.results import formats

CONFIG = {"model.lr": 1e-05, "model.hidden": 64, "data.batch_size": 32, "trainer.gradient_clip_val": 0.5}
TOLD: dict[str, Any] = {
    "model": "tunelight.digits:DigitsClassifier",
    "data": "tunelight.digits:DigitsData",
    "max_epochs": 8,
    "workers": 2,
    "cpus_per_worker": 1,
    "gpus_per_worker": 0,
    "backend": "ddp",
    "failures": {"max_failures": 3},
    "trainer_args": {"precision": "bf16-mixed", "callbacks": [{"object": "x:Y"}]},
}


def sweep(folder: Path, config: Any = None, **told: Any) -> Any:
    """Return the results of a recorded ``model=`` sweep."""
    written = Writer(folder, **{**TOLD, **told})
    written.trial(0.5, 0.2, config=CONFIG if config is None else config)
    return written.load()


def test_a_yaml_file_of_a_sweep_with_a_model_is_lightning_cli_s_and_of_a_train_function_plain(tmp_path):
    (tmp_path / "f").mkdir()
    assert "model" in yaml.safe_load(sweep(tmp_path).export_best(tmp_path / "best.yaml").read_text())
    plain = sweep(tmp_path / "f", model=None).export_best(tmp_path / "f" / "best.yaml")
    assert yaml.safe_load(plain.read_text())["config"] == CONFIG


def test_lightning_cli_gets_seed_model_data_and_a_trainer_with_its_workers(tmp_path):
    path = sweep(tmp_path).export_best(tmp_path / "best.yaml", "lightning-cli")
    assert "# Trial 00000 of the sweep digits: loss=0.2 at report 2." in path.read_text()
    assert "Left out, for they are objects: trainer_args callbacks." in path.read_text()
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


def test_a_strategy_of_the_sweep_s_own_stays(tmp_path):
    found = sweep(tmp_path, trainer_args={"strategy": "ddp"})
    assert yaml.safe_load(found.export_best(tmp_path / "b.yaml", "hydra").read_text())["trainer"]["strategy"] == "ddp"


def test_nested_configurations_are_the_same(tmp_path):
    found = sweep(tmp_path, {"model": {"lr": 0.1}, "data": {"batch_size": 8}})
    data = yaml.safe_load(found.export_best(tmp_path / "b.yaml", "lightning-cli").read_text())
    assert (data["model"], data["data"]) == ({"lr": 0.1}, {"batch_size": 8})


def test_keys_that_do_not_say_whose_they_are_are_refused(tmp_path):
    found = sweep(tmp_path, {"lr": 0.1}, model=None, data=None, train="a:b")
    for form in ("lightning-cli", "hydra"):
        with pytest.raises(SettingsError, match=r"key 'lr' does not say whose argument it is.*format='yaml'"):
            found.export_best(tmp_path / "b.yaml", form)


@pytest.mark.parametrize("package", ["pytorch_lightning", "lightning.pytorch"])
def test_hydra_gets_targets(tmp_path, package):
    path = sweep(tmp_path, lightning=package).export_best(tmp_path / "best.yaml", "hydra")
    assert path.read_text().startswith("# @package _global_\n")
    data = yaml.safe_load(path.read_text())
    assert data["model"] == {
        "_target_": "tunelight.digits.DigitsClassifier",
        "_convert_": "all",
        "lr": 1e-05,
        "hidden": 64,
    }
    assert data["trainer"]["_target_"] == f"{package}.Trainer"
    assert data["trainer"]["strategy"] == {"_target_": "tunelight.RayStrategy", "num_workers": 2}


def test_hydra_leaves_out_the_target_that_only_a_script_can_define(tmp_path):
    found = sweep(tmp_path, model="__main__:Model")
    assert "_target_" not in yaml.safe_load(found.export_best(tmp_path / "b.yaml", "hydra").read_text())["model"]


def calls(path: Path) -> list[str]:
    """Return the calls of a program's main(), as written."""
    main = next(node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef))
    return [ast.unparse(node) for node in main.body]


def test_a_program_trains_with_a_trainer_of_its_own(tmp_path):
    path = sweep(tmp_path).export_best(tmp_path / "best.py")
    assert "from tunelight.digits import DigitsClassifier, DigitsData\n" in path.read_text()
    assert calls(path) == [
        "pl.seed_everything(0)",
        "model = DigitsClassifier(lr=1e-05, hidden=64)",
        "data = DigitsData(batch_size=32)",
        (
            "trainer = pl.Trainer(max_epochs=8, accelerator='cpu', precision='bf16-mixed', gradient_clip_val=0.5, "
            "strategy=tl.RayStrategy(num_workers=2))"
        ),
        "trainer.fit(model, datamodule=data)",
    ]


def test_a_program_of_a_train_function_is_a_sweep_of_one_trial(tmp_path):
    found = sweep(
        tmp_path, {"lr": 0.1, "net": {"hidden": 8}}, model=None, data=None, train="jobs.main:train", workers=[1, 2]
    )
    path = found.export_best(tmp_path / "best.py", "python")
    assert "from jobs.main import train" in path.read_text()
    assert "CONFIG = {'lr': 0.1, 'net': {'hidden': 8}}" in path.read_text()
    assert "workers=(1, 2)" in calls(path)[0]


def test_a_program_spells_infinities_and_nan_as_python_does(tmp_path):
    config = {"clip": math.inf, "net": {"weights": [-math.inf, 1.0]}}
    found = sweep(tmp_path, config, model=None, data=None, train="jobs.main:train")
    tree = ast.parse(found.export_best(tmp_path / "best.py").read_text())
    (assigned,) = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    assert eval(ast.unparse(assigned)) == config


def test_a_program_cannot_import_what_a_script_defined(tmp_path):
    with pytest.raises(SettingsError, match="Move it into a module"):
        sweep(tmp_path, model="__main__:Model").export_best(tmp_path / "best.py")


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


def test_a_suffix_that_does_not_fit_the_format_is_an_error(tmp_path):
    with pytest.raises(StorageError, match=r"'lightning-cli' ends in .yaml or .yml"):
        sweep(tmp_path).export_best(tmp_path / "best.json", "lightning-cli")


# Checkpoints


def with_checkpoint(folder: Path, data: Any) -> Any:
    written = Writer(folder, **TOLD)
    trial = written.trial(0.5, config=CONFIG)
    torch.save(data, written.checkpoint(trial, 1, 0.5))
    return written.load()


def test_the_checkpoint_is_copied_and_its_weights_are_safetensors(tmp_path):
    from safetensors.torch import load_file

    shared = torch.arange(6.0).reshape(2, 3)
    state = {"a": shared, "tied": shared, "t": shared.T, "count": torch.tensor(3), "extra": {"no": "tensor"}}
    found = with_checkpoint(tmp_path, {"state_dict": state, "epoch": 1})
    path = found.export_best(tmp_path / "out" / "best.yaml", "yaml", checkpoint=True)
    assert yaml.safe_load(path.read_text())["checkpoint"] == str(tmp_path / "out" / "best.ckpt")
    assert torch.load(tmp_path / "out" / "best.ckpt")["epoch"] == 1
    assert (tmp_path / "out" / "best.safetensors").stat().st_mode == (tmp_path / "out" / "best.ckpt").stat().st_mode
    weights = load_file(tmp_path / "out" / "best.safetensors")
    assert sorted(weights) == ["a", "count", "t", "tied"]
    assert torch.equal(weights["t"], shared.T)
    assert int(weights["count"]) == 3


def test_the_command_to_judge_the_copy_is_in_the_file(tmp_path, monkeypatch):
    found = with_checkpoint(tmp_path, {"state_dict": {}})
    monkeypatch.chdir(tmp_path)
    path = found.export_best("best.yaml", "lightning-cli", checkpoint=True)
    assert f"python train.py validate --config best.yaml --ckpt_path {tmp_path / 'best.ckpt'}" in path.read_text()


def test_a_checkpoint_that_would_run_code_is_not_opened(tmp_path):
    with pytest.raises(CheckpointError, match="opening it would run code"):
        with_checkpoint(tmp_path, {"state_dict": {}, "object": Writer}).export_best(
            tmp_path / "b.yaml", checkpoint=True
        )


def test_without_a_checkpoint_there_is_nothing_to_copy(tmp_path):
    with pytest.raises(CheckpointError, match="has no checkpoint to copy"):
        sweep(tmp_path).export_best(tmp_path / "b.yaml", checkpoint=True)


# The best few


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


def test_the_best_load_their_own_models(tmp_path):
    from tunelight.digits import DigitsClassifier

    written = Writer(tmp_path, **TOLD)
    models = []
    for loss in (0.3, 0.1, 0.2):
        trial = written.trial(loss, config={"model.lr": loss})
        models.append(DigitsClassifier(lr=loss).eval())
        torch.save(
            {"state_dict": models[-1].state_dict(), "pytorch-lightning_version": "2.6.0"},
            written.checkpoint(trial, 1, loss),
        )
    images = torch.rand(4, 1, 8, 8)
    for found, model in zip(written.load().top(2), (models[1], models[2]), strict=True):
        assert torch.equal(found.load_model()(images), model(images))


OBJECTS: dict[str, Any] = {
    "model.cell": [["torch.nn:GRU", "torch.nn:GRU"]],
    "model.kind": [["Kind.A", {"enum": "my.parts:Kind", "name": "A"}]],
    "model.aug": [["Aug(p=0.5)", {"dataclass": "my.parts:Aug", "fields": {"p": {"value": 0.5}}}]],
    "data.sizes": [[[1, 2], {"tuple": [{"value": 1}, {"value": 2}]}]],
}
OBJECT_CONFIG = {key: pairs[0][0] for key, pairs in OBJECTS.items()}


def test_a_file_of_yaml_has_texts_and_references(tmp_path):
    path = sweep(tmp_path, OBJECT_CONFIG, space_objects=OBJECTS).export_best(tmp_path / "best.yaml", "yaml")
    told = yaml.safe_load(path.read_text())
    assert told["config"] == OBJECT_CONFIG
    assert told["objects"] == {key: pairs[0][1] for key, pairs in OBJECTS.items()}


def test_each_format_names_objects_in_its_own_words(tmp_path):
    results = sweep(tmp_path, OBJECT_CONFIG, space_objects=OBJECTS)
    cli = yaml.safe_load(results.export_best(tmp_path / "cli.yaml", "lightning-cli").read_text())
    assert cli["model"] == {"cell": "torch.nn.GRU", "kind": "A", "aug": {"p": 0.5}}
    assert cli["data"] == {"sizes": [1, 2]}
    hydra = yaml.safe_load(results.export_best(tmp_path / "hydra.yaml", "hydra").read_text())
    found = {"_target_": "hydra.utils.get_object"}
    assert hydra["model"]["cell"] == {**found, "path": "torch.nn.GRU"}
    assert hydra["model"]["kind"] == {**found, "path": "my.parts.Kind.A"}
    assert hydra["model"]["aug"] == {"_target_": "my.parts.Aug", "p": 0.5}
    code = results.export_best(tmp_path / "best.py").read_text()
    ast.parse(code)
    assert "import my.parts\nimport torch.nn\n" in code
    assert "cell=torch.nn.GRU, kind=my.parts.Kind.A, aug=my.parts.Aug(p=0.5))" in code
    assert "sizes=(1, 2)" in code


@pytest.mark.parametrize("reference", [None, "__main__:GRU", "a:b; import os", {"enum": "a:B", "name": "c()"}])
def test_an_object_that_no_module_has_is_refused(tmp_path, reference):
    results = sweep(tmp_path, {"model.cell": "GRU"}, space_objects={"model.cell": [["GRU", reference]]})
    with pytest.raises(SettingsError, match=r"model.cell is 'GRU', an object that cannot be imported"):
        results.export_best(tmp_path / "best.py")


def test_the_callback_of_a_wide_model_is_in_every_format(tmp_path: Path) -> None:
    def export(form: str, name: str, callbacks: list[Any]) -> str:
        where = {"trial": "00000", "sweep": {"name": "s"}, "seed": 1, "checkpoint": None}
        found = {"metric": "loss", "value": 0.5, "training_iteration": 1}
        facts = {"config": {"model.lr": 0.1}, "wider": {"parameters": {"w": {"adam": 0.5}}}, **where, **found}
        told = {"model": "tunelight.digits:DigitsClassifier", "trainer_args": {"callbacks": callbacks}}
        write = {"lightning-cli": formats.lightning_cli, "hydra": formats.hydra, "python": formats.python}[form]
        return write(facts, told, name)

    own = {"class_path": "x.Y"}
    cli = yaml.safe_load(export("lightning-cli", "a.yaml", [own]))["trainer"]["callbacks"]
    wanted = {"parameters": {"w": {"adam": 0.5}}}
    assert cli == [own, {"class_path": "tunelight.WiderModel", "init_args": wanted}]
    hydra = yaml.safe_load(export("hydra", "a.yaml", []))["trainer"]["callbacks"]
    assert hydra == [{"_target_": "tunelight.WiderModel", "_convert_": "all", **wanted}]
    assert "callbacks=[tl.WiderModel(parameters={'w': {'adam': 0.5}})]" in export("python", "a.py", [])


@pytest.mark.parametrize("kept", [{"parameters": {"w": {"adam": 0.5}}}, None])
def test_the_scales_of_a_wide_model_come_from_its_checkpoint_and_not_from_code_of_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Any
) -> None:
    (tmp_path / "theirs.py").write_text("raise SystemExit('this was run')")
    monkeypatch.syspath_prepend(tmp_path)
    written = Writer(tmp_path, **{**TOLD, "model": "theirs:Model", "base_width": {"model.hidden": 8}})
    trial = written.trial(0.5, config=CONFIG)
    with pytest.raises(
        CheckpointError, match="the scales, which are in checkpoints, and cannot be read from one, for it"
    ):
        written.load().export_best(tmp_path / "best.yaml")
    path = written.checkpoint(trial, 1, 0.5)
    torch.save({"state_dict": {}, "callbacks": {} if kept is None else {"WiderModel": kept}}, path)
    wider = {"class_path": "tunelight.WiderModel", "init_args": kept}
    trainer = yaml.safe_load(written.load().export_best(tmp_path / "best.yaml").read_text())["trainer"]
    assert (wider in trainer.get("callbacks", [])) is (kept is not None)

"""Work with one package of Lightning, the same with either; prints the losses as JSON.

python -m tests.integration.both FOLDER NAME [OTHER], where with OTHER it goes on from what the other package left
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import tunelight as tl
from tunelight.compat.lightning import FABRIC
from tunelight.record import read_sweep_file

QUIET: dict[str, Any] = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
SWEEP: dict[str, Any] = {
    "metric": "val_loss", "num_samples": 3, "seed": 5, "workers": 2, "max_epochs": 2, "scheduler": "fifo",
    "progress": False, "max_concurrent": 1,
}  # fmt: skip


def _train(pl: Any, config: dict[str, Any]) -> None:
    from tunelight.digits import DigitsClassifier, DigitsData

    report = tl.TuneReportCheckpointCallback({"val_loss": "val_loss"})
    trainer = pl.Trainer(max_epochs=2, strategy=tl.RayStrategy(), callbacks=[report], **QUIET)
    trainer.fit(DigitsClassifier(config["lr"], hidden=16), datamodule=DigitsData())


def train_ours(config: dict[str, Any]) -> None:
    """Train with the one package."""
    import pytorch_lightning as pl

    _train(pl, config)


def train_other(config: dict[str, Any]) -> None:
    """Train with the other one."""
    import lightning.pytorch as pl

    _train(pl, config)


def losses(results: tl.SweepResults) -> list[list[float]]:
    """Return what each trial of a sweep has reported."""
    assert not results.errors, results.errors
    return [[report["val_loss"] for report in trial.history] for trial in results.trials]


def found_out(name: str, folder: Path) -> list[list[float]]:
    """Run a sweep whose code alone tells the package."""
    train = dict(zip(FABRIC, (train_ours, train_other), strict=True))[name]
    return losses(tl.run({"lr": tl.loguniform(1e-3, 1e-1)}, train, storage=folder, name=f"found-{name}", **SWEEP))


def chosen(name: str, folder: Path) -> dict[str, Any]:
    """Run, resume, export and fit with a package that is chosen."""
    tl.use(name)
    from tunelight.digits import DigitsClassifier, DigitsData

    space = {"model.lr": tl.loguniform(1e-3, 1e-1), "model.hidden": tl.choice([16, 32])}
    args: dict[str, Any] = {"trainer_args": QUIET, "storage": folder, "name": name}
    first = tl.run(space, model=DigitsClassifier, data=DigitsData, **args, **SWEEP)
    assert read_sweep_file(first.folder)["lightning"] == name
    results = tl.resume(first.folder, num_samples=4, progress=False)
    best = results.best.load_model()
    assert isinstance(best, import_module(name).LightningModule)
    file = results.export_best(folder / f"{name}.yaml", "lightning-cli")
    cli = import_module(f"{name}.cli").LightningCLI(
        DigitsClassifier,
        DigitsData,
        args=["fit", f"--config={file}", f"--trainer.default_root_dir={folder / name / 'cli'}"],
    )
    fit = trainer(name, folder, 2)
    model, data = DigitsClassifier(0.02, hidden=16), DigitsData()
    fit.fit(model, datamodule=data)
    fitted = float(fit.callback_metrics["val_loss"])
    (tested,) = fit.test(model, datamodule=data, verbose=False)
    fit.save_checkpoint(folder / f"{name}.ckpt")
    return {
        "sweep": losses(first),
        "resumed": losses(results),
        "winner": float(sum(value.double().sum() for value in best.state_dict().values())),
        "exported": float(cli.trainer.callback_metrics["val_loss"]),
        "fit": fitted,
        "tested": tested["test_loss"],
    }


def trainer(name: str, folder: Path, epochs: int) -> Any:
    """Return a Trainer of a package, without a sweep."""
    import_module(name).seed_everything(3, verbose=False)
    return import_module(name).Trainer(
        max_epochs=epochs, strategy=tl.RayStrategy(num_workers=2), logger=False, enable_checkpointing=False,
        default_root_dir=folder, **QUIET,
    )  # fmt: skip


def gone_on(name: str, other: str, folder: Path) -> dict[str, Any]:
    """Go on with a package from the checkpoint of ``other``, and load the winner of its sweep."""
    tl.use(name)
    from tunelight.digits import DigitsClassifier, DigitsData

    fit = trainer(name, folder, 4)
    fit.fit(DigitsClassifier(0.02, hidden=16), datamodule=DigitsData(), ckpt_path=folder / f"{other}.ckpt")
    loaded = tl.SweepResults.load(folder / other).best.load_model()
    assert isinstance(loaded, import_module(name).LightningModule)
    return {
        "steps": fit.global_step,
        "fit": float(fit.callback_metrics["val_loss"]),
        "winner": float(sum(value.double().sum() for value in loaded.state_dict().values())),
    }


def main(folder: str, name: str, *other: str) -> None:
    """Do it all."""
    sys.argv = ["both.py"]  # LightningCLI warns of arguments that it is not given
    told = gone_on(name, *other, Path(folder)) if other else {
        "found out": found_out(name, Path(folder)), "chosen": chosen(name, Path(folder))
    }  # fmt: skip
    sys.stdout.write("\n" + json.dumps(told) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

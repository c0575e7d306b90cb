"""What pages of the documentation leave out: names that their blocks use, by the prelude that a comment names.

Each is called in the empty folder that the page's code runs in, once, and may write there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import tunelight as tl
from tunelight.space.files import folder

YAML: Final = {
    "constrained": """\
space:
  model.hidden: {choice: [64, 128]}
  model.layers: {randint: [1, 40]}
  model.heads: {choice: [4, 8]}
  model.optimizer: {choice: [sgd, adam]}
  model.lr: {loguniform: [1e-4, 1e-1]}
""",
    "fed": """\
space:
  model.lr: {loguniform: [1e-4, 1e-1]}
model: tunelight.extras.digits:DigitsClassifier
data: tunelight:RayDataModule
metric: val_loss
""",
}
"""What stands above a piece of YAML in its file."""
YAML_KINDS: Final = ("lightning-cli", "wandb")
"""What YAML may be, if it is no search space."""


def _train(config: dict[str, Any]) -> None:
    """Train a few epochs on the digits; report val_loss, and a latency that the model's size stands for."""
    from tunelight.compat.lightning import pl
    from tunelight.extras.digits import DigitsClassifier, DigitsData

    class Sized(DigitsClassifier):
        def on_validation_epoch_end(self) -> None:
            self.log("latency", float(sum(one.numel() for one in self.parameters())), sync_dist=True)

    trainer = pl.Trainer(
        max_epochs=6,
        accelerator="cpu",
        strategy=tl.RayStrategy(),
        callbacks=[tl.TuneReportCheckpointCallback({"val_loss": "val_loss", "latency": "latency"})],
    )
    trainer.fit(Sized(**config), datamodule=DigitsData())


def digits() -> dict[str, Any]:
    """A space and a train function, with tunelight imported."""
    return {"tl": tl, "space": {"lr": tl.loguniform(1e-3, 1e-1), "hidden": tl.choice([16, 32])}, "train": _train}


def parts() -> dict[str, Any]:
    """A space and the parts of a `model=` sweep."""
    from tunelight.extras.digits import DigitsClassifier, DigitsData

    space = {"model.lr": tl.loguniform(1e-3, 1e-1)}
    return {"tl": tl, "space": space, "Model": DigitsClassifier, "Data": DigitsData}


def earlier() -> dict[str, Any]:
    """Two finished sweeps."""
    for name in ("first", "second"):
        tl.run(digits()["space"], _train, metric="val_loss", num_samples=1, name=name)
    return {}


def recorded() -> dict[str, Any]:
    """A finished sweep under the name that a page uses."""
    tl.run(digits()["space"], _train, metric="val_loss", num_samples=2, name="train-20261121-155932")
    return {}


def own_file() -> dict[str, Any]:
    """A search space's file."""
    path = Path("path", "of", "your_own.yaml")
    path.parent.mkdir(parents=True)
    path.write_text((folder() / "digits_mlp.yaml").read_text())
    return {}


PRELUDES: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    made.__name__: made for made in (digits, parts, earlier, recorded, own_file)
}

"""Predict a property of molecules with chemprop: a sweep, the best of its models, and a fit without a sweep.

pip install -e . -r examples/packages/chemprop/requirements.txt
python examples/packages/chemprop/molecules.py

The molecules are generated, and the property is RDKit's estimate of their solubility in octanol (logP): nothing is
downloaded.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import argparse
import itertools
from typing import Any

import numpy as np
import torch
from chemprop import data, models, nn
from lightning import pytorch as pl
from rdkit import Chem
from rdkit.Chem.Crippen import MolLogP
from torch.utils.data import DataLoader

import tunelight as tl

SCAFFOLDS = [
    "c1c({})cc({})cc1", "C1CC({})CC({})C1", "c1c({})nc({})cc1", "O=C(N{})C{}", "C({})OCC{}", "c1cc2c({})cc({})cc2[nH]1"
]  # fmt: skip
GROUPS = ["C", "CC", "C(C)C", "O", "OC", "N", "N(C)C", "F", "Cl", "Br", "C(=O)O", "C#N", "CO", "S(=O)(=O)C", "C(F)(F)F"]


def molecules() -> list[data.MoleculeDatapoint]:
    """Return the molecules of all scaffolds with two groups each, and the property of each."""
    smiles = {scaffold.format(*pair) for scaffold in SCAFFOLDS for pair in itertools.product(GROUPS, repeat=2)}
    found = []
    for text in sorted(smiles):
        molecule = Chem.MolFromSmiles(text)
        found.append(data.MoleculeDatapoint(mol=molecule, y=np.array([MolLogP(molecule)]), name=text))
    return found


def loaders() -> tuple[list[DataLoader[Any]], nn.UnscaleTransform]:
    """Return batches for training, validation and test, and what turns scaled predictions back."""
    points = molecules()
    order = np.random.default_rng(0).permutation(len(points))
    shuffled = [points[index] for index in order]
    train, val, test = (data.MoleculeDataset(part) for part in (shuffled[:-200], shuffled[-200:-100], shuffled[-100:]))
    scaler = train.normalize_targets()
    val.normalize_targets(scaler)  # not test: predictions are turned back
    return (
        [data.build_dataloader(part, shuffle=part is train) for part in (train, val, test)],
        nn.UnscaleTransform.from_standard_scaler(scaler),
    )


def model(config: dict[str, Any], unscale: nn.UnscaleTransform) -> models.MPNN:
    """Return chemprop's message-passing network of a configuration."""
    messages = nn.BondMessagePassing(d_h=config["hidden"], depth=config["depth"], dropout=config["dropout"])
    head = nn.RegressionFFN(
        input_dim=messages.output_dim, hidden_dim=config["hidden"], n_layers=config["layers"], output_transform=unscale
    )
    return models.MPNN(
        messages, nn.NormAggregation(), head, batch_norm=False, metrics=[nn.metrics.RMSE()], max_lr=config["lr"]
    )


QUIET: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


def train(config: dict[str, Any]) -> None:
    """Train one configuration; runs on both workers of a trial."""
    (batches, val, _), unscale = loaders()
    trainer = pl.Trainer(
        max_epochs=8, accelerator="cpu", strategy=tl.RayStrategy(), **QUIET,
        callbacks=[tl.TuneReportCheckpointCallback({"val_loss": "val_loss"})],
    )  # fmt: skip
    trainer.fit(model(config, unscale), batches, val)


def main() -> None:
    """Run the sweep, ask its best model, then train its configuration for longer without a sweep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", default="runs")
    args = parser.parse_args()

    space = {
        "lr": tl.loguniform(3e-4, 1e-2),
        "hidden": tl.choice([32, 64, 128]),
        "depth": tl.choice([2, 3, 4]),
        "layers": tl.choice([1, 2]),
        "dropout": tl.uniform(0, 0.2),
    }
    results = tl.run(space, train, metric="val_loss", num_samples=8, workers=2, seed=1, storage=args.storage)
    print(results.dataframe().to_string())
    print(f"Best: {results.best_config}")

    # The winner, in this process.
    (batches, val, test), unscale = loaders()
    known = torch.tensor(test.dataset.Y).squeeze()
    winner = results.best.load_model(models.MPNN, weights_only=False)  # the checkpoint holds chemprop's metrics, too
    alone = pl.Trainer(accelerator="cpu", **QUIET)
    print(f"The winner's error on {len(known)} test molecules: {error(alone.predict(winner, test), known):.3f}")

    # Its configuration on two workers, without a sweep.
    pl.seed_everything(1)
    with tl.RayStrategy(num_workers=2) as strategy:
        trainer = pl.Trainer(max_epochs=24, accelerator="cpu", strategy=strategy, enable_checkpointing=False, **QUIET)
        longer = model(results.best_config, unscale)
        trainer.fit(longer, batches, val)
        print(f"Trained for longer: {error(trainer.predict(longer, test), known):.3f}")
    print(f"The mean of all: {(known - known.mean()).abs().mean():.3f}")


def error(predicted: Any, known: torch.Tensor) -> float:
    """Return the mean absolute error of predictions, a list with one tensor for each batch."""
    return float((torch.cat(predicted).squeeze() - known).abs().mean())


if __name__ == "__main__":
    main()

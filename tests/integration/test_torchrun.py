"""The same training by torchrun and by a driver's strategies: dropout, DataLoader workers, three epochs, one seed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tunelight as tl
from tunelight.compat.lightning import pl
from tunelight.digits import DigitsClassifier, DigitsData

ROOT = Path(__file__).parents[2]
KINDS = {tl.RayStrategy: 0.0, tl.RayShardedStrategy: 1e-5, tl.HorovodRayStrategy: 1e-5}
"""How far weights may lie apart; DDP's not at all."""


def train(strategy: Any, **settings: Any) -> tuple[pl.Trainer, DigitsClassifier]:
    """Train as both sides do."""
    pl.seed_everything(7, workers=True)
    model = DigitsClassifier(lr=2e-2, hidden=64, dropout=0.2)
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        strategy=strategy,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    trainer.fit(model, datamodule=DigitsData(num_workers=2))
    return trainer, model


def main(path: str) -> None:
    """Train under torchrun by Lightning's own DDP, and leave the weights."""
    torch.set_num_threads(1)
    trainer, model = train("ddp", devices=2)
    if trainer.is_global_zero:
        torch.save(model.state_dict(), path)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("torchrun") / "weights.pt"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [*command, "-m", "tests.integration.test_torchrun", str(path)], check=True, cwd=ROOT, timeout=100,
        capture_output=True,
    )  # fmt: skip
    return torch.load(path, weights_only=True)


@pytest.mark.usefixtures("warm_gangs")
@pytest.mark.parametrize(
    "kind",
    [tl.RayStrategy, *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind is not tl.RayStrategy)],
)
def test_weights_are_those_of_torchrun(kind: Any, reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")  # put back afterwards, for seed_everything does not
    _, model = train(kind(num_workers=2))
    furthest = max(float((value - reference[name]).abs().max()) for name, value in model.state_dict().items())
    assert furthest <= KINDS[kind]


if __name__ == "__main__":
    main(sys.argv[1])

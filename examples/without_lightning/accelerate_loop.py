"""A loop of Hugging Face's Accelerate on a gang, as torchrun would start it. 8 trials of two workers.

pip install -r examples/without_lightning/requirements.txt
python examples/without_lightning/accelerate_loop.py
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from accelerate import (
    Accelerator,
    DataLoaderConfiguration,
)
from torch.utils.data import DataLoader, TensorDataset

import tunelight as tl

EPOCHS = 8


def waves(points: int, seed: int) -> TensorDataset:
    """Return float32 inputs of shape (points, 4), and targets of shape (points, 1)."""
    x = torch.randn(points, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x.sin().sum(1, keepdim=True))


def train(config: dict[str, Any]) -> None:
    """Train one configuration. Runs on every worker of the trial's gang."""
    accelerator = Accelerator(
        gradient_accumulation_steps=config["accumulate"],
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),  # the same order after a restart
    )
    net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=config["lr"])
    loader, judge = DataLoader(waves(2048, seed=0), batch_size=32, shuffle=True), DataLoader(waves(256, 1), 64)
    model, optimizer, loader, judge = accelerator.prepare(net, optimizer, loader, judge)
    first = 0
    if path := tl.get_checkpoint_path():  # a folder: model, optimizer, random generators of every rank
        accelerator.load_state(path)
        first = tl.get_context().number  # a report is an epoch here

    for epoch in range(first, EPOCHS):
        loader.set_epoch(epoch)
        model.train()
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            found = [accelerator.gather_for_metrics((model(inputs), targets)) for inputs, targets in judge]
        predicted, wanted = (torch.cat(part) for part in zip(*found, strict=True))
        loss = torch.nn.functional.mse_loss(predicted, wanted)
        tl.report({"loss": loss, "epoch": epoch}, checkpoint=accelerator.save_state)
    accelerator.end_training()  # destroys the process group: the gang meets again for its next trial


def main() -> None:
    """Run the sweep and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-samples", type=int, default=8, help="number of trials")
    parser.add_argument("--storage", default="runs", help="parent of the sweep's folder")
    args = parser.parse_args()
    space = {"lr": tl.loguniform(1e-4, 1e-1), "accumulate": tl.choice([1, 4])}
    results = tl.run(
        space, train, metric="loss", num_samples=args.num_samples, scheduler="asha", max_epochs=EPOCHS, workers=2,
        seed=7, storage=args.storage,
    )  # fmt: skip
    print(f"Best configuration: {results.best_config}")


if __name__ == "__main__":
    main()

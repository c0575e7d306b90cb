"""Lightning Fabric on a gang, as torchrun would start it. 8 trials of two workers.

python examples/without_lightning/fabric_loop.py
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from lightning_fabric import Fabric  # or: from lightning.fabric import Fabric
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import tunelight as tl

EPOCHS = 8


def blobs(points: int, seed: int) -> TensorDataset:
    """Return points around four centres, float32 of shape (points, 8), and the centre of each, int64."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    label = torch.randint(4, (points,), generator=generator)
    return TensorDataset(centres[label] + torch.randn(points, 8, generator=generator), label)


def train(config: dict[str, Any]) -> None:
    """Train one configuration. Runs on every worker of the trial's gang."""
    me = tl.get_context()
    nodes = me.world_size // me.local_world_size
    kind = "cpu" if me.gpu is None else "cuda"
    fabric = Fabric(accelerator=kind, strategy="ddp", devices=me.local_world_size, num_nodes=nodes)
    fabric.launch()  # starts nothing: it finds the gang
    hidden = config["hidden"]
    net = torch.nn.Sequential(torch.nn.Linear(8, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 4))
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=config["lr"], momentum=0.9))
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "epoch": -1}
    if path := tl.get_checkpoint_path():
        fabric.load(path, state)

    # Fabric's own loaders count epochs from 0 in each process, and would shuffle as in the first epoch after a restart.
    data = blobs(1024, seed=1)
    sampler: Any = DistributedSampler(data, fabric.world_size, fabric.global_rank, seed=0)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    judge: Any = fabric.setup_dataloaders(DataLoader(blobs(256, seed=2), batch_size=64))
    for epoch in range(state["epoch"] + 1, EPOCHS):
        sampler.set_epoch(epoch)
        for batch in loader:
            inputs, labels = fabric.to_device(batch)
            optimizer.zero_grad()
            fabric.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
        with torch.no_grad():
            losses = [torch.nn.functional.cross_entropy(model(inputs), labels) for inputs, labels in judge]
        loss: Any = fabric.all_reduce(torch.stack(losses).mean(), reduce_op="mean")
        state["epoch"] = epoch
        tl.report({"loss": loss, "epoch": epoch}, checkpoint=lambda path: fabric.save(path, state))


def main() -> None:
    """Run the sweep and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-samples", type=int, default=8, help="number of trials")
    parser.add_argument("--storage", default="runs", help="parent of the sweep's folder")
    args = parser.parse_args()
    space = {"lr": tl.loguniform(1e-4, 1e-1), "hidden": tl.choice([16, 64])}
    results = tl.run(
        space, train, metric="loss", num_samples=args.num_samples, scheduler="asha", max_epochs=EPOCHS, workers=2,
        seed=7, storage=args.storage,
    )  # fmt: skip
    print(f"Best configuration: {results.best_config}")


if __name__ == "__main__":
    main()

"""A plain DDP loop under ASHA: the gang's process group is there, tl.report does the rest. 8 trials of two workers.

python examples/without_lightning/ddp_loop.py
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import tunelight as tl

EPOCHS = 8


def spiral(points: int, seed: int) -> TensorDataset:
    """Return points of the plane, float32 of shape (points, 2), and which of two spirals each lies on, int64."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(2, (points,), generator=generator)
    turn = 6 * torch.rand(points, generator=generator)
    angle = turn + torch.pi * label
    x = torch.stack([turn * angle.cos(), turn * angle.sin()], 1) / 3
    return TensorDataset(x + 0.05 * torch.randn(points, 2, generator=generator), label)


def train(config: dict[str, Any]) -> None:
    """Train one configuration. Runs on every worker of the trial's gang."""
    me = tl.get_context()
    device = torch.device("cpu" if me.gpu is None else f"cuda:{me.gpu}")
    hidden = config["hidden"]
    net = torch.nn.Sequential(
        torch.nn.Linear(2, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, hidden), torch.nn.Tanh(),
        torch.nn.Linear(hidden, 2),
    ).to(device)  # fmt: skip
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    first = 0
    if path := tl.get_checkpoint_path():  # this trial was paused, or lost a worker
        state = torch.load(path, map_location=device)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1

    data, judge = spiral(2048, seed=0), spiral(512, seed=1)
    sampler: DistributedSampler[Any] = DistributedSampler(data, me.world_size, me.rank)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    x, y = (part.to(device) for part in judge.tensors)
    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device)).backward()
            optimizer.step()
        with torch.no_grad():  # each rank judges its share
            mine = slice(me.rank, None, me.world_size)
            loss = torch.nn.functional.cross_entropy(net(x[mine]), y[mine], reduction="sum")
        dist.all_reduce(loss)

        def save(path: str, epoch: int = epoch) -> None:
            if me.rank == 0:
                torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, path)

        tl.report({"loss": loss / len(judge), "epoch": epoch}, checkpoint=save)  # on every rank; it may end here


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

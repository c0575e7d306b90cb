"""A training loop for torchrun, without Lightning.

torchrun --nproc_per_node 2 torchrun_loop.py --lr 0.1
tl.run({"lr": tl.loguniform(1e-3, 0.3)}, script="torchrun_loop.py", args=["--epochs", "4"],
       metric="val_loss", workers=2)
"""

import argparse
import os

import torch
import torch.distributed as dist
from model import network, points
from torch.nn.parallel import DistributedDataParallel

import tunelight as tl


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(1)
    net = network(32, dropout=0.0)
    model = DistributedDataParallel(net) if size > 1 else net
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    x, y = (part[rank::size] for part in points(512, seed=0).tensors)
    test_x, test_y = points(128, seed=1).tensors
    for epoch in range(args.epochs):
        for i in range(0, len(x), 32):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x[i : i + 32]), y[i : i + 32]).backward()
            optimizer.step()
        with torch.no_grad():
            loss = torch.nn.functional.mse_loss(net(test_x), test_y).item()
        if rank == 0:
            print(f"epoch {epoch}: val_loss {loss:.6f}")
        tl.report({"val_loss": loss, "epoch": epoch})  # does nothing outside of a sweep
    if dist.is_initialized():
        del model  # freed after its group, it now and then waits for it
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

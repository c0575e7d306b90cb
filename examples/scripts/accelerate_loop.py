"""A training loop with Accelerate, on as many processes as there are.

python accelerate_loop.py --lr 0.1
torchrun --nproc_per_node 2 accelerate_loop.py --lr 0.1
tl.run({"lr": tl.loguniform(1e-3, 0.3)}, script="accelerate_loop.py", args=["--epochs", "4"],
       metric="val_loss", workers=2)
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from model import network, points
from torch.utils.data import DataLoader

import tunelight as tl


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    set_seed(1)
    accelerator = Accelerator(cpu=True)
    net = network(32, dropout=0.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)
    loader = DataLoader(points(512, seed=0), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    test_x, test_y = points(128, seed=1).tensors
    for epoch in range(args.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
            optimizer.step()
        with torch.no_grad():
            loss = torch.nn.functional.mse_loss(model(test_x), test_y).item()
        accelerator.print(f"epoch {epoch}: val_loss {loss:.6f}")
        tl.report({"val_loss": loss, "epoch": epoch})  # does nothing outside of a sweep


if __name__ == "__main__":
    main()

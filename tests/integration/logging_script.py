"""A script that logs its loss on rank 0 with a tracker or for TensorBoard, and knows nothing of tunelight."""

import argparse
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--way", choices=["wandb", "mlflow", "accelerate", "config", "tensorboard"])
parser.add_argument("--store", default="sqlite:///runs.db")
args = parser.parse_args()
run: Any = None
torch.manual_seed(1)
x = torch.randn(16, 4)
if args.way == "accelerate":
    from accelerate import Accelerator

    accelerator = Accelerator(log_with="wandb", cpu=True)
    accelerator.init_trackers("demo")
    first = accelerator.is_main_process
else:
    dist.init_process_group("gloo")
    first = dist.get_rank() == 0
if args.way in ("wandb", "config"):
    import wandb  # type: ignore[import-not-found,unused-ignore]

    run = wandb.init(project="demo") if first else None
if args.way == "config":
    args.lr = run.config["lr"] if run else args.lr  # the trial's configuration, or a KeyError
if args.way == "mlflow":
    import mlflow  # type: ignore[import-not-found,unused-ignore]

    if first:
        mlflow.set_tracking_uri(args.store)
        mlflow.start_run()
if args.way == "tensorboard":
    from torch.utils.tensorboard import SummaryWriter

    run = SummaryWriter() if first else None
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for epoch in range(4):
    for _ in range(3):
        optimizer.zero_grad()
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        optimizer.step()
    if args.way == "accelerate":
        accelerator.log({"val_loss": loss.item(), "lr": args.lr}, step=epoch)
    elif first and args.way == "mlflow":
        mlflow.log_metrics({"val_loss": loss.item(), "lr": args.lr}, step=epoch)
    elif run and args.way == "tensorboard":
        run.add_scalar("train", epoch, epoch)
        run.add_scalar("val_loss", loss, epoch)
        sys.stdout.write(f"val_loss {loss.item()}\n")
    elif run:
        run.log({"val_loss": loss.item(), "lr": args.lr})
if args.way == "accelerate":
    accelerator.end_training()
sys.stdout.write("reached the end\n")

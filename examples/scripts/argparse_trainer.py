"""A Trainer with an argparse command line.

python argparse_trainer.py --lr 0.1
torchrun --nproc_per_node 2 argparse_trainer.py --lr 0.1 --devices 2
tl.run({"lr": tl.loguniform(1e-3, 0.3)}, script="argparse_trainer.py", args=["--epochs", "4"],
       metric="val_loss", workers=2)
"""

import argparse

import pytorch_lightning as pl
from model import Data, Model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--no-dropout", action="store_true")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--devices", type=int, default=1)
    args = parser.parse_args()
    pl.seed_everything(1)
    trainer = pl.Trainer(max_epochs=args.epochs, accelerator="cpu", strategy="ddp", devices=args.devices)
    trainer.fit(Model(args.lr, args.hidden, 0.0 if args.no_dropout else 0.1), datamodule=Data())


if __name__ == "__main__":
    main()

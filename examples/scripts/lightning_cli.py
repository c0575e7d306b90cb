"""LightningCLI.

python lightning_cli.py fit --model.lr 0.1 --trainer.max_epochs 4
tl.run({"model.lr": tl.loguniform(1e-3, 0.3)}, script="lightning_cli.py", args=["fit", "--trainer.max_epochs=4"],
       metric="val_loss", workers=2)
"""

from model import Data, Model
from pytorch_lightning.cli import LightningCLI

if __name__ == "__main__":
    LightningCLI(Model, Data, seed_everything_default=1, trainer_defaults={"accelerator": "cpu"})

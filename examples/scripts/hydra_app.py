"""A Hydra app, whose config names the classes.

python hydra_app.py model.lr=0.1
tl.run({"model.lr": tl.loguniform(1e-3, 0.3)}, script="hydra_app.py", args=["trainer.max_epochs=4"],
       metric="val_loss", workers=2)
"""

import hydra
import pytorch_lightning as pl


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    pl.seed_everything(cfg.seed)
    model = hydra.utils.instantiate(cfg.model)
    trainer = hydra.utils.instantiate(cfg.trainer)
    trainer.fit(model, datamodule=hydra.utils.instantiate(cfg.data))


if __name__ == "__main__":
    main()

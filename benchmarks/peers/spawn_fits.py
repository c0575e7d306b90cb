"""Row e: Lightning's own ddp_spawn, which starts two new processes for every fit."""

from __future__ import annotations

import argparse

from fits import Fits, run_fits, timed


def fit_all(job: Fits, _: argparse.Namespace) -> None:
    """Run every fit from this process."""
    from models import build
    from pytorch_lightning.strategies import DDPStrategy

    for index in range(len(job.fits)):
        strategy = DDPStrategy(start_method="spawn", process_group_backend="gloo")
        trainer, model = build(job, index, strategy=strategy, devices=job.ranks)
        with timed(job, index):
            trainer.fit(model)


if __name__ == "__main__":
    run_fits(fit_all)

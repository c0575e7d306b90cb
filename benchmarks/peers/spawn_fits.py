"""Row e: Lightning's own ddp_spawn, which starts two new processes for every fit."""

from __future__ import annotations

import argparse

from fits import Fits, run_fits, timed
from workload import ATTEMPTS


def fit_all(job: Fits, _: argparse.Namespace) -> None:
    """Run every fit from this process."""
    from models import build
    from pytorch_lightning.strategies import DDPStrategy
    from torch.multiprocessing import ProcessExitedException

    for index in range(len(job.fits)):
        for attempt in range(1, ATTEMPTS + 1):
            strategy = DDPStrategy(start_method="spawn", process_group_backend="gloo")
            trainer, model = build(job, index, strategy=strategy, devices=job.ranks)
            try:
                with timed(job, index):
                    trainer.fit(model)
                break
            except ProcessExitedException:  # gloo now and then aborts one of two ranks that exit
                if attempt == ATTEMPTS:
                    raise


if __name__ == "__main__":
    run_fits(fit_all)

"""Row d: Optuna around Lightning's own ddp_spawn, which starts two new processes for every trial."""

from __future__ import annotations

import argparse
from typing import Any

import optuna
from workload import ATTEMPTS, Job, run_peer, train_one


def study(job: Job, _: argparse.Namespace) -> None:
    """Run the configurations as one study, one trial at a time."""
    from pytorch_lightning.strategies import DDPStrategy
    from torch.multiprocessing import ProcessExitedException

    hidden = sorted({config["hidden"] for config in job.configs})

    def objective(trial: optuna.Trial) -> float:
        config: dict[str, Any] = {
            "index": trial.suggest_int("index", 0, len(job.configs) - 1),
            "lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True),
            "hidden": trial.suggest_categorical("hidden", hidden),
        }
        for attempt in range(ATTEMPTS):
            strategy = DDPStrategy(start_method="spawn", process_group_backend="gloo")
            try:
                trainer = train_one(job, config, strategy=strategy, devices=job.ranks)
                return float(trainer.callback_metrics["val_loss"])
            except ProcessExitedException as error:  # gloo now and then aborts one of two ranks that exit
                print(f"trial {config['index']}, attempt {attempt + 1}: {error}")
        raise RuntimeError(f"trial {config['index']} failed {ATTEMPTS} times")

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = optuna.create_study(direction="minimize", sampler=optuna.samplers.RandomSampler(seed=7))
    for config in job.configs:
        search.enqueue_trial(config)
    search.optimize(objective, n_trials=len(job.configs))


if __name__ == "__main__":
    run_peer(study)

"""Rows b and c of pbt.py: Ray's PopulationBasedTraining over the same gangs, in plain Ray Tune."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pbt_data import INTERVAL, RATES, SPACE, Population
from pbt_parts import run_population
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

import tunelight as tl


def run(job: Population, args: argparse.Namespace) -> None:
    """Train both members at once; ``--way warm`` lets Tune re-use a trial's actor, and so its gang."""

    def train(config: dict[str, Any]) -> None:
        from pbt_parts import train_member

        train_member(job, config, int(tl.get_context().trial_id.rsplit("_", 1)[-1]))

    class Noted(PopulationBasedTraining):
        def _exploit(self, tune_controller: Any, trial: Any, trial_to_clone: Any) -> None:
            job.decided()
            super()._exploit(tune_controller, trial, trial_to_clone)

    import ray

    ray.init(address="local", num_cpus=2 * job.ranks, include_dashboard=False, log_to_driver=False)
    tuner = tune.Tuner(
        tl.gang_trainable(train, workers=job.ranks, metric="loss"),
        param_space={"lr": tune.grid_search(list(RATES))},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            reuse_actors=args.way == "warm",
            scheduler=Noted(
                perturbation_interval=INTERVAL,
                hyperparam_mutations={"lr": tune.loguniform(*SPACE)},
                require_attrs=True,
            ),
        ),
        run_config=tune.RunConfig(storage_path=str(Path(job.folder) / "storage"), name="pbt", verbose=0),
    )
    if errors := tuner.fit().errors:
        raise RuntimeError(str(errors[0]))


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--way", choices=["warm", "cold"], required=True)
    run_population(run, options)

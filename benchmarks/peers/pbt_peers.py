"""The rows of pbt.py: GangPBT in a sweep, and Ray's PopulationBasedTraining over the same gangs, in plain Ray Tune."""

from __future__ import annotations

from typing import Any

from jobs import local_ray, run_ways
from population import INTERVAL, RATES, SPACE, Population
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

import tunelight as tl


def gang(job: Population, _: str) -> None:
    """Train both members at once; weights go from gang to gang through memory."""

    def train(config: dict[str, Any]) -> None:
        from population import train_member

        train_member(job, config, tl.get_context().trial_id)

    class Noted(tl.GangPBT):
        def _exploit(self, *args: Any) -> None:
            job.decided()
            super()._exploit(*args)

    with local_ray(2 * job.ranks, include_dashboard=False):
        results = tl.run(
            {"lr": tl.loguniform(*SPACE)},
            train,
            metric="loss",
            num_samples=2,
            baselines=[{"lr": rate} for rate in RATES],
            workers=job.ranks,
            storage=job.storage,
            name="pbt",
            seed=7,
            scheduler=Noted(perturbation_interval=INTERVAL, max_t=job.reports),
            progress=False,
        )
    for trial in results.trials:
        if trial.state != "FINISHED":
            raise RuntimeError(f"a member ended {trial.state}: {trial.error}")


def rays(job: Population, way: str) -> None:
    """Train both members at once; ``warm`` lets Tune re-use a trial's actor, and so its gang."""

    def train(config: dict[str, Any]) -> None:
        from population import train_member

        train_member(job, config, tl.get_context().trial_id)

    class Noted(PopulationBasedTraining):
        def _exploit(self, tune_controller: Any, trial: Any, trial_to_clone: Any) -> None:
            job.decided()
            super()._exploit(tune_controller, trial, trial_to_clone)

    pbt = Noted(
        perturbation_interval=INTERVAL, hyperparam_mutations={"lr": tune.loguniform(*SPACE)}, require_attrs=True
    )
    with local_ray(2 * job.ranks, include_dashboard=False):
        tuner = tune.Tuner(
            tl.gang_trainable(train, workers=job.ranks, metric="loss"),
            param_space={"lr": tune.grid_search(list(RATES))},
            tune_config=tune.TuneConfig(metric="loss", mode="min", reuse_actors=way == "warm", scheduler=pbt),
            run_config=tune.RunConfig(storage_path=job.storage, name="pbt", verbose=0),
        )
        if errors := tuner.fit().errors:
            raise RuntimeError(str(errors[0]))


if __name__ == "__main__":
    run_ways(Population, {"gang": gang, "cold": rays, "warm": rays})

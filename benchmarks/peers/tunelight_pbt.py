"""Row a of pbt.py: GangPBT in a sweep."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pbt_data import INTERVAL, RATES, SPACE, Population
from pbt_parts import run_population

import tunelight as tl


def run(job: Population, _: argparse.Namespace) -> None:
    """Train both members at once."""

    def train(config: dict[str, Any]) -> None:
        from pbt_parts import train_member

        train_member(job, config, int(tl.get_context().trial_id))

    class Noted(tl.GangPBT):
        def _exploit(self, *args: Any) -> None:
            job.decided()
            super()._exploit(*args)

    import ray

    ray.init(address="local", num_cpus=2 * job.ranks, include_dashboard=False, log_to_driver=False)
    results = tl.run(
        {"lr": tl.loguniform(*SPACE)},
        train,
        metric="loss",
        num_samples=2,
        baselines=[{"lr": rate} for rate in RATES],
        scheduler=Noted(perturbation_interval=INTERVAL, max_t=job.reports),
        workers=job.ranks,
        storage=str(Path(job.folder) / "storage"),
        name="pbt",
        seed=7,
        progress=False,
    )
    for trial in results.trials:
        if trial.state != "FINISHED":
            raise RuntimeError(f"a member ended {trial.state}: {trial.error}")


if __name__ == "__main__":
    run_population(run, argparse.ArgumentParser())

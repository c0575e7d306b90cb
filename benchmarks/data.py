"""Measure what feeding a gang from Ray Data costs, and what caching a dataset saves.

The first table is images a second into 2 ranks, by torch's DataLoader, by RayDataModule, and by plain iteration over
Ray Data's own streaming_split; the images (3 x 32 x 32, uint8) are in memory or in Ray's object store. The ranks begin
each pass together, and the slower one counts. The second is a sweep whose preprocessing takes as much processor time
as its training, half of an epoch's: done by each trial in each epoch, and done once, with cache=True. Ray has 4
logical CPUs: 2 for the trial's workers, 2 for preprocessing.

    python benchmarks/data.py               # 20,000 images, 10 trials: about 5 minutes on 2 cores
    python benchmarks/data.py --only feed --repeats 7
    python benchmarks/data.py --short       # 4,000 images, 2 trials: does it still run? Judges nothing.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures import headline, median, spread, table
from jobs import local_ray
from measure import options

PARTS = ("feed", "cache")
BATCH = 128
LEAST_FEED, LEAST_CACHE = 0.95, 1.4
SPIN_S = 0.05
"""Processor seconds of a batch's training, on each rank, and of its preprocessing."""
EPOCHS, BATCHES = 4, 16
"""Of a trial of the second table; batches of each rank."""


def spin(seconds: float) -> None:
    """Use the processor for so many seconds of its time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))


# --- images a second --------------------------------------------------------------------------------------


def feeding(images: int, repeats: int, plain: list[Any]) -> Callable[[dict[str, Any]], None]:
    """Return a train function that reads all images by each way in turn, and reports images a second."""

    def train(_: dict[str, Any]) -> None:
        import torch
        from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

        import tunelight as tl

        place = tl.get_context()
        held = TensorDataset(torch.zeros(images, 3, 32, 32, dtype=torch.uint8), torch.zeros(images, dtype=torch.int64))
        sampler: Any = DistributedSampler(held, place.world_size, place.rank)
        shards = tl.RayDataModule(batch_size=BATCH, columns=("image", "label"), local_shuffle_buffer_size=0)
        streamed: Any = shards.train_dataloader()
        ways: dict[str, Callable[[], Any]] = {
            "DataLoader": lambda: DataLoader(held, BATCH, sampler=sampler),
            "RayDataModule": lambda: streamed,
            "plain": lambda: plain[place.rank].iter_torch_batches(batch_size=BATCH, device="cpu"),
        }
        for number in range(repeats + 1):
            rates = {}
            streamed.set_epoch(number)
            for name, way in ways.items():
                torch.distributed.barrier()
                begin = time.perf_counter()
                seen = sum(len(batch["label"] if isinstance(batch, dict) else batch[1]) for batch in way())
                took = torch.tensor([time.perf_counter() - begin])
                torch.distributed.all_reduce(took, torch.distributed.ReduceOp.MAX)
                rates[name] = seen * place.world_size / float(took)
            if number:  # the first pass starts actors
                tl.report(rates)

    return train


def feed(images: int, repeats: int, folder: Path) -> list[dict[str, float]]:
    """Return images a second by each way, for each repeat."""
    import numpy as np
    import ray

    import tunelight as tl

    dataset = ray.data.range(images, override_num_blocks=16).map_batches(
        lambda rows: {"image": np.zeros((len(rows["id"]), 3, 32, 32), np.uint8), "label": rows["id"]}
    )
    dataset = dataset.materialize()
    results = tl.run(
        {"x": tl.uniform(0, 1)}, feeding(images, repeats, dataset.streaming_split(2, equal=True)),
        datasets={"train": dataset}, data_cpus=2, workers=2, num_samples=1, scheduler="fifo", metric="RayDataModule",
        mode="max", storage=folder, name="feed", progress=False,
    )  # fmt: skip
    _check(results)
    return [
        {name: report[name] for name in ("DataLoader", "RayDataModule", "plain")} for report in results.best.history
    ]


# --- a dataset that is preprocessed once ------------------------------------------------------------------


def prepared(rows: dict[str, Any]) -> dict[str, Any]:
    """Preprocess one batch: images of its row numbers."""
    import numpy as np

    spin(SPIN_S)
    return {"image": np.zeros((len(rows["id"]), 3, 32, 32), np.uint8)}


def trained(config: dict[str, Any]) -> None:
    """Train one trial on the sweep's dataset: each batch takes its time."""
    import tunelight as tl

    data = tl.RayDataModule(batch_size=BATCH, local_shuffle_buffer_size=0)
    loader: Any = data.train_dataloader()
    for epoch in range(config["epochs"]):
        loader.set_epoch(epoch)
        batches = 0
        for _ in loader:
            spin(SPIN_S)
            batches += 1
        tl.report({"loss": 1.0, "batches": batches})


def sweep(trials: int, epochs: int, folder: Path, cache: bool) -> float:
    """Return the seconds that a sweep takes."""
    import ray

    import tunelight as tl

    rows = 2 * BATCHES * BATCH
    source = ray.data.range(rows, override_num_blocks=16)
    work: Any = prepared
    dataset = source.map_batches(work, batch_size=BATCH)
    name = "cached" if cache else "each trial"
    begin = time.perf_counter()
    results = tl.run(
        {"x": tl.uniform(0, 1), "epochs": epochs}, trained, datasets={"train": dataset}, cache=cache, data_cpus=2,
        workers=2, num_samples=trials, scheduler="fifo", metric="loss", storage=folder, name=name, progress=False,
    )  # fmt: skip
    took = time.perf_counter() - begin
    _check(results)
    if any(report["batches"] != BATCHES for trial in results.trials for report in trial.history):
        raise RuntimeError(f"a rank of the sweep {name!r} did not see {BATCHES} batches an epoch")
    return took


def _check(results: Any) -> None:
    for trial in results.errors:
        raise RuntimeError(f"trial {trial.id} failed: {trial.error}")


# --- tables -----------------------------------------------------------------------------------------------


def show_feed(images: int, repeats: int, folder: Path) -> bool:
    """Print the first table; return whether its target is met."""
    reports = feed(images, repeats, folder)
    rates = {name: median(one[name] for one in reports) for name in reports[0]}
    titles = {"plain": "Ray Data's streaming_split, plain", "DataLoader": "torch's DataLoader, no worker processes"}
    print(f"\n{images:,} images into 2 ranks, batches of {BATCH}; medians of {repeats} passes\n")
    rows = [[titles.get(name, name), f"{rate:,.0f}", f"{rate / rates['plain']:.2f}"] for name, rate in rates.items()]
    print(table(["loader", "images a second", "of plain"], rows) + "\n")
    ratios = [one["RayDataModule"] / one["plain"] for one in reports]
    what = "images a second into 2 ranks, RayDataModule / Ray Data's streaming_split"
    return headline(what, median(ratios), of=spread(ratios), least=LEAST_FEED)


def show_cache(trials: int, epochs: int, folder: Path) -> bool:
    """Print the second table; return whether its target is met."""
    took = {cache: sweep(trials, epochs, folder, cache) for cache in (False, True)}
    print(f"\n{trials} trials of {epochs} epochs, 2 ranks; preprocessing is half of an epoch's processor time\n")
    print(table(["", "the sweep"], [[f"cache={cache}", f"{seconds:.1f} s"] for cache, seconds in took.items()]) + "\n")
    of = f"{took[False]:.1f} and {took[True]:.1f} s"
    what = f"{trials} trials whose dataset is preprocessed, without cache=True / with"
    return headline(what, took[False] / took[True], of=of, least=LEAST_CACHE)


def main() -> int:
    """Print the tables, and return the exit status: 1 where a target is missed."""
    args = options(__doc__, "4,000 images, 2 trials; nothing is judged", rows=PARTS, repeats=5)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    met = []
    with (
        local_ray(4, include_dashboard=False, logging_level=logging.ERROR),
        tempfile.TemporaryDirectory() as scratch,
    ):
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        if "feed" in args.only:
            images, repeats = (4000, 2) if args.short else (20_000, args.repeats)
            met.append(show_feed(images, repeats, Path(scratch)))
        if "cache" in args.only:
            trials, epochs = (2, 1) if args.short else (10, EPOCHS)
            met.append(show_cache(trials, epochs, Path(scratch)))
    return 0 if args.short or all(met) else 1


if __name__ == "__main__":
    sys.exit(main())

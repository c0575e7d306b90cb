"""How near the fastest setting `tunelight tune-up` comes, in what part of the time that measuring every setting takes.

Three trainings: an MLP, a vision transformer, and the MLP with images that wait for a disk (0.4 ms each). The whole
grid of 12 settings is measured as the truth, in three passes of a second for each: workers and threads, and DataLoader
workers. The search has a tenth of the grid's time at most.

    python benchmarks/tune_up.py            # about 6 minutes on 2 cores
    python benchmarks/tune_up.py --only mlp
    python benchmarks/tune_up.py --short    # a few settings of the MLP, for a moment each
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from typing import Any

from figures import headline, table
from measure import options

SECONDS, PASSES = 3.0, 3
SHARE, NEAR = 0.1, 0.95
BUDGET = 0.095
"""Of the grid's time; the last measurement may take longer than it was expected to."""
BATCH = 128
VIT = {"model.patch": 2, "model.hidden": 32, "model.heads": 2, "model.layers": 2, "model.mlp": 64, "model.size": 8}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mlp": ("DigitsClassifier", "Images", {"model.hidden": 512}),
    "vit": ("VisionTransformer", "Images", {**VIT, "model.channels": 1, "model.weight_decay": 0.01}),
    "slow": ("DigitsClassifier", "SlowImages", {"model.hidden": 512}),
}
TRIED = {"workers": [1, 2], "cpus": None, "loaders": [0, 1, 2, 4]}


def space_of(name: str, **settings: Any) -> Any:
    """Return the sweep of a training."""
    import tuned_models

    import tunelight as tl

    model, data, fixed = MODELS[name]
    space = {"model.lr": tl.loguniform(1e-4, 1e-2), **fixed, "data.batch_size": BATCH // 2}
    code = {"model": getattr(tuned_models, model), "data": getattr(tuned_models, data)}
    return tl.SearchSpace(
        {key: value if key == "model.lr" else tl.choice([value]) for key, value in space.items()},
        **code, metric="val_loss", seed=1, progress=False,
        checkpoints=None, **{"workers": 2, "max_epochs": 4, **settings},
    )  # fmt: skip


def measured(bench: Any, settings: list[Any], passes: int) -> dict[Any, float]:
    """Return the steps a second of every setting, over some passes: others may use the machine in one of them."""
    figures: dict[Any, Any] = {}
    for _ in range(passes):
        for setting in settings:
            again = bench.measure(setting, SECONDS / PASSES)
            figures[setting] = figures[setting] + again if setting in figures else again
    return {setting: found.speed for setting, found in figures.items()}


def searched(name: str, *, short: bool) -> tuple[list[str], bool]:
    """Return a row on the search for a training's fastest setting, and whether it is near and soon enough."""
    from tunelight.extras.tuneup.search import Search
    from tunelight.extras.tuneup.tune_up import benched
    from tunelight.settings import Settings

    space, tried = space_of(name), {**TRIED, "loaders": [0]} if short else TRIED
    with benched(space, Settings(**space.settings), tried) as (bench, choices, _):
        began = time.monotonic()
        truth = measured(bench, choices.all(), 1 if short else PASSES)
        grid_s = time.monotonic() - began
        bench.close()  # the search starts its own gangs
        search = Search(bench.measure, choices, 3.0 if short else BUDGET * grid_s)
        search.run()
        search_s = time.monotonic() - search.began
    best = max(truth, key=truth.__getitem__)
    reached = truth[search.fastest] / truth[best]
    tries = max(1, int(SHARE * len(truth)))
    draws = random.Random(0)
    luck = statistics.median(max(draws.sample(list(truth.values()), tries)) / truth[best] for _ in range(1000))
    print(
        f"{name}: best of the grid: {best}; found: {search.fastest} ({truth[search.fastest]:.4g} of "
        f"{truth[best]:.4g} steps/s)",
        flush=True,
    )
    before = truth[choices.start(choices.gangs[0])] / truth[best]
    of = f"{len(search.measured)} of {len(truth)} settings measured; {luck:.2f} at random, {before:.2f} before"
    near = headline(f"{name}: speed of the setting found / of the best one", reached, of=of, least=NEAR)
    soon = headline(f"{name}: time of the search / of measuring all settings", search_s / grid_s, most=SHARE)
    row = [
        name, str(len(truth)), f"{grid_s:.0f} s", str(len(search.measured)), f"{search_s:.1f} s",
        f"{search_s / grid_s:.1%}", f"{reached:.1%}", f"{luck:.1%}", f"{before:.1%}",
    ]  # fmt: skip
    return row, near and soon


def main() -> int:
    """Measure, and print a table."""
    args = options(__doc__, "a few settings of the MLP, for a moment each", rows=tuple(MODELS), few=("mlp",))
    import tunelight as tl

    rows, good = [], []
    with tl.ready():
        for name in args.only:
            row, near = searched(name, short=args.short)
            rows.append(row)
            good.append(near)
    columns = ["training", "grid", "its time", "measured", "time", "share", "speed / best", "at random", "before"]
    print(f"\n{table(columns, rows)}\n")
    return 0 if args.short or all(good) else 1


if __name__ == "__main__":
    sys.exit(main())

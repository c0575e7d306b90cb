"""As many gangs at once as fit, each on its own bundles, all or nothing."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import tunelight as tl
from tests.kit.sweeps import run


def where(config: dict[str, Any]) -> None:
    import re

    import ray

    context = tl.get_context()
    worker: Any = ray._private.worker.global_worker
    held = worker.core_worker.resource_ids()  # CPU_group_<bundle>_<placement group>
    (name,) = [key for key in held if re.fullmatch(r"CPU_group_\d+_\w+", key)]
    Path(context.trial_dir, f"rank-{context.rank}.txt").write_text(name)
    for number in range(3):
        time.sleep(0.2)
        tl.report({"loss": number})


class Sampler:
    """Looks at Ray's placement groups all the time."""

    def __init__(self) -> None:
        self.most = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        import ray

        while not self._end.is_set():
            held = [g for g in ray.util.placement_group_table().values() if g["state"] == "CREATED"]
            self.most = max(self.most, len([g for g in held if len(g["bundles"]) == 2]))
            time.sleep(0.02)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def test_three_cpus_hold_one_gang_at_once_and_nothing_deadlocks(ray4: Any, tmp_path: Path) -> None:
    blocker = ray4.util.placement_group([{"CPU": 1}])
    ray4.get(blocker.ready())
    try:
        with Sampler() as sampler:
            results = run({"x": tl.uniform(0, 1)}, where, tmp_path, 12)
    finally:
        ray4.util.remove_placement_group(blocker)
    assert results.counts["FINISHED"] == 12, [trial.error for trial in results.errors][:1]
    assert sampler.most == 1
    for trial in results.trials:
        names = [(trial.path / f"rank-{rank}.txt").read_text().split("_") for rank in range(2)]
        assert len({name[3] for name in names}) == 1  # both ranks on the trial's one reservation
        assert [name[2] for name in names] == ["0", "1"]  # and each on the bundle of its own index

"""tl.cached on live gangs: a load is carried out once a node, and lies there once, whoever asks for it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests.kit.sweeps import run


def keeping(config: dict[str, Any]) -> None:
    """Load some sizes; write down where they lie, and what this worker holds then."""
    import os
    import secrets

    import torch

    from tunelight.extras.data.cached import _kept

    place = tl.get_context()

    @tl.cached
    def load(folder: str, size: int) -> dict[str, Any]:
        Path(folder, f"{size}-{secrets.token_hex(4)}").touch()
        return {"x": torch.arange(size)}

    for size in json.loads(config["sizes"]):
        got = load(config["folder"], size)["x"]
        got += place.rank  # a rank's own copy of the pages that it writes to
        assert int(got.sum()) == size * (size - 1) // 2 + size * place.rank
        assert int(load(config["folder"], size)["x"][0]) == 0
    (*_, file) = _kept.values()
    told = os.fstat(file.fileno()).st_ino
    Path(place.trial_dir, f"kept-{place.rank}.json").write_text(json.dumps(told))
    tl.report({"loss": 0.0})


def sweep(tmp_path: Path, sizes: list[list[int]]) -> list[list[int]]:
    """Run a trial for each list of sizes; return the file in memory in which each one's ranks have the last."""
    told = [json.dumps(one) for one in sizes]
    space = {"sizes": tl.choice(sorted(set(told))), "folder": str(tmp_path)}
    results = run(space, keeping, tmp_path / "runs", [{"sizes": one} for one in told])
    assert not results.errors, results.errors[0].error
    return [[json.loads((trial.path / f"kept-{rank}.json").read_text()) for rank in (0, 1)] for trial in results.trials]


def loads(tmp_path: Path) -> dict[int, int]:
    return Counter(int(path.name.partition("-")[0]) for path in tmp_path.iterdir() if path.is_file())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_workers_of_a_node_share_one_load_in_memory(ray4: Any, tmp_path: Path) -> None:
    told = sweep(tmp_path, [[1000], [1000], [2000], [1000]])  # two gangs at once
    assert loads(tmp_path) == {1000: 1, 2000: 1}
    first, second, other, last = map(set, told)
    assert first == second == last
    assert len(first) == len(other) == 1
    assert first != other

"""tl.cached on live gangs: a load is carried out once a node, and lies there once, whoever asks for it."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests.kit.sweeps import run


def keeping(config: dict[str, Any]) -> None:
    """Load a tensor; write down in which file in memory this worker has it."""
    import secrets

    import torch

    from tunelight.extras.data.cached import _kept

    place, size = tl.get_context(), config["size"]

    @tl.cached
    def load(folder: str, size: int) -> Any:
        Path(folder, f"{size}-{secrets.token_hex(4)}").touch()
        return torch.arange(size)

    got = load(config["folder"], size)
    got += place.rank  # a rank's own copy of the pages that it writes to
    assert int(got.sum()) == size * (size - 1) // 2 + size * place.rank
    assert int(load(config["folder"], size)[0]) == 0
    (*_, file) = _kept.values()
    Path(place.trial_dir, f"kept-{place.rank}").write_text(str(os.fstat(file.fileno()).st_ino))
    tl.report({"loss": 0.0})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_workers_of_a_node_share_one_load_in_memory(ray4: Any, tmp_path: Path) -> None:
    space = {"size": tl.choice([1000, 2000]), "folder": str(tmp_path)}
    configs = [{"size": size} for size in (1000, 1000, 2000, 1000)]  # on two gangs at once
    results = run(space, keeping, tmp_path / "runs", configs)
    assert not results.errors, results.errors[0].error
    assert Counter(path.name.partition("-")[0] for path in tmp_path.glob("?000-*")) == {"1000": 1, "2000": 1}
    files = [{(trial.path / f"kept-{rank}").read_text() for rank in (0, 1)} for trial in results.trials]
    first, second, other, last = files
    assert first == second == last
    assert len(first) == len(other) == 1
    assert first != other

"""Each checkpoint that is there is whole, and holds the training of its report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.world.checks import Ended
from tests.world.ranks import saved_in
from tunelight.checkpoints import files


def wrong(ended: Ended) -> Iterator[str]:
    for trial in (one for one in ended.trials.values() if not ended.may_go_back(one)):
        reports = {report["training_iteration"]: report["state"] for report in trial.history}
        late = ended.world.suffered("the store is")  # so slow that a request arrives after others have deleted it
        for companion in sorted((ended.folder / trial.folder / files.FOLDER).glob("report-*.json")):
            if not companion.with_suffix(".ckpt").exists() and not late:
                yield f"{trial.id}: {companion.name} tells of a checkpoint that is not there"
        for info in files.find(ended.folder / trial.folder):
            name, state = Path(info.path).name, reports.get(info.number)
            if not files.is_valid(info):
                yield f"{trial.id}: {name} is not what its checksum says"
            elif not info.between and state not in (None, saved_in(Path(info.path))["state"]):
                yield f"{trial.id}: {name} is another training than report {info.number}"

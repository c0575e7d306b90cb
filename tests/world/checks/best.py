"""The best result is the best of the reports, and its checkpoint is that of its report."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tests.world.checks import Ended
from tests.world.ranks import saved_in
from tunelight.checkpoints import files


def wrong(ended: Ended) -> Iterator[str]:
    if ended.state.repetitions:
        return  # it is the best mean then
    losses = {
        (report["loss"], trial.id, report["training_iteration"]): report
        for trial in ended.trials.values()
        if not trial.failed and trial.repeats in (None, trial.id)
        for report in trial.history
        if math.isfinite(report["loss"])
    }
    if not losses:
        return
    least = min(losses)
    best = ended.results.best
    if best.metrics["loss"] != least[0]:
        yield f"the best loss is {least}, and results.best says {best.metrics['loss']}"
    elif best.checkpoint is not None and best.checkpoint.name[:13] == files.file_name(least[2])[:13]:
        if saved_in(best.checkpoint)["state"] != losses[least]["state"]:
            yield f"the checkpoint {best.checkpoint.name} of the best trial is another training than its report"
    elif not ended.stopped and not ended.storage_failed and "checkpoints" not in ended.world.settings:
        yield f"the best trial {best.id} has the checkpoint {best.checkpoint}, not that of report {least[2]}"

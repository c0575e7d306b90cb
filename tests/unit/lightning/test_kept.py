"""What a trial's fits keep: errors of hooks are told from those of the storage, and what is best or last is written."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tests.unit.lightning.test_restarts import Net, Trial, loader, trainer, trial

__all__ = ["trial"]


@pytest.mark.filterwarnings("ignore:It is recommended to use")  # the tests' process group is none of this Trainer's
@pytest.mark.parametrize("strategy", ["ray", "auto"])
def test_an_error_of_the_user_s_hook_is_no_failure_of_the_storage(trial: Trial, strategy: str) -> None:
    class Reads(Net):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", None if strategy == "ray" else "/elsewhere")

    def train() -> None:
        given: dict[str, Any] = {} if strategy == "ray" else {"strategy": strategy}
        trainer(2, **given).fit(Reads(), loader(), loader())

    assert isinstance(trial(train).error, OSError)

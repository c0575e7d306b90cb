"""A trial's head, made, reset and restored by Ray Tune's own methods; only the Ray below them is missing."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ray.train._internal.checkpoint_manager import _TrainingResult
from ray.train._internal.storage import StorageContext
from ray.tune import Checkpoint, Trainable
from ray.tune.experiment import Trial
from ray.tune.experiment.trial import _TrialInfo
from ray.tune.result import TRIAL_INFO

from tests.kit.fakes import FakeGang
from tunelight.checkpoints import policy
from tunelight.trial import trainable
from tunelight.trial.trainable import GangTrainable


class Storage(StorageContext):
    """Tune's paths for one trial; working directories lie beside the storage, for there is no Ray session."""

    @property
    def trial_working_directory(self) -> str:
        return str(Path(self.storage_fs_path, "working_dirs", str(self.trial_dir_name)))


class Heads:
    """Makes heads of trials in one storage folder, and gives them further trials, as Tune's controller does."""

    def __init__(self, storage: Path) -> None:
        self.storage = storage
        self.made: list[Any] = []
        self.passed: dict[str, dict[str, Any]] = {}
        """What a driver gives the heads of a trial: ``heard``, ``repetition``, ``root``."""

    def folder(self, trial_id: str = "00000") -> Path:
        """Return a trial's folder, which exists."""
        folder = self.storage / "sweep" / f"trial_{trial_id}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def make(self, cls: type[GangTrainable], config: dict[str, Any], trial_id: str = "00000") -> GangTrainable:
        """Start a head for a trial."""
        with warnings.catch_warnings():  # Ray's own, of its loggers; gone from 2.60 on
            warnings.filterwarnings("ignore", "(?s).*UnifiedLogger", DeprecationWarning)
            told = self._told(config, trial_id)
            head = cls(told, storage=self._storage_of(trial_id), **self._logs(trial_id))
        self.made.append(head)
        return head

    def reset(self, head: Any, config: dict[str, Any], trial_id: str = "00000") -> None:
        """Give a head another trial."""
        storage = self._storage_of(trial_id)
        assert head.reset(self._told(config, trial_id), storage=storage, **self._logs(trial_id)) is True

    @staticmethod
    def train(head: Any) -> dict[str, Any]:
        """Return a head's next result, with what Tune adds to it; the first one of a list."""
        results = head.train()
        result: dict[str, Any] = results[0] if isinstance(results, list) else results
        return result

    @staticmethod
    def restore(head: GangTrainable, pointer: Path, number: int = 1, **metrics: Any) -> None:
        """Have a head's trial go on from a checkpoint of Tune's, of report ``number``."""
        told = {"training_iteration": number, **metrics}
        head.restore(_TrainingResult(Checkpoint.from_directory(pointer), told))

    def _logs(self, trial_id: str) -> dict[str, Any]:
        """Return what the controller passes of loggers: one that writes nothing, in Rays whose heads still log."""
        if "logger_creator" not in inspect.signature(Trainable.reset).parameters:
            return {}
        from ray.tune.execution import tune_controller

        creator: Any = vars(tune_controller)["_noop_logger_creator"]
        return {"logger_creator": partial(creator, logdir=self._storage_of(trial_id).trial_working_directory)}

    def _told(self, config: dict[str, Any], trial_id: str) -> dict[str, Any]:
        trial = Trial("stub", stub=True, trial_id=trial_id, storage=self._storage_of(trial_id))
        return {**config, TRIAL_INFO: _TrialInfo(trial)}

    def _storage_of(self, trial_id: str) -> Storage:
        storage = Storage(self.storage, "sweep", trial_dir_name=self.folder(trial_id).name)
        storage.tunelight = self.passed.get(trial_id, {})  # type: ignore[attr-defined]
        return storage


@contextmanager
def heads_in(storage: Path, patch: pytest.MonkeyPatch) -> Iterator[Heads]:
    """Make heads whose gangs are threads of this process; end them."""
    patch.setattr(trainable, "Gang", FakeGang)
    patch.setattr(policy, "FREE_S", 600.0)  # on a busy machine some checkpoints would be left out
    patch.setattr("ray.util.get_current_placement_group", lambda: None)
    patch.setenv("RAY_CHDIR_TO_TRIAL_DIR", "0")
    patch.setenv("TUNE_ORIG_WORKING_DIR", os.getcwd())  # noqa: PTH109 - as Tune does, to be undone
    heads = Heads(storage)
    try:
        yield heads
    finally:
        for head in heads.made:
            head.stop()

"""tunelight: hyperparameter search over distributed PyTorch Lightning training, on Ray Tune."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tunelight import errors

__version__ = "0.3.0"

_WHERE = {
    name: f"tunelight.{module}"
    for module, names in {
        "cluster.local": "ready shutdown",
        "compat.lightning": "use",
        "extras.data.cached": "cached",
        "extras.data.module": "RayDataModule",
        "extras.data.shards": "get_dataset_shard",
        "extras.horovod.strategy": "HorovodRayStrategy",
        "extras.optuna": "OptunaSearcher",
        "extras.sharded": "RayShardedStrategy",
        "lightning.callbacks": "TuneReportCallback TuneReportCheckpointCallback",
        "lightning.strategies": "RayStrategy",
        "policies": "FailurePolicy",
        "results": "SweepResults TrialResult",
        "schedulers": "ASHA ElasticASHA GangPBT",
        "session.session": "get_checkpoint_path get_context report",
        "settings": "Checkpoints",
        "settings.values": "Folds",
        "extras.plan": "Plan plan",
        "space": "SearchSpace choice grid grid_search lograndint loguniform ordinal qlograndint qloguniform qrandint "
        "qrandn quniform randint randn sample_from uniform",
        "extras.attach": "attach",
        "extras.reproduce": "reproduce",
        "sweep.resume": "resume",
        "sweep.run": "run",
        "extras.plain_tune": "gang_trainable get_tune_resources",
        "extras.tuneup.tune_up": "tune_up",
    }.items()
    for name in names.split()
}
"""Where each public name lies."""

__all__ = ["errors", *_WHERE]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from ray.tune import (
        choice,
        grid_search,
        lograndint,
        loguniform,
        qlograndint,
        qloguniform,
        qrandint,
        qrandn,
        quniform,
        randint,
        randn,
        sample_from,
        uniform,
    )  # fmt: skip  # isort: skip
    from ray.tune import grid_search as grid

    from tunelight.cluster.local import ready, shutdown
    from tunelight.compat.lightning import use
    from tunelight.extras.attach import attach
    from tunelight.extras.data.cached import cached
    from tunelight.extras.data.module import RayDataModule
    from tunelight.extras.data.shards import get_dataset_shard
    from tunelight.extras.horovod.strategy import HorovodRayStrategy
    from tunelight.extras.optuna import OptunaSearcher
    from tunelight.extras.plain_tune import gang_trainable, get_tune_resources
    from tunelight.extras.plan import Plan, plan
    from tunelight.extras.reproduce import reproduce
    from tunelight.extras.sharded import RayShardedStrategy
    from tunelight.extras.tuneup.tune_up import tune_up
    from tunelight.lightning.callbacks import TuneReportCallback, TuneReportCheckpointCallback
    from tunelight.lightning.strategies import RayStrategy
    from tunelight.policies import FailurePolicy
    from tunelight.results import SweepResults, TrialResult
    from tunelight.schedulers import ASHA, ElasticASHA, GangPBT
    from tunelight.session.session import get_checkpoint_path, get_context, report
    from tunelight.settings import Checkpoints
    from tunelight.settings.values import Folds
    from tunelight.space import SearchSpace
    from tunelight.space.more_domains import ordinal
    from tunelight.sweep.resume import resume
    from tunelight.sweep.run import run


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: Ray and Lightning cost seconds."""
    if name in ("schedulers", "searchers"):
        return import_module(f"tunelight.{name}")
    if name not in _WHERE:
        if name[:1].isupper():  # not a module of the package, which Python looks for here before it imports it
            from tunelight.settings.backends import BACKENDS

            for backend in BACKENDS.values():
                if name == backend.strategy_name:
                    return backend.load_strategy()
        raise AttributeError(f"module 'tunelight' has no attribute {name!r}.{errors.guess(name, __all__)}")
    value = globals()[name] = getattr(import_module(_WHERE[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

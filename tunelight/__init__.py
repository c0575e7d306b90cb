"""tunelight: hyperparameter search over distributed PyTorch Lightning training, on Ray Tune."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tunelight import errors
from tunelight.compat import registry as _registry

__version__ = "0.2.0"

_WHERE = {
    "ASHA": "tunelight.schedulers",
    "Checkpoints": "tunelight.settings",
    "ElasticASHA": "tunelight.schedulers",
    "Costs": "tunelight.simulation",
    "FailurePolicy": "tunelight.policies",
    "Folds": "tunelight.settings.repeats",
    "GangPBT": "tunelight.schedulers",
    "HorovodRayStrategy": "tunelight.lightning.strategies",
    "OptunaSearcher": "tunelight.searchers",
    "Plan": "tunelight.simulation",
    "RayDataModule": "tunelight.data.module",
    "RayShardedStrategy": "tunelight.lightning.strategies",
    "RayStrategy": "tunelight.lightning.strategies",
    "SearchSpace": "tunelight.space",
    "Simulation": "tunelight.simulation",
    "SweepResults": "tunelight.results",
    "TrialResult": "tunelight.results",
    "TuneReportCallback": "tunelight.lightning.callbacks",
    "TuneReportCheckpointCallback": "tunelight.lightning.callbacks",
    "attach": "tunelight.sweep.attach",
    "cached": "tunelight.data.cached",
    "gang_trainable": "tunelight.trial.plain_tune",
    "get_checkpoint_path": "tunelight.session.session",
    "get_context": "tunelight.session.session",
    "get_dataset_shard": "tunelight.data.shards",
    "get_tune_resources": "tunelight.resources",
    "plan": "tunelight.simulation",
    "ready": "tunelight.cluster.local",
    "report": "tunelight.session.session",
    "reproduce": "tunelight.sweep.reproduce",
    "resume": "tunelight.sweep.resume",
    "run": "tunelight.sweep.run",
    "shutdown": "tunelight.cluster.local",
    "simulate": "tunelight.simulation",
    "use": "tunelight.compat.lightning",
    **dict.fromkeys(
        (
            "choice", "grid", "grid_search", "lograndint", "loguniform", "ordinal", "qlograndint", "qloguniform",
            "qrandint", "qrandn", "quniform", "randint", "randn", "sample_from", "uniform",
        ),
        "tunelight.space",
    ),
}  # fmt: skip

_ELSEWHERE = {
    **dict.fromkeys(("Tuner", "TuneConfig", "RunConfig", "create_study", "sweep", "fit"), "run"),
    **dict.fromkeys(("float", "suggest_float", "FloatDistribution"), "uniform"),
    **dict.fromkeys(("int", "suggest_int", "IntDistribution"), "randint"),
    **dict.fromkeys(("categorical", "suggest_categorical", "CategoricalDistribution"), "choice"),
    **dict.fromkeys(("RayPlugin", "RayAccelerator", "RayDDPStrategy"), "RayStrategy"),
    **dict.fromkeys(("HorovodRayPlugin", "HorovodRayAccelerator"), "HorovodRayStrategy"),
    **dict.fromkeys(("RayShardedPlugin", "RayFSDPStrategy", "RayDeepSpeedStrategy"), "RayShardedStrategy"),
    **dict.fromkeys(("ASHAScheduler", "AsyncHyperBandScheduler"), "ASHA"),
    **dict.fromkeys(("OptunaSearch", "TPESampler"), "OptunaSearcher"),
    **dict.fromkeys(("PopulationBasedTraining",), "GangPBT"),
    **dict.fromkeys(("FailureConfig",), "FailurePolicy"),
    **dict.fromkeys(("KFold", "StratifiedKFold"), "Folds"),
    **dict.fromkeys(("CheckpointConfig",), "Checkpoints"),
    **dict.fromkeys(("RayTrainReportCallback",), "TuneReportCheckpointCallback"),
}
"""Other programs' names, by ours."""

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
    )
    from ray.tune import grid_search as grid

    from tunelight.cluster.local import ready, shutdown
    from tunelight.compat.lightning import use
    from tunelight.data.cached import cached
    from tunelight.data.module import RayDataModule
    from tunelight.data.shards import get_dataset_shard
    from tunelight.lightning.callbacks import TuneReportCallback, TuneReportCheckpointCallback
    from tunelight.lightning.strategies import HorovodRayStrategy, RayShardedStrategy, RayStrategy
    from tunelight.policies import FailurePolicy
    from tunelight.resources import get_tune_resources
    from tunelight.results import SweepResults, TrialResult
    from tunelight.schedulers import ASHA, ElasticASHA, GangPBT
    from tunelight.searchers import OptunaSearcher
    from tunelight.session.session import get_checkpoint_path, get_context, report
    from tunelight.settings import Checkpoints
    from tunelight.settings.repeats import Folds
    from tunelight.simulation import Costs, Plan, Simulation, plan, simulate
    from tunelight.space import SearchSpace
    from tunelight.space.more_domains import ordinal
    from tunelight.sweep.attach import attach
    from tunelight.sweep.reproduce import reproduce
    from tunelight.sweep.resume import resume
    from tunelight.sweep.run import run
    from tunelight.trial.plain_tune import gang_trainable


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
        ours = _ELSEWHERE.get(name)
        near = f" Here that is tunelight.{ours}." if ours else errors.guess(name, __all__)
        raise AttributeError(f"module 'tunelight' has no attribute {name!r}.{near}")
    value = globals()[name] = getattr(import_module(_WHERE[name]), name)
    return value


_registry.register(__getattr__)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

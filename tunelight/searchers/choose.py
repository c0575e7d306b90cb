"""Build the searcher that a sweep's settings name."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from ray.tune.search import Searcher

from tunelight.errors import SettingsError, unknown
from tunelight.searchers.random import (
    BlindSearcher,
    GridSearcher,
    RandomSearcher,
    TrackingSearcher,
    all_of,
    endless,
    is_finite,
)
from tunelight.space.plain import alike

if TYPE_CHECKING:
    from tunelight.extras.optuna import OptunaSearcher
    from tunelight.settings import Settings
    from tunelight.space import SearchSpace

_log = logging.getLogger("tunelight")
_COUNTED = 10_000
"""Up to how many configurations a message counts."""
_BLIND = ("random", "grid")
"""tunelight's searchers that learn nothing, and take no options."""
_OWN = (*_BLIND, "auto")
_GENERATIONS = 200
"""Trials of several metrics above which a genetic algorithm has had some generations."""
_FEW = 100
"""Trials up to which a Gaussian process takes no longer than a second or two for a suggestion."""


def build_searcher(space: SearchSpace, settings: Settings, folder: Path | None = None) -> Searcher:
    """Return the searcher that the settings name; ``folder``: of a sweep that is resumed.

    Raises: SettingsError for an unknown one, and with StorageError where earlier sweeps cannot be learned from.
    """
    if _is_foreign(settings.searcher):
        return _prepared(settings.searcher, space, settings)
    searcher = _named(space, settings, folder)
    searcher.tried.once = _trains_once(space, settings)
    asked = _asked(space, settings)
    if searcher.tried.once and (trials := count_trials(space, settings)) <= asked:
        found, all_found = all_of(space, asked)
        if all_found:
            more = "" if trials == asked else f": num_samples={settings.num_samples} would train some of them again"
            note = f"each of the space's {len(found)} configurations is trained once{more}"
            _note(searcher, f"{note} (repeats= trains the best again)")
    return searcher


def count_trials(space: SearchSpace, settings: Settings) -> int:
    """Return how many trials a sweep makes, without repetitions and branches.

    Each point of a grid has ``num_samples`` of them, baselines among them; those at none of its points come on top. Of
    finitely many configurations none is trained twice.
    """
    asked = _asked(space, settings)
    if not _trains_once(space, settings):
        return asked
    found, all_found = all_of(space, asked)
    given = [alike(values) for values in _baselines(space, settings)]
    again = len(given) - len(set(given))  # those that stand there twice are meant
    return min(asked, len(found.union(given)) + again) if all_found else asked


def _asked(space: SearchSpace, settings: Settings) -> int:
    total = settings.num_samples * space.grid_size
    if space.grid_size == 1:
        return total
    made = Counter(map(space.grid_point, _baselines(space, settings)))
    return total + sum(max(0, count - (point is not None) * settings.num_samples) for point, count in made.items())


def _baselines(space: SearchSpace, settings: Settings) -> list[dict[str, Any]]:
    return [space.dotted(space.filled(config)) for config in settings.baselines]


def _trains_once(space: SearchSpace, settings: Settings) -> bool:
    """Tell whether a sweep trains no configuration twice: members of a population may begin alike."""
    scheduler = settings.scheduler.get("name") if isinstance(settings.scheduler, Mapping) else settings.scheduler
    name = scheduler if isinstance(scheduler, str) else type(scheduler).__name__
    if any(part in name.lower() for part in ("pbt", "pb2", "population")) or _is_foreign(settings.searcher):
        return False
    return is_finite(space) or (settings.searcher in ("grid", {"name": "grid"}) and not endless(space))


def _is_foreign(searcher: Any) -> TypeGuard[Searcher]:
    """Tell whether a searcher is an object of Ray Tune's, or a user's own."""
    return isinstance(searcher, Searcher) and not isinstance(searcher, TrackingSearcher)


def _prepared(given: Searcher, space: SearchSpace, settings: Settings) -> Searcher:
    """Return a searcher that is not tunelight's, which knows the sweep's metric, mode and domains."""
    if space.when or space.require:
        raise SettingsError(
            f"The searcher {type(given).__name__} knows neither conditions nor constraints, and the search space "
            f"has {'`when` of ' + ', '.join(space.when) if space.when else '`require`'}. Use one of tunelight's "
            "own, searcher='tpe' or 'random', or leave them out."
        )
    _refuse_warm_start(settings, f"{type(given).__name__} is not tunelight's, and")
    metrics, modes = (list(each) for each in zip(*settings.objectives, strict=True))
    metric: Any = metrics if len(metrics) > 1 else metrics[0]
    mode: Any = modes if len(modes) > 1 else modes[0]
    given.set_search_properties(metric, mode, dict(space.domains))
    return given


def _named(space: SearchSpace, settings: Settings, folder: Path | None) -> BlindSearcher | OptunaSearcher:
    given: Any = settings.searcher
    options = dict(given) if isinstance(given, Mapping) else {"name": given}
    name = options.pop("name", None)
    if name is None and len(settings.objectives) <= 1 and not options:
        name = "random"
    if isinstance(name, str) and name in _OWN:
        if options:
            raise SettingsError(f"searcher={name!r} takes no {', '.join(options)}.")
        if name in _BLIND:
            _refuse_warm_start(settings, f"searcher={name!r}")
            return _blind(name, space, settings)
        name = _fitting(space, settings)
    return _optuna(name, options, space, settings, folder)


def _fitting(space: SearchSpace, settings: Settings) -> str:
    """Return the sampler of Optuna's that "auto" stands for (measured: docs/measurements.md).

    TPE hears of trials that were stopped, takes earlier ones that lack a key, and knows conditions. GP does not, but
    was as good or better where few trials all end by themselves. NSGA-II learns from generations of 50 trials.
    """
    trials, warm = count_trials(space, settings), bool(settings.warm_start)
    if len(settings.objectives) > 1:
        return "nsgaii" if trials > _GENERATIONS and not warm else "tpe"
    whole = settings.scheduler in ("fifo", {"name": "fifo"}) and not space.when
    chosen = {key: kind for key, kind in space.kinds.items() if kind.role in ("drawn", "grid")}
    modelled = all(kind.parameter(key, space.domains[key]) is not None for key, kind in chosen.items())
    return "gp" if whole and modelled and trials <= _FEW and not warm else "tpe"


def _blind(name: str, space: SearchSpace, settings: Settings) -> BlindSearcher:
    metric, mode = settings.judged_by.values()
    if name == "grid":
        searcher = GridSearcher(space, metric, mode)
        asked = _asked(space, settings)
        found, all_found = all_of(space, max(asked, _COUNTED))
        if len(found) > asked:
            _log.warning(
                "The grid has %s configurations, of which num_samples=%s tries the first %s.",
                len(found) if all_found else f"more than {_COUNTED:,}",
                settings.num_samples,
                asked,
            )
        return searcher
    return RandomSearcher(space, settings.seed or 0, metric, mode)


def _optuna(
    given: Any, options: dict[str, Any], space: SearchSpace, settings: Settings, resumed: Path | None
) -> OptunaSearcher:
    from tunelight.extras.optuna import (
        KINDS,
        OptunaSearcher,  # imports Optuna
        is_sampler,
    )

    if isinstance(given, OptunaSearcher):
        plan = given
    elif given is None or (isinstance(given, str) and given in KINDS) or is_sampler(given):
        plan = OptunaSearcher(given, metric=settings.metric, mode=settings.mode, **options)
    else:
        raise SettingsError(_no_searcher(given, [*_OWN, *KINDS]))
    searcher = plan.for_sweep(space, settings.metric, settings.mode, settings.seed or 0)
    if settings.warm_start and not searcher.learns:
        _refuse_warm_start(settings, f"searcher={given!r}")
    _warm_up(searcher, space, settings, resumed)
    return searcher


def _warm_up(searcher: OptunaSearcher, space: SearchSpace, settings: Settings, resumed: Path | None) -> None:
    """Let a searcher learn from the earlier sweeps that the settings name."""
    if not settings.warm_start:
        return
    from tunelight.extras.earlier import read_earlier, translated

    earlier, sweeps = read_earlier(settings.warm_start, settings.objectives, resumed)
    count = searcher.learn(translated(earlier, space))
    searcher.sweeps = sweeps
    if not count:
        raise SettingsError(
            f"warm_start: of the {len(earlier)} trials of earlier sweeps, none has a value for a key of this "
            "search space that lies inside of its domain (for samplers other than TPE: for every key). Leave "
            "warm_start= out, or search a space that overlaps with theirs."
        )
    where = f" ({len(searcher.sweeps)} sweeps)" if len(searcher.sweeps) > 1 else ""
    _note(searcher, f"warm start: {count} of {len(earlier)} trials of earlier sweeps{where} are known to the searcher")


def _note(searcher: TrackingSearcher, text: str) -> None:
    searcher.notes = [*searcher.notes, text]


def _no_searcher(given: Any, valid: list[str]) -> str:
    """Return the error for an object that is no searcher: another library's name, a class, or something else."""
    others = "a Ray Tune Searcher, tunelight's OptunaSearcher or an Optuna sampler"
    if isinstance(given, type) and (hasattr(given, "suggest") or hasattr(given, "sample_relative")):
        return (
            f"searcher={given.__name__} is a class. Make an object of it: searcher={given.__name__}(), with its "
            "arguments between the parentheses."
        )
    if not isinstance(given, str):
        return (
            f"searcher must be a name ({', '.join(valid)}), a name with options ({{'name': 'tpe', 'n_startup_trials': "
            f"20}}), {others}, not {given!r}."
        )
    return f"{unknown('There is no searcher', given, valid)} Or pass {others}."


def _refuse_warm_start(settings: Settings, who: str) -> None:
    if settings.warm_start:
        raise SettingsError(
            f"warm_start= is given, but {who} does not look at earlier trials. Choose searcher='auto' (or 'tpe', "
            "'gp', 'cmaes', 'nsgaii'), or leave warm_start= out."
        )

"""GangPBT: population-based training that passes weights from gang to gang through memory.

Jaderberg et al., "Population Based Training of Neural Networks" (https://arxiv.org/abs/1711.09846), in its
asynchronous form with truncation selection: every ``perturbation_interval`` reports a member is compared with the
others' last reports. A member of the best quarter offers its state, a copy in Ray's object store; one of the worst
takes over the last offer of one of the best, and goes on with a mutation of its configuration. Both gangs train on.

Knows Ray Tune's scheduler interface and ``messages`` only; reads no clock, and has its own random generator.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from ray.actor import ActorHandle
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tunelight.compat.ray import cluster_size, pass_to_heads, trial_actor
from tunelight.errors import SettingsError, is_domain, known_arguments, unknown
from tunelight.messages import RESULT_KEY, Adopt, Adoption, Continue
from tunelight.schedulers.base import TRAINING_ITERATION, GangScheduler, SweepFacts, call_actor, tell
from tunelight.schedulers.members import TrialResources
from tunelight.settings import checks
from tunelight.settings.checks import holder_of
from tunelight.space import SearchSpace
from tunelight.space.kinds import KINDS, Kind, kind_of
from tunelight.space.plain import Objects

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController


_ADOPTED: Final = f"{RESULT_KEY}/adopted"


@dataclass
class _Member:
    """One trial of the population. ``save`` writes the fields by these names."""

    index: int
    loss: float | None = None
    """The metric of its last report, negated if more is better; infinite for NaN, None before the first report."""
    reports: int = 0
    due: int = 0
    """The report at which it is next compared."""
    offered: int | None = None
    """The report whose state it offered last; None if there is no offer."""
    leaves: bool = False
    """Whether it adopted at its last report, and pauses at the next one for another member."""
    told: bool = False
    """Whether its gang was told to run on to ``due``."""
    ended: bool = False


class GangPBT(GangScheduler):
    """Train a population: the worst take over the best ones' weights and a mutation of their settings.

    Every ``perturbation_interval`` reports a member is compared with the others. Among the best quarter it offers its
    state: one copy in memory. Among the worst, and worse than the member drawn from the best, it adopts that member's
    last offer, weights and optimizer states, and goes on with a mutation of that member's configuration. If the offer
    is gone, or does not fit the model as it is built, the trial starts again on its warm gang from the other's last
    checkpoint, with its epochs and steps; without a checkpoint, it goes on unchanged.

    A population larger than the cluster takes turns of ``perturbation_interval`` reports, and no member runs far ahead
    of the slowest, so that there are reports to compare with. A pause costs a checkpoint, and a start on a warm gang.
    A member that adopts as its turn ends trains on to its next report, which shows the result, and pauses then.

    Args:
        metric: reported name to compare; None takes what Tune is told.
        mode: "min" or "max"; None takes what Tune is told.
        perturbation_interval: reports from one comparison to the next (4).
        hyperparam_mutations: what is mutated: {dotted key: domain, list of values, or function that draws one}. None:
            the real numbers of the sweep's search space that are not in ``data.*`` or ``trainer.*``.
        quantile_fraction: the share of members that count as the best, and as the worst (0.25; at most 0.5).
        resample_probability: how often a value is drawn from its domain again (0.25); else it is perturbed.
        perturbation_factors: a perturbed value is multiplied by one of them; a choice moves to a neighbour in its list.
        max_t: the last report, at which members are not compared (None: unknown).
        seed: of parents and mutations (0): the same order of reports gives the same decisions.
        max_lead: how many reports a member may be ahead of the slowest before it is paused (None: two intervals).

    Raises: SettingsError. Runs on: driver.
    """

    pauses = True
    changes_configs = True

    @known_arguments
    def __init__(  # noqa: PLR0917 - the order follows Ray's PopulationBasedTraining
        self,
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: int = 4,
        hyperparam_mutations: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: Sequence[float] = (1.2, 0.8),
        max_t: float | None = None,
        seed: int = 0,
        max_lead: int | None = None,
    ) -> None:
        super().__init__(metric, mode)
        self._interval = checks.whole("GangPBT's perturbation_interval", perturbation_interval)
        self._lead = 2 * self._interval if max_lead is None else checks.whole("GangPBT's max_lead", max_lead)
        self._quantile = checks.number("GangPBT's quantile_fraction", quantile_fraction)
        self._resample = checks.number("GangPBT's resample_probability", resample_probability, zero=True)
        self._factors = [checks.number("GangPBT's perturbation_factors", factor) for factor in perturbation_factors]
        for name, value, fits, wanted in (
            ("quantile_fraction", quantile_fraction, self._quantile <= 0.5, "at most 0.5, for best and worst are two"),
            ("resample_probability", resample_probability, self._resample <= 1, "at most 1"),
            ("perturbation_factors", perturbation_factors, self._factors, "numbers, such as (1.2, 0.8)"),
        ):
            if not fits:
                raise SettingsError(f"GangPBT's {name} must be {wanted}, not {value!r}.")
        given = hyperparam_mutations
        self._mutations = None if given is None else mutations_of(given)
        self.max_t, self._seed = max_t, seed
        self._rng = np.random.RandomState(seed)
        self._members: dict[str, _Member] = {}
        self._trials: dict[str, Any] = {}
        self._offers: dict[str, Any] = {}
        self._before: dict[str, tuple[int, dict[str, Any]]] = {}
        self.num_exploits = 0
        """How often a member took over another's weights."""

    def initial_decision(self) -> Continue:
        """Return the first report of a new trial that needs an answer."""
        return Continue(until=self._interval)

    def prepare(self, sweep: SweepFacts) -> None:
        """Take what is mutated from the search space. Raises: SettingsError if nothing in it can be mutated."""
        super().prepare(sweep)
        if (domains := sweep.domains) is None:
            return
        mutations = default_mutations(domains) if self._mutations is None else self._mutations
        check_known(mutations, domains)
        if not mutations:
            raise SettingsError(
                "GangPBT finds no real number in the search space to mutate by itself. Name what a running training "
                f"can follow with hyperparam_mutations; the space has: {', '.join(domains)}."
            )
        self._mutations = mutations

    # -- Tune's interface ---------------------------------------------------------------------------

    def on_trial_add(self, tune_controller: TuneController, trial: Trial) -> None:
        """Add a trial to the population, also again after an error."""
        self._check_judged()
        if not self._mutations:
            raise SettingsError(
                "GangPBT needs to know what to mutate: GangPBT(hyperparam_mutations={'lr': tune.loguniform(1e-4, 1)}). "
                "In tunelight.run it takes the search space's own domains."
            )
        member = self._members.setdefault(trial.trial_id, _Member(len(self._members), due=self._interval))
        member.ended = member.told = False
        self._trials[trial.trial_id] = trial

    def on_trial_result(self, tune_controller: TuneController, trial: Trial, result: Mapping[str, Any]) -> str:
        """Compare a member that is due: it offers, or adopts, and pauses if others wait."""
        member, number = self._members.get(trial.trial_id), result.get(TRAINING_ITERATION)
        if member is None or not isinstance(number, int):
            return TrialScheduler.CONTINUE
        self.explain(trial.trial_id, None)
        self._undo_failed_change(trial, result)
        member.reports, loss, due = number, self._loss(result), number >= member.due
        if loss is not None:
            member.loss = loss
        if due:
            member.due, member.told = number + self._interval, False
        leaves, member.leaves = member.leaves, False
        if self.max_t is not None and number >= self.max_t:
            return self._go_on(trial, member, None)
        if not due and not leaves:
            return self._go_on(trial, member, member.due)
        ahead = self._ahead(member)
        pause = ahead or self._must_yield(tune_controller, trial)
        judged = due and loss is not None and not (pause and leaves)
        # Paused at once, it could not report whether it adopted: it pauses at its next report, which does.
        if judged and self._judge(trial, member, number + 1 if pause else member.due):
            member.leaves, member.told = pause, not pause
            return TrialScheduler.CONTINUE
        if pause:
            member.told = False
            self.explain(trial.trial_id, "too far ahead of the slowest" if ahead else "others wait for their turn")
            return TrialScheduler.PAUSE
        return self._go_on(trial, member, member.due)

    def trains_on(self, tune_controller: TuneController, trial: Trial) -> bool:
        """Let a member go on that was to give way to others."""
        member = self._members[trial.trial_id]
        self.explain(trial.trial_id, None)
        self._go_on(trial, member, member.due)
        return True

    def on_trial_end(self, trial: Trial) -> None:
        """Leave a member that has ended, or failed, out of comparisons."""
        super().on_trial_end(trial)
        if (member := self._members.get(trial.trial_id)) is not None:
            member.ended, member.offered, member.leaves = True, None, False
        self._offers.pop(trial.trial_id, None)

    def choose_trial_to_run(self, tune_controller: TuneController) -> Trial | None:
        """Return the waiting member with the fewest reports: a pending one, else a paused one.

        Only one paused trial at a time becomes pending, so that one that pauses later with less may still come first.
        """
        trials: list[Trial] = tune_controller.get_trials()
        for status in (Trial.PENDING, Trial.PAUSED):
            if waiting := [trial for trial in trials if trial.status == status]:
                chosen = min(waiting, key=self._reports)
                member = self._members.get(chosen.trial_id)
                if member is not None and self._ahead(member):
                    return None
                self.explain(chosen.trial_id, None)
                return chosen
        return None

    # -- the rule -----------------------------------------------------------------------------------

    def _go_on(self, trial: Trial, member: _Member, until: int | None) -> str:
        """Send a member's gang the next report that needs an answer, unless it knows."""
        if not member.told:
            _check_is_gang(trial)
            tell(trial, Continue(until))
        member.told = True
        return TrialScheduler.CONTINUE

    def _judge(self, trial: Trial, member: _Member, until: int) -> bool:
        """Let a member offer or adopt; return whether it adopts, which includes how far it may run."""
        worst, best = self._quantiles()
        if trial.trial_id in worst:
            parents = [key for key in best if self._members[key].offered is not None]
            parent = parents[self._rng.randint(len(parents))] if parents else None
            if parent is not None and _of(self._members[parent]) < _of(member):
                self._exploit(trial, member, parent, until)
                return True
        elif trial.trial_id in best:
            member.offered = member.reports
            self._offers[trial.trial_id] = call_actor(trial, "offer")
        return False

    def _exploit(self, trial: Trial, member: _Member, parent_id: str, until: int) -> None:
        parent, theirs = self._trials[parent_id], self._members[parent_id]
        config = explore(parent.config, self._mutations or Mutations(), self._rng, self._resample, self._factors)
        self._before[trial.trial_id] = (member.reports, copy.deepcopy(trial.config))
        trial.set_config(config)
        member.loss, member.offered = theirs.loss, None
        self._offers.pop(trial.trial_id, None)
        self.num_exploits += 1
        weights, folder = self._offers.get(parent_id), None
        with suppress(AttributeError, RuntimeError):  # a stub's, or one that has not been started again yet
            folder = parent.path
        adoption = None if folder is None else Adoption(member.reports, parent_id, Path(folder).name, theirs.offered)
        pass_to_heads(trial, adopted=adoption)
        tell(trial, Adopt(weights, copy.deepcopy(config), parent_id, folder, theirs.offered, until))
        self.sweep.on_change(trial.trial_id, member.reports, config, parent_id, theirs.offered)

    def _undo_failed_change(self, trial: Trial, result: Mapping[str, Any]) -> None:
        """Undo a change that could not be made: the parent's state was gone, and it had no checkpoint."""
        before = self._before.pop(trial.trial_id, None)
        if before is None or result.get(_ADOPTED) != "none":
            return
        number, config = before
        trial.set_config(config)
        self.num_exploits -= 1
        pass_to_heads(trial, adopted=None)
        self.sweep.on_change(trial.trial_id, number, config, None, None)

    def _quantiles(self) -> tuple[set[str], list[str]]:
        """Return the worst and the best of the members that train, the best first.

        Members without a report count among the worst, so that the first to report are not compared with only a few.
        """
        alive = self._alive()
        order = sorted(alive, key=lambda key: (alive[key].loss is None, _of(alive[key]), alive[key].index))
        count = min(math.ceil(len(order) * self._quantile), len(order) // 2)
        best = [key for key in order[: max(1, count)] if math.isfinite(_of(alive[key]))]
        return set(order[len(order) - count :]), best

    def _alive(self) -> dict[str, _Member]:
        """Return the members that will report again; Tune adds ended trials, too, when it restores a sweep."""
        trials = self._trials
        return {
            key: member
            for key, member in self._members.items()
            if not member.ended and not (key in trials and trials[key].is_finished())
        }

    def _ahead(self, member: _Member) -> bool:
        """Tell whether a member has to wait for the slowest."""
        slowest = min((other.reports for other in self._alive().values()), default=member.reports)
        return member.reports - slowest > self._lead

    def _must_yield(self, tune_controller: Any, trial: Trial) -> bool:
        """Tell whether a trial releases its gang: another one waits that has had no more, and there is no room."""
        size, resources = cluster_size(tune_controller), TrialResources.of(trial)
        if size is None or resources is None:
            return False
        live = [other for other in tune_controller.get_live_trials() if not other.is_finished()]
        waiting = [other for other in live if other is not trial and other.status in (Trial.PENDING, Trial.PAUSED)]
        room = all(len(live) * need <= have + 1e-6 for have, need in zip(size, resources.total, strict=True))
        return not room and any(self._reports(other)[0] <= self._reports(trial)[0] for other in waiting)

    def _reports(self, trial: Any) -> tuple[int, int]:
        """Return how much a trial has had of the cluster, as a sort key."""
        member = self._members.get(trial.trial_id)
        return (member.reports, member.index) if member is not None else (0, len(self._members))


def _check_is_gang(trial: Any) -> None:
    """Raise SettingsError for a trial that runs without a gang, which could not carry out a decision."""
    actor = trial_actor(trial)
    if isinstance(actor, ActorHandle) and not hasattr(actor, "decide"):
        raise SettingsError(
            f"GangPBT hands weights from gang to gang, and trial {trial.trial_id} is no gang. Wrap the train function: "
            "Tuner(tunelight.gang_trainable(train, ...)), or use Ray's PopulationBasedTraining."
        )


def _of(member: _Member) -> float:
    return math.inf if member.loss is None else member.loss


# --- Explore: how a member of a population mutates the hyperparameters that it takes over ---------

# The two ways of Jaderberg et al., "Population Based Training of Neural Networks" (https://arxiv.org/abs/1711.09846):
# a value is drawn from its domain again, or multiplied by a factor. Bounds, steps and whole numbers are kept.


_BUILT_ONCE = ("data", "trainer")
"""Parts of a model= sweep's space that a running training cannot change."""
_NOTHING = object()
_HOW = "For example {'lr': tune.loguniform(1e-4, 1), 'model.dropout': [0.0, 0.1, 0.2]}."


class Mutations(dict[str, Any]):
    """Domains by dotted key. ``objects``: what plain data among their choices stands for."""

    objects = Objects()


def mutations_of(given: Mapping[str, Any]) -> Mutations:
    """Return domains by dotted key from a user's mapping, also nested, of domains, lists, functions without arguments.

    Raises: SettingsError, SpaceError for entries without a choice: a plain value would overwrite each trial's own.
    """
    if not isinstance(given, Mapping):
        raise SettingsError(f"GangPBT's hyperparam_mutations must be a mapping, not {given!r}. {_HOW}")
    if not given:
        raise SettingsError(f"GangPBT's hyperparam_mutations is empty: there is nothing to mutate. {_HOW}")
    space = SearchSpace(_as_domains(given))
    domains = Mutations(space.domains)
    domains.objects = space.objects
    for key, domain in domains.items():
        if space.is_fixed(key):
            raise _no_choice(key, domain.categories[0])
    return domains


def default_mutations(domains: Mapping[str, Any]) -> Mutations:
    """Return the domains of a space that a running training can usually change: its real numbers.

    Whole numbers and other choices usually decide how a model is built; ``data.*`` and ``trainer.*`` are built once.
    """

    def is_real(kind: Kind, domain: Any) -> bool:
        values = kind.choices(domain)
        return kind.number is float if values is None else all(type(value) is float for value in values)

    kinds = {key: kind_of(domain) for key, domain in domains.items() if key.partition(".")[0] not in _BUILT_ONCE}
    return Mutations({key: domains[key] for key, kind in kinds.items() if is_real(kind, domains[key])})


def check_known(mutations: Mutations, domains: Mapping[str, Any]) -> None:
    """Raise SettingsError for a mutation of a key that the space lacks, or to an object that is none of its choices."""
    for key, domain in mutations.items():
        if key not in domains:
            raise SettingsError(
                unknown("hyperparam_mutations: the search space has no key", key, domains, None, "It has")
            )
        known = kind_of(domains[key]).choices(domains[key]) or ()
        for value in kind_of(domain).choices(domain) or ():
            if mutations.objects.value(key, value) is not value and value not in known:
                raise SettingsError(
                    f"GangPBT's hyperparam_mutations: {key!r} has the choice {value}, which the search space lacks. "
                    "Add it to the choices of the space: workers know its objects only."
                )


def explore(
    config: Mapping[str, Any],
    mutations: Mutations,
    rng: np.random.RandomState,
    resample_probability: float,
    factors: Sequence[float],
) -> dict[str, Any]:
    """Return a copy of ``config`` with ``mutations`` drawn again or perturbed; keys that it lacks are skipped.

    An object is replaced by an object, as in a plain Tuner, and plain data by plain data, as in a sweep.
    """
    objects = mutations.objects
    mutated = copy.deepcopy(dict(config))
    for key, domain in mutations.items():
        holder, last = holder_of(mutated, key)
        value = holder.get(last, _NOTHING)
        if value is not _NOTHING:
            plain = objects.plain(key, value) if key in objects else value
            new = kind_of(domain).mutate(domain, plain, rng, resample_probability, factors)
            holder[last] = new if plain is value else objects.value(key, new)
    return mutated


def _as_domains(given: Mapping[str, Any], way: str = "") -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in given.items():
        where = f"{way}{key}"
        if isinstance(value, list | tuple):
            made[key] = {"choice": value}
        elif isinstance(value, Mapping):
            names = [name for name in value if name != "when"]
            described = len(names) == 1 and names[0] in KINDS  # {"uniform": [0, 1]}, and no group
            made[key] = value if described else _as_domains(value, f"{where}.")
        elif is_domain(value) and kind_of(value).role != "function":
            made[key] = value
        elif is_domain(value) or (callable(value) and not _takes_nothing(value)):
            raise SettingsError(
                f"GangPBT's hyperparam_mutations: {where!r} is {value!r}, which needs the rest of the configuration. "
                "Give a function without arguments, a domain, or a list of values."
            )
        elif callable(value):
            made[key] = {"sample_from": lambda _, draw=value: draw()}
        else:
            raise _no_choice(where, value)
    return made


def _takes_nothing(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:  # it has no signature
        return True
    return True


def _no_choice(key: str, value: Any) -> SettingsError:
    return SettingsError(
        f"GangPBT's hyperparam_mutations: {key!r} is {value!r}, which leaves nothing to choose. Leave {key!r} out to "
        f"keep each trial's own value, or give a list of values. {_HOW}"
    )

"""Error messages for unknown arguments: they name the argument here that another library's name stands for."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, ParamSpec, TypeVar

from tunelight.errors import ArgumentError, SettingsError, SpaceError, guess

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Topic = Literal["sweep", "trainable", "strategy", "failures", "checkpoints", "scheduler", "other"]

# --- names in Ray Tune, Ray Train, Optuna, W&B, ray_lightning and Lightning ----------------------------------------

_TRAINER: Final = """
precision logger fast_dev_run min_epochs max_steps min_steps max_time limit_train_batches limit_val_batches
limit_test_batches limit_predict_batches overfit_batches val_check_interval check_val_every_n_epoch
num_sanity_val_steps log_every_n_steps enable_checkpointing enable_progress_bar enable_model_summary
accumulate_grad_batches gradient_clip_val gradient_clip_algorithm deterministic benchmark inference_mode
use_distributed_sampler profiler detect_anomaly barebones plugins sync_batchnorm reload_dataloaders_every_n_epochs
default_root_dir enable_autolog_hparams model_registry
"""
TRAINER_ARGUMENTS: Final = frozenset(_TRAINER.split())
"""Arguments of Lightning's Trainer that are no settings of a sweep and that no setting replaces."""


def _by_word(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the texts by each of the words in their keys."""
    return {word: text for words, text in texts.items() for word in words.split()}


_SWEEP: Final = _by_word({
    "config param_space space parameters hyperparameters "
    "distributions domains": "the first argument, tl.run({'lr': tl.loguniform(1e-4, 1e-1)}, train, metric=...)",
    "run_or_experiment trainable train_fn train_func train_function train_loop_per_worker "
    "func function fn objective program command": "train=, a function of one configuration, train(config)",
    "direction goal": "mode=, 'min' for 'minimize' and 'max' for 'maximize'",
    "n_trials "
    "num_trials trials max_trials n_samples count run_cap max_evals": "num_samples=, the number of trials in all",
    "num_epochs "
    "n_epochs epochs max_t training_iteration max_iter": "max_epochs=, the epochs of a trial that is not stopped early",
    "time_budget_s timeout time_limit max_duration": "time_budget=, in seconds or as '2h'",
    "stop": "max_epochs= for the length of a trial and time_budget= for that of the sweep; a train function that has "
    "had enough just returns",
    "search_alg search_algorithm sampler method algo": "searcher=, 'tpe' for example, or an Optuna sampler",
    "pruner early_terminate early_stopping": "scheduler=, 'asha' for example",
    "num_workers n_workers world_size nproc_per_node "
    "devices num_nodes num_processes num_hosts num_slots": "workers=, the number of workers that train one trial",
    "use_gpu num_gpus gpus gpu num_gpus_per_worker n_gpus accelerator accelerator_type": "gpus_per_worker=1",
    "num_cpus cpus cpu num_cpus_per_worker": "cpus_per_worker=, the CPUs of each worker",
    "placement_strategy label_selector use_tpu topology elastic_resize_monitor_interval_s "
    "export_formats trial_name_creator trial_dirname_creator chdir_to_trial_dir gc_after_trial": "",
    "max_failures "
    "failure_config max_retries max_restarts": "failures=3, or failures=tl.FailurePolicy(max_failures=3, ...)",
    "storage_path "
    "local_dir logdir log_dir output_dir save_dir results_dir dir": "storage=, the folder that sweeps lie in",
    "study_name experiment_name run_name project project_name": "name=, the folder in storage=",
    _TRAINER: "an argument of Lightning's Trainer: pl.Trainer(<name>=...) in the train function, or "
    "trainer_args={'<name>': ...} with model=",
})  # fmt: skip

_CLOSE: Final = 0.8
"""How similar a misspelt name must be to another library's, from 0 to 1, to be taken for it."""

WORDS: Final[Mapping[Topic, Mapping[str, str]]] = {"sweep": _SWEEP}
"""By topic: another library's name -> what to write here (empty: there is no equivalent)."""


def replacement(name: Any, valid: Iterable[str], topic: Topic = "sweep") -> str:
    """Return " Here that is ..." for an unknown ``name``, or another hint; "" if nothing is similar."""
    words, valid = WORDS.get(topic, {}), list(valid)
    known = {word: text for word, text in words.items() if word not in valid and _applies(text, valid)}
    name = str(name)
    if name in known:
        return _said(name, known[name])
    close = difflib.get_close_matches(name, known, n=1, cutoff=_CLOSE)
    if close and close == difflib.get_close_matches(name, [*close, *valid], n=1):
        return f" Did you mean {close[0]!r}?{_said(close[0], known[close[0]])}"
    return guess(name, valid)


def _applies(text: str, valid: Iterable[str]) -> bool:
    """Tell whether a replacement that begins with an argument names one in ``valid``."""
    argument = re.match(r"(\w+)=", text)
    return argument is None or argument[1] in valid


def _said(name: str, text: str) -> str:
    if not text:
        return " Nothing here replaces it: leave it out."
    text = text.replace("<name>", name)
    return f" {text}." if text[0].isupper() else f" Here that is {text}."


# --- calls --------------------------------------------------------------------------------------------------------


def known_arguments(topic: Topic = "other") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for a public function, or an ``__init__``, that explains arguments which it does not take.

    The signature stays the same for editors and ``inspect``. The decorated function raises ArgumentError, which is a
    TypeError too. Errors of settings and spaces have the traceback of the caller, without tunelight's own frames.
    """

    def checked(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise ArgumentError(_wrong_call(function, signature, args, kwargs, topic, str(error))) from None
            try:
                return function(*args, **kwargs)
            except (SettingsError, SpaceError) as error:
                raise error.with_traceback(None) from error.__cause__  # shown at the caller's line, and no deeper

        return call

    return checked


def known_fields(topic: Topic) -> Callable[[type[T]], type[T]]:
    """Return a decorator that does for a dataclass what :func:`known_arguments` does for a function."""

    def checked(kind: type[T]) -> type[T]:
        setattr(kind, "__init__", known_arguments(topic)(kind.__init__))  # noqa: B010 - mypy takes it for unsafe
        return kind

    return checked


def check_keywords(who: str, given: Iterable[str], valid: Iterable[str], topic: Topic) -> None:
    """Raise ArgumentError if a keyword in ``given`` is not in ``valid``."""
    valid = list(valid)
    if unknown := [name for name in given if name not in valid]:
        raise ArgumentError(_unknown(who, unknown, valid, topic))


def _unknown(who: str, names: Iterable[str], valid: list[str], topic: Topic) -> str:
    hints = {name: replacement(name, valid, topic) for name in names}
    text = " ".join(f"{who} takes no {name}=.{hint}" for name, hint in hints.items())
    return text if all(" Here that is " in hint for hint in hints.values()) else f"{text} It takes: {', '.join(valid)}."


def _wrong_call(  # noqa: PLR0917 - called once
    function: Any,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    topic: Topic,
    reason: str,
) -> str:
    """Return the message for a call that does not fit its signature."""
    name = function.__qualname__.removesuffix(".__init__")
    who = f"tl.{name}" if name != function.__qualname__ else f"tl.{name}()"
    taken = [argument for argument in signature.parameters.values() if argument.name != "self"]
    valid = [
        argument.name for argument in taken if argument.kind not in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL)
    ]
    unknown = [word for word in kwargs if word not in valid]
    domain = next((word for word in unknown if _is_domain(kwargs[word])), None)
    if domain is not None:
        return (
            f"{who} takes no {domain}=, and what is given there is a domain. Domains belong to the search space, a "
            f"dict, which is the first argument of tl.run and tl.SearchSpace: {{{domain!r}: ...}}."
        )
    if unknown and len(valid) == len(taken):
        return _unknown(who, unknown, valid, topic)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    by_position = [argument.name for argument in taken if argument.kind in positional]
    came = len(args) - ("self" in signature.parameters)
    if came > len(by_position):
        return (
            f"{who} takes {', '.join(by_position) or 'nothing'} by position, and {came} arguments came so. Give the "
            f"others by name. It takes: {', '.join(valid)}."
        )
    return f"{who} cannot be called so: {reason}. It takes: {', '.join(valid)}."


def _is_domain(value: Any) -> bool:
    return any(
        base.__module__ == "ray.tune.search.sample" and base.__name__ == "Domain" for base in type(value).__mro__
    )

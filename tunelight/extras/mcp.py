"""The server of the Model Context Protocol: argument checks and errors around :mod:`tunelight.extras.mcp`."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import ValidationError

from tunelight.cli.overrides import read_sets
from tunelight.errors import CommandError, SettingsError, StorageError, TunelightError, first_of, guess, unknown
from tunelight.extras.attach import RecordFollower, ask
from tunelight.record import driver_of, find_sweep, list_sweeps, live_driver_of, read_sweep_file
from tunelight.record.lease import record_of
from tunelight.record.record import parse
from tunelight.record.state import metric_value
from tunelight.results import SweepResults
from tunelight.settings import SETTINGS
from tunelight.settings.checks import flatten
from tunelight.space.files import YamlFile
from tunelight.stores.masking import masked

_READING: Final = ("list", "show")
_ENDING: Final = ("stop",)
_INSTRUCTIONS: Final = (
    "Hyperparameter sweeps of tunelight. `check` and `plan` a space, `run` it (it returns once the sweep has begun), "
    "then call `show` with the cursor `since` of its last answer. A sweep is named by its name, or 'last'; a trial by "
    "its number, or 'best'."
)


class SweepServer(MCPServer[Any]):
    """An MCPServer whose errors name the valid choices."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """Call a tool. Raises: ToolError with what was wrong, and what would be right."""
        tools = {tool.name: tool for tool in self._tool_manager.list_tools()}
        if name not in tools:
            raise ToolError(unknown("There is no tool", name, tools))
        valid = tools[name].parameters["properties"]
        for argument in arguments:
            if argument not in valid:
                raise ToolError(unknown(f"{name} has no argument", argument, valid, listed="It has"))
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            cause = error.__cause__
            if isinstance(cause, ValidationError):
                wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in cause.errors())
                takes = ", ".join(f"{key} ({_type(each)})" for key, each in valid.items())
                raise ToolError(f"Wrong arguments of {name}: {wrong}. It takes: {takes}.") from cause
            if isinstance(cause, TunelightError | OSError):
                raise ToolError(str(cause)) from cause
            raise


def _type(schema: Any) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"] if each.get("type") != "null")
    return str(schema.get("type", "any"))


def make_server(folder: Path, storage: str) -> SweepServer:
    """Return the server for spaces below ``folder`` and sweeps in ``storage``."""
    server, tools = SweepServer("tunelight", instructions=_INSTRUCTIONS, log_level="WARNING"), Tools(folder, storage)
    for tool in (
        *(tools.check, tools.plan, tools.run, tools.list_, tools.show, tools.stop),
        *(tools.enqueue, tools.branch, tools.set_, tools.best, tools.report),
    ):
        name = tool.__name__.rstrip("_")
        hints = ToolAnnotations(
            read_only_hint=name in _READING, destructive_hint=name in _ENDING, open_world_hint=name not in _READING
        )
        server.tool(name, annotations=hints, structured_output=False)(tool)
    return server


def serve(folder: Path, storage: str) -> None:
    """Serve over standard input and output until the client hangs up; other output goes to standard error."""
    server = make_server(folder, storage)
    print("tunelight mcp: waiting for a client on standard input", file=sys.stderr)  # noqa: T201 - not the protocol's
    server.run("stdio")


# --- The tools of ``tunelight mcp``, as methods that return short text of JSON ----------------------------

_CHECK_S: Final = 180.0
_BEGIN_S: Final = 60.0
"""How long `run` waits for the sweep to begin."""
_LOOK_S: Final = 0.2
_MOST_ITEMS: Final = 8
_MOST_TEXT: Final = 300
_MOST_SWEEPS: Final = 20
_MOST_FOLLOWED: Final = 8
_MOST_TRIALS: Final = 20
_HARMLESS: Final = frozenset({
    *("metric", "mode", "num_samples", "repeats", "max_epochs", "scheduler", "searcher"),
    *("workers", "cpus_per_worker", "gpus_per_worker", "resources_per_trial", "backend", "reuse_gangs", "checkpoints"),
    *("max_concurrent", "time_budget", "seed", "failures", "evaluation", "cache"),
    "data_cpus",
})  # fmt: skip
"""Settings that a client may give: they name no code, and no place that is read or written."""
_OF_TRAINER: Final = frozenset({
    *("accumulate_grad_batches", "benchmark", "check_val_every_n_epoch", "detect_anomaly", "deterministic"),
    *("enable_model_summary", "enable_progress_bar", "fast_dev_run", "gradient_clip_algorithm", "gradient_clip_val"),
    *("inference_mode", "limit_test_batches", "limit_train_batches", "limit_val_batches", "log_every_n_steps"),
    *("max_epochs", "max_steps", "min_epochs", "min_steps", "num_sanity_val_steps", "overfit_batches", "precision"),
    *("reload_dataloaders_every_n_epochs", "sync_batchnorm", "use_distributed_sampler", "val_check_interval"),
})  # fmt: skip
"""Arguments of a Trainer that it may."""
_WORDS: Final = re.compile(r"[\w+\- ]*")
"""Text that is neither a path nor an import path, of whatever kind."""
_KEY: Final = re.compile(r"[^\W\d]\w*(\.\w+)*")
_BUILT: Final = {"class_path", "init_args", "_target_", "object"}


def _alone(tool: Callable[..., str]) -> Callable[..., str]:
    """Let no other thread bring a sweep's state up to date while a tool reads it."""

    @functools.wraps(tool)
    def call(self: Tools, *given: Any, **named: Any) -> str:
        with self._lock:
            return tool(self, *given, **named)

    return call


class Tools:
    """What a client may do with the sweeps of a storage.

    Args:
        folder: spaces lie, and files are written, below it.
        storage: the folder of sweeps.
    """

    def __init__(self, folder: Path, storage: str) -> None:
        self._folder, self._storage = folder.resolve(), storage
        self._followers: dict[Path, RecordFollower] = {}
        self._lock = threading.RLock()

    def check(self, space: str, settings: dict[str, Any] | None = None, batch: bool = False) -> str:
        """Validate a search space (a YAML file) and settings without running them; batch: also train one batch."""
        path = self._below(space)
        answer = self._command(
            ["check", path.name, *_sets(settings, _space_in(path)), *(["--batch"] if batch else [])], path.parent
        )
        return brief({"ok": True, **answer, "samples": answer["samples"][:2]})

    def plan(
        self,
        space: str,
        cluster: str,
        seconds_per_epoch: float,
        settings: dict[str, Any] | None = None,
        deadline: str | None = None,
    ) -> str:
        """Estimate a sweep's time and cost; cluster: nodes x slots per node (16x8); deadline: 8h, 90m."""
        path = self._below(space)
        words = [f"--cluster={cluster}", f"--seconds-per-epoch={seconds_per_epoch}"]
        words += _sets(settings, _space_in(path))
        more = [] if deadline is None else [f"--deadline={deadline}"]
        return brief(self._command(["plan", path.name, *words, *more], path.parent))

    def run(self, space: str, settings: dict[str, Any] | None = None, name: str | None = None) -> str:
        """Start a sweep in the background, from a search space (a YAML file); returns once it has begun."""
        path = self._below(space)
        name = name or f"{path.stem}-{time.strftime('%m%d-%H%M%S')}"
        if Path(name).name != name or name.startswith(("-", ".")):
            raise SettingsError(f"name must be that of a folder, such as digits-1, not {name!r}.")
        if any(found.folder.name == name for found in list_sweeps(self._storage)):
            raise StorageError(f"There is a sweep {name!r} already. Give another name, or none for a new one.")
        logs = self._folder / ".tunelight-logs"
        logs.mkdir(exist_ok=True)
        log = logs / f"{name}.log"
        sets = _sets(settings, _space_in(path))
        words = ["run", path.name, f"--name={name}", f"--storage={self._storage}", "--json", *sets]
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own command, and no shell
                [*_TUNELIGHT, *words], cwd=path.parent, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=process.wait, daemon=True, name=f"waits for {name}").start()
        end = time.monotonic() + _BEGIN_S
        while time.monotonic() < end:
            driver = None
            with contextlib.suppress(StorageError):
                driver = driver_of(self._find(name))
            if driver is not None and driver.pid == process.pid:
                return brief({"sweep": name, "pid": process.pid, "log": log})
            if process.poll() is not None:
                text = log.read_text(errors="replace")
                if process.returncode == 0:
                    return brief({"sweep": name, "ended": True, "log": log})
                raise CommandError(_error_in(text) or f"The sweep ended at once; {log} ends with: {text[-_MOST_TEXT:]}")
            time.sleep(_LOOK_S)
        return brief({"sweep": name, "pid": process.pid, "log": log, "note": "it has not begun yet"})

    @_alone
    def list_(self, newest: int = 10, state: str | None = None) -> str:
        """List the newest sweeps, with counts of their trials and their best values. state: running, finished, ..."""
        rows = []
        known = list_sweeps(self._storage)
        for found in known[:_MOST_SWEEPS]:
            try:
                rows.append(self._about(self._results(found.folder.name)))
            except TunelightError as error:
                rows.append({"sweep": found.folder.name, "state": "unreadable", "error": str(error)})
        states = [str(row["state"]) for row in rows]
        if state is not None and rows and state not in states:
            raise SettingsError(unknown("No sweep is", state, dict.fromkeys(states)))
        chosen = [row for row in rows if state in (None, row["state"])][: max(1, newest)]
        return brief({"sweeps": len(known), "states": Counter(states), "newest": chosen}, items=_MOST_SWEEPS)

    @_alone
    def show(self, sweep: str = "last", trial: str | None = None, top: int = 5, since: int | None = None) -> str:
        """Show a sweep or one trial; since: the cursor of an earlier answer, to see only what has changed."""
        results = self._results(sweep)
        size = self._followers[results.folder].read
        if trial is not None:
            each = results.trial(trial)
            reports = [{**report, "timestamp": None} for report in each.history[-3:]]
            return brief({
                **_trial(each), "seconds": each.seconds, "stop_reason": each.stop_reason, "error": each.error,
                "last_reports": [{key: value for key, value in r.items() if value is not None} for r in reports],
            })  # fmt: skip
        about = self._about(results)
        if since is not None:
            if since > size or since < 0:
                raise SettingsError(f"since is the cursor of an earlier answer, at most {size}, not {since}.")
            return brief({**about, "changed": _changed(results, since), "since": size}, items=_MOST_TRIALS)
        best = [_trial(each) for each in results.top(min(max(1, top), _MOST_TRIALS))]
        return brief({**about, "top": best, "since": size}, items=_MOST_TRIALS)

    @_alone
    def stop(self, sweep: str, trial: str | None = None) -> str:
        """Stop a trial of a running sweep, or without one the sweep, which can be resumed."""
        return self._ask(sweep, "stop", trial)

    def enqueue(self, sweep: str, config: dict[str, Any]) -> str:
        """Try a configuration next in a running sweep: dotted keys and values."""
        return self._ask(sweep, "enqueue", config=config)

    def branch(self, sweep: str, trial: str, config: dict[str, Any] | None = None) -> str:
        """Train one more trial from another's newest checkpoint, with changed keys; no scheduler stops it."""
        return self._ask(sweep, "branch", trial, config=config or {})

    def set_(self, sweep: str, name: Literal["max_concurrent", "num_samples"], value: int | None) -> str:
        """Change a running sweep: trials at a time, or trials in all."""
        return self._ask(sweep, "set", None, **{name: value})

    @_alone
    def best(
        self, sweep: str = "last", trial: str = "best", export: str | None = None, format: str | None = None
    ) -> str:
        """Show the best trial or another; export: also write its configuration to this file below the folder."""
        results = self._results(sweep)
        chosen = results.trial(trial)
        about = {**_trial(chosen), "reports": len(chosen.history), "checkpoint": chosen.address}
        if export is not None:
            target = self._below(export, new=True)
            words = [f"--export={target}", *([] if format is None else [f"--format={format}"])]
            answer = self._command(["best", str(results.folder), chosen.id, *words], self._folder)
            about |= {"wrote": target.relative_to(self._folder), "format": answer["exported"]}
        elif format is not None:
            raise SettingsError("format says how to export, but not where. Give export, too.")
        return brief(about)

    def report(self, sweep: str = "last", out: str | None = None) -> str:
        """Write an HTML report of a sweep to a file below the folder (default: SWEEP.html); return its path."""
        results = self._results(sweep)
        target = self._below(out or f"{results.name}.html", new=True)
        self._command(["report", str(results.folder), f"--out={target}"], self._folder)
        return brief({"wrote": target.relative_to(self._folder)})

    # --- what they share ----------------------------------------------------------------------------------

    def _below(self, given: str, *, new: bool = False) -> Path:
        """Return a path below the folder, links followed. Raises: SettingsError."""
        path = (self._folder / Path(given).expanduser()).resolve()
        if not path.is_relative_to(self._folder):
            raise SettingsError(f"{given} is not below {self._folder}, the folder that this server was started for.")
        if path.is_relative_to(Path(self._storage).resolve()):
            what = "to which only sweeps write" if new else "from which no code is run"
            raise SettingsError(f"{given} is in the folder of sweeps, {self._storage}, {what}.")
        if path.name.startswith("-"):
            raise SettingsError(f"{given}: a file's name must not begin with a dash, as options do.")
        if new and path.exists() and path.suffix != ".html":
            raise SettingsError(f"{given} exists already. Give another name.")
        if not new and not path.is_file():
            files = (
                file for file in sorted(self._folder.glob("**/*.y*ml"))[:200] if "tunelight_runs" not in file.parts
            )
            names = [str(file.relative_to(self._folder)) for file in files][:_MOST_ITEMS]
            raise SettingsError(
                f"There is no file {given!r}.{guess(given, names)} There are: {first_of(names, _MOST_ITEMS) or 'none'}."
            )
        return path

    def _command(self, words: Sequence[str], cwd: Path) -> dict[str, Any]:
        """Run a command of tunelight, and return the JSON that it printed. Raises: CommandError."""
        try:
            done = subprocess.run(  # noqa: S603 - our own command, and no shell
                [*_TUNELIGHT, *words, "--json"], cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                errors="replace", timeout=_CHECK_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"tunelight {words[0]} took longer than {_CHECK_S:.0f} s, and was ended.") from error
        answer = _last_json(done.stdout)
        if answer is None or answer.keys() == {"error"}:
            raise CommandError(_error_in(done.stdout) or f"tunelight {words[0]} failed: {done.stderr[-_MOST_TEXT:]}")
        return answer

    def _find(self, sweep: str) -> Path:
        """Return the folder of a sweep of the storage: the working directory's are none. Raises: StorageError."""
        if sweep == "last":
            return find_sweep(sweep, self._storage)
        known = {found.folder.name: found.folder for found in list_sweeps(self._storage)}
        if sweep not in known:
            names = first_of([*known], _MOST_ITEMS) or "none"
            raise StorageError(f"There is no sweep {sweep!r}.{guess(sweep, known)} There are: {names}; or say 'last'.")
        return known[sweep]

    def _results(self, sweep: str) -> SweepResults:
        """Return the results of a sweep as its record is now. Raises: StorageError."""
        folder = self._find(sweep)
        with self._lock:
            follower = self._followers.pop(folder, None) or RecordFollower(folder, brief=True)
            self._followers[folder] = follower
            while len(self._followers) > _MOST_FOLLOWED:
                del self._followers[next(iter(self._followers))]
            follower.look()
            return SweepResults(folder, follower.state, read_sweep_file(folder))

    def _about(self, results: SweepResults) -> dict[str, Any]:
        best = results.best if results.top(1) else None
        return {
            "sweep": results.name,
            "state": results.ended or ("cut off" if live_driver_of(results.folder) is None else "running"),
            "trials": {state: count for state, count in results.record.counts.items() if count},
            "metric": f"{results.metric} ({results.mode})",
            "best": None if best is None else best.value,
            "best_trial": None if best is None else best.id,
        }

    def _ask(self, sweep: str, do: str, trial: str | None = None, **arguments: Any) -> str:
        results = self._results(sweep)
        space = read_sweep_file(results.folder).get("space")
        for key, value in flatten(arguments.get("config") or {}).items():
            _check_plain(key, value, _written(space, key))
        known = None if trial is None else results.trial(trial).id
        return brief(
            {"sweep": results.name, "answer": ask(RecordFollower(results.folder, brief=True), do, known, **arguments)}
        )


_TUNELIGHT: Final = (sys.executable, "-m", "tunelight")


def brief(data: Any, items: int = _MOST_ITEMS) -> str:
    """Return data as short JSON: five significant digits, and long lists and texts cut."""
    return json.dumps(_brief(data, items), separators=(",", ":"), ensure_ascii=False)


def _brief(value: Any, items: int) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _brief(part, items) for key, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        parts = [_brief(part, items) for part in value[:items]]
        return parts if len(value) <= items else [*parts, f"... {len(value) - items} more"]
    if value is None or isinstance(value, bool | int):
        return value
    text = masked(str(value))
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def _trial(trial: Any) -> dict[str, Any]:
    return {"trial": trial.id, "state": trial.state, "value": trial.value, "config": flatten(trial.plain_config)}


def _changed(results: SweepResults, since: int) -> dict[str, Any]:
    """Return what the record says from a byte on: trials by id, and the last remarks."""
    trials: dict[str, dict[str, Any]] = {}
    notes = []
    with record_of(results.folder).open("rb") as stream:
        stream.seek(since)
        lines = [line for chunk in stream.read().split(b"\n")[:-1] if (line := parse(chunk)) is not None]
    for line in lines:
        kind, trial = line["kind"], str(line.get("trial"))
        if kind == "report":
            now = trials.setdefault(trial, {})
            now["reports"] = now.get("reports", 0) + 1
            now["last"] = metric_value(line["metrics"], results.metric)
        elif kind == "state":
            trials.setdefault(trial, {})["state"] = line["state"]
        elif kind in {"note", "command"}:
            notes.append(line.get("text") or line.get("said"))
    shown = {key: trials[key] for key in list(trials)[-_MOST_TRIALS // 2 :]}
    return {"trials": len(trials), "latest": shown, "notes": notes[-3:]}


def _sets(settings: Mapping[str, Any] | None, space: Any = None) -> list[str]:
    """Return settings as options of a command, which are looked at as that command reads them.

    ``space``: the search space as it is written, whose keys may be fixed. Raises: SettingsError for what a client may
    not give.
    """
    lines = [f"{name}={json.dumps(value)}" for name, value in (settings or {}).items()]
    for name, value in read_sets(lines).items():
        part, _, argument = name.partition(".")
        domain = _written(space, name)
        if name in SETTINGS:
            if name not in _HARMLESS:
                raise SettingsError(f"{name} cannot be set here: write it into the search space's file.")
        elif domain is None and not (part == "trainer" and argument in _OF_TRAINER):
            valid = [*flatten(space if isinstance(space, Mapping) else {}), *sorted(_HARMLESS)]
            raise SettingsError(unknown("There is neither a key of the space nor a harmless setting", name, valid))
        _check_plain(name, value, domain, nested=name in SETTINGS)
    return [f"--set={line}" for line in lines]


def _check_plain(name: str, value: Any, domain: Any = None, *, nested: bool = False) -> None:
    """Raise SettingsError for a value that could name code or a place, and that ``domain``, as written, does not."""
    match value:
        case None | bool() | int() | float():
            return
        case str() if name == "metric" or _WORDS.fullmatch(value) or value in _texts(domain):
            return
        case list():
            for part in value:
                _check_plain(name, part, domain, nested=nested)
            return
        case dict() if nested and all(_KEY.fullmatch(str(key)) and key not in _BUILT for key in value):
            for part in value.values():
                _check_plain(name, part, nested=True)
            return
    raise SettingsError(
        f"{name} takes numbers, true, false, null and plain words here, and text that the search space lists, not "
        f"{value!r}. Write anything else into the search space's file."
    )


def _written(space: Any, key: str) -> Any:
    """Return what a search space as it is written says of a dotted key; None for a key that it lacks."""
    if not isinstance(space, Mapping):
        return None
    space = space.get("parameters", space)  # W&B's way to nest keys
    if not isinstance(space, Mapping) or key in space:
        return space.get(key) if isinstance(space, Mapping) else None
    found = (_written(below, key[len(name) + 1 :]) for name, below in space.items() if key.startswith(f"{name}."))
    return next((value for value in found if value is not None), None)


def _texts(domain: Any) -> set[str]:
    """Return the text among the values that a domain lists."""
    if isinstance(domain, str):
        return {domain}
    parts = domain.values() if isinstance(domain, Mapping) else domain if isinstance(domain, list | tuple) else ()
    return {text for part in parts for text in _texts(part)}


def _space_in(path: Path) -> Any:
    """Return the search space in a file as it is written; None in a file of other kind. Raises: SpaceError."""
    if path.suffix.lower() not in (".yaml", ".yml"):
        return None
    data = YamlFile(path).data
    return data.get("space", data) if isinstance(data, Mapping) else None


def _last_json(text: str) -> dict[str, Any] | None:
    """Return the last object that a text ends with: a user's code may print before it."""
    for begin in reversed([*re.finditer(r"^\{", text, re.MULTILINE)]):
        with contextlib.suppress(ValueError):
            return dict(json.loads(text[begin.start() :]))
    return None


def _error_in(text: str) -> str | None:
    """Return the message of the error that a command printed as JSON; None where it printed none."""
    for line in reversed(text.splitlines()):
        if line.startswith('{"error"'):
            return str(json.loads(line)["error"]["message"])
    return None

"""Reports of a script that makes none: what its rank 0 logs with W&B, MLflow or TensorBoard, or prints."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from numbers import Number
from pathlib import Path
from typing import Any, Final

from tunelight.compat import replaced
from tunelight.errors import GangError
from tunelight.gang.output import LOG, Bytes, follow
from tunelight.session.session import Session
from tunelight.settings.checks import flatten


class _Summary(dict[str, Any]):
    """What a script writes into its run's summary, which counts where it has logged nothing."""


_CALLS: Final[tuple[tuple[str, str, str, str, tuple[str, ...]], ...]] = (
    ("wandb", "wandb.sdk.wandb_run", "Run", "log", ("data",)),
    ("wandb", "wandb.sdk.wandb_summary", "SummaryDict", "update", ("d",)),
    ("mlflow", "mlflow", "", "log_metric", ("key", "value")),
    ("mlflow", "mlflow", "", "log_metrics", ("metrics",)),
    ("torch.utils.tensorboard", "torch.utils.tensorboard", "SummaryWriter", "add_scalar", ("tag", "scalar_value")),
    ("tensorboardX", "tensorboardX", "SummaryWriter", "add_scalar", ("tag", "scalar_value")),
    ("accelerate", "accelerate", "Accelerator", "log", ("values",)),
)
"""What a script imports, then the module, the class (or none) and the call that logs, and its arguments that are a
metric's name and value, or hold several."""


def _metrics(kind: str, names: tuple[str, ...], *args: Any, **kwargs: Any) -> Mapping[str, Any]:
    """Return what a call logs."""
    given = {**kwargs, **dict(zip(names, args, strict=False))}
    first, *value = (given[name] for name in names)
    return {first: value[0]} if value else _Summary(first) if kind == "SummaryDict" else first


class LoggedReports:
    """Makes a report of each step at which the sweep's metric is logged on rank 0. Runs on: worker.

    Only rank 0 need log, and a report is for all ranks: they make it together before their next step of an optimizer,
    and what is left when the script has ended. Until then it takes in what a script logs of the same step by calls of
    their own. A gang of one reports at once what is printed, or logged with others by one call. What is printed counts
    until a library has logged the metric, and where a Trainer is made, which may report, once the script has ended.

    ``written``: whether the script has the metric's name in its own text, so that it may log or print it itself. A
    fork of the process makes none, whose copy of the session nobody hears; what it prints is read from the log.
    """

    def __init__(self, session: Session, *, libraries: bool = False, written: bool = False) -> None:
        self._session, self._context = session, session.context
        self._metric = session.context.metric
        self._lead = session.context.rank == 0
        self._libraries = libraries
        self._written = written
        self._thread, self._process = threading.current_thread(), os.getpid()
        self._turn = self._made = self._asked = 0
        self._values: dict[str, Any] = {}
        self._summary: dict[str, Any] = {}
        self._pending: list[dict[str, Any]] = []
        self._printed: list[dict[str, Any]] | None = []
        self.names: dict[str, None] = {}
        """The names of all that was logged, in order."""
        self.ends = False
        """True once the script reports by itself, or a Trainer of its: no more reports are made."""
        self.held = False
        """True while a Trainer may report: none are made until the script has ended."""
        self.depth = 0
        """How many calls that log are running: some call others."""
        self.look: Callable[[bool], object] = lambda _: None
        """Looks for what was printed elsewhere; ``last``: nothing more will be."""

    def __deepcopy__(self, memo: dict[int, Any]) -> LoggedReports:
        """Return these: a copy of a Trainer's callbacks belongs to the same trial."""
        return self

    @property
    def forked(self) -> bool:
        """Whether this is the copy of a forked child."""
        return os.getpid() != self._process

    @property
    def from_log(self) -> bool:
        """Whether what this process prints is read from the trial's log, as other children's."""
        return self.forked and self._context.world_size == 1

    def left_to_trainer(self, names: Iterable[str]) -> bool:
        """Tell whether a Trainer that has these metrics makes the reports. Called on all ranks.

        It does where the sweep's metric is among them, and where the script does not name that: the report is the error
        that says so. Otherwise what the script logs or prints itself counts, such as a mean over several fits.
        """
        if self.forked:
            return False
        if not self.ends:
            names = list(names)
            mine = self._metric is None or self._metric in names or not self._written
            self._asked += 1
            if self._context.world_size > 1:
                mine = self._session.boundary.agree(f"logged/trainer {self._asked}", str(int(mine))) == "1"
            self.ends = mine
            self.names |= dict.fromkeys(names)
        return self.ends

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Keep what was logged; with the sweep's metric among it, a report is due."""
        numbers = {str(name): value for name, value in flatten(metrics).items() if _is_number(value)}
        self.names |= dict.fromkeys(numbers)
        if self.ends or not self._lead or self.forked:
            return
        if isinstance(metrics, _Summary):
            self._summary |= numbers
            return
        if self._metric in numbers:
            self._printed = None
            self._at_once()
            self._pending.append(self._values | numbers)
            self._values = {}
            if len(metrics) > 1:
                self._at_once()
            return
        for name, value in numbers.items():  # of that step, or else of the next one
            late = self._pending and name not in self._pending[-1]
            (self._pending[-1] if late else self._values)[name] = value

    def read(self, value: float) -> None:
        """Keep a value of the sweep's metric that was printed."""
        if self._printed is None or self.ends or self._metric is None or self.forked:
            return
        self._session.note(f"{self._metric} is read from what rank 0 prints.")
        self._printed.append({self._metric: value})
        if not self._libraries:  # else one of them may log the same in a moment
            self._at_once()

    def _at_once(self) -> None:
        if self._context.world_size == 1 and not self.held and threading.current_thread() is self._thread:
            self._report(self._total() - self._made)

    def _total(self) -> int:
        """Return how many reports there have to be by now."""
        self.look(False)
        if self._printed:
            self._pending += self._printed
            self._printed.clear()
        return self._made + len(self._pending)

    def agree(self, *_: Any) -> None:
        """Make the reports that are due on rank 0. Called on all ranks before each step of an optimizer."""
        if self.ends or self.held or self.forked:
            return
        if self._context.world_size == 1:
            self._at_once()
            return
        self._turn += 1
        past = f"logged/{self._turn - _KEPT}" if self._turn > _KEPT else ""
        answer = self._agree(f"logged/{self._turn}", past=past)
        if answer.startswith(_END):
            raise GangError(
                f"Rank {self._context.rank} made step {self._turn} of its optimizers, and rank 0's script has ended "
                "after fewer. Metrics that rank 0 logs are reported at those steps: call tunelight.report(metrics) on "
                "all ranks instead."
            )
        self._report(int(answer) - self._made)

    def end(self) -> None:
        """Make the reports that are left, and take rank 0's names. Called on all ranks once the script has ended."""
        if self.ends:
            return
        self.held = False
        self.look(True)
        if self._metric in self._summary and not self._total():
            self._pending.append(self._summary)
        if self._context.world_size == 1:
            self._at_once()
        else:
            total, names = json.loads(self._agree(_LAST, _END, names=list(self.names)).removeprefix(_END))
            self.names = dict.fromkeys(names)
            self._report(total - self._made)

    def _agree(self, turn: str, begin: str = "", past: str = "", names: list[str] | None = None) -> str:
        """Return how many reports there have to be by now, and names if given, as rank 0 tells after ``begin``."""
        message = json.dumps(self._total() if names is None else [self._total(), names])
        return self._session.boundary.agree(turn, begin + message, end=_LAST, past=past)

    def _report(self, count: int) -> None:
        for _ in range(count):
            metrics = self._pending.pop(0) if self._pending else {}
            self._made += 1
            self._context.report(metrics)


_KEPT: Final = 1000
"""How many steps rank 0's words of earlier steps are kept for ranks that have yet to come there."""
_LAST, _END = "logged/end", "end "
"""The turn at the script's end, and how its message begins."""


def _is_number(value: Any) -> bool:
    if isinstance(value, Number):
        return not isinstance(value, bool)
    return callable(getattr(value, "item", None)) and getattr(value, "ndim", getattr(value, "size", 0)) == 0


@contextlib.contextmanager
def logged(session: Session, imported: set[str], texts: Iterable[str] = ()) -> Iterator[LoggedReports]:
    """Report what is logged meanwhile with a library that the script imports, or else what it prints.

    A script that imports tunelight reports by itself. ``texts``: those in the script's own code.
    """
    libraries, metric = any(library in imported for library, *_ in _CALLS), session.context.metric
    written = metric is not None and any(map(name_of(metric).search, texts))
    reports = LoggedReports(session, libraries=libraries, written=written)
    with contextlib.ExitStack() as stack:
        if "tunelight" in imported or metric is None:
            reports.ends = True
            yield reports
            return
        for library, module, kind, name, words in _CALLS:
            if library in imported:
                try:
                    home = import_module(module)
                except ImportError:  # the script will say so, if it needs it
                    continue
                read = functools.partial(_metrics, kind, words)
                stack.enter_context(_told(getattr(home, kind) if kind else home, name, read, reports))
        if session.context.rank == 0:
            stack.enter_context(_read_prints(metric, reports, session))
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        stack.callback(register_optimizer_step_pre_hook(reports.agree).remove)
        yield reports


@contextlib.contextmanager
def _read_prints(metric: str, reports: LoggedReports, session: Session) -> Iterator[None]:
    """Read the metric from what this process and its children print, and what it logs to standard error."""
    reader = Reader(metric, reports.read, session.note)
    before = (sys.stdout, sys.stderr)
    streams = sys.stdout, sys.stderr = [_Printed(output, metric, reports, reader) for output in before]
    moved = follow(before, streams[1])
    children = _Children(Path(session.context.trial_dir, LOG), reader)

    def look(last: bool) -> None:
        if session.context.world_size == 1:
            children.look(last)
        if last:
            for stream in streams:
                stream.finish()
            reader.end()

    reports.look = look
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for handler, stream in moved:
            handler.setStream(stream)


class _Printed:
    """A standard stream that hands values of the metric, as in "val_loss: 0.43", to ``reports``."""

    def __init__(self, stream: Any, metric: str, reports: Any, reader: Reader | None = None) -> None:
        self._stream, self._reports, self._open = stream, reports, ""
        self._reader = reader or Reader(metric, reports.read)
        self._process, self._forked = os.getpid(), False

    def write(self, text: str) -> int:
        if self._process != os.getpid():
            self._process, self._forked, self._open = os.getpid(), True, ""  # that line is its parent's
        from_log = self._forked and self._reports.from_log and not self._reports.ends
        if not from_log:
            self._stream.write(text)
        if not self._reports.ends:
            *lines, self._open = (self._open + text).split("\n")
            self._open = self._open[-_LONGEST:]
            if from_log and lines:
                os.write(1, "".join(f"{line}\n" for line in lines).encode(errors="replace"))  # without a rank
            for line in [] if from_log else lines:
                self._take(line.rstrip("\r"))
        return len(text)

    def _take(self, line: str) -> None:
        bars = [bar for bar in line.split("\r") if bar.strip()]
        if bars:
            self._reader.take(bars[-1], self, bar="\r" in line)

    def finish(self) -> None:
        """Read the last line, which has no end."""
        self._take(self._open)
        self._open = ""

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    @property
    def buffer(self) -> Any:
        """What takes bytes."""
        return Bytes(lambda data: self.write(data.decode(errors="replace")))

    def detach(self) -> Any:
        return self.buffer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Children:
    """The lines in a trial's log that child processes and libraries have written: they begin with no rank."""

    def __init__(self, log: Path, reader: Reader) -> None:
        self._log, self._reader, self._open, self._looked = log, reader, b"", 0.0
        self._at = log.stat().st_size if log.exists() else 0

    def look(self, last: bool) -> None:
        """Read what has come, twice a second at most; a line without an end only at the ``last`` look."""
        if not last and time.monotonic() - self._looked < _LOOK_S:
            return
        self._looked = time.monotonic()
        try:
            with self._log.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except OSError:
            return
        self._at += len(data)
        *lines, self._open = (self._open + data).split(b"\n")
        if last:
            lines.append(self._open)
        for line in lines:
            if not re.match(rb"\[\d+\] ", line):
                *_, text = line.decode(errors="replace").rstrip("\r").split("\r")
                self._reader.take(text, self, bar=b"\r" in line.rstrip(b"\r"))


_LOOK_S: Final = 0.5
_LONGEST: Final = 4000
"""How much of a line that has no end is kept."""


@contextlib.contextmanager
def writers_inside(folder: str, imported: set[str]) -> Iterator[None]:
    """Let writers of TensorBoard that are given no folder write into this one."""
    with contextlib.ExitStack() as stack:
        for library in ("torch.utils.tensorboard", "tensorboardX"):
            if library in imported:
                with contextlib.suppress(ImportError):
                    stack.enter_context(_inside(import_module(library).SummaryWriter, folder))
        yield


@contextlib.contextmanager
def _inside(writer: type, folder: str) -> Iterator[None]:
    make: Any = writer.__init__  # type: ignore[misc]

    @functools.wraps(make)
    def made(self: Any, log_dir: Any = None, *args: Any, **kwargs: Any) -> None:
        make(self, log_dir or kwargs.pop("logdir", None) or str(Path(folder, "runs")), *args, **kwargs)

    with replaced(writer, __init__=made):
        yield


@contextlib.contextmanager
def _told(home: Any, name: str, read: Callable[..., Mapping[str, Any]], reports: LoggedReports) -> Iterator[None]:
    """Let a call, a function of a module or a method of a class, also tell ``reports`` of what it logs."""
    call = getattr(home, name)
    first = 1 if isinstance(home, type) else 0

    @functools.wraps(call)
    def log(*args: Any, **kwargs: Any) -> Any:
        reports.depth += 1
        try:
            done = call(*args, **kwargs)
        finally:
            reports.depth -= 1
        if not reports.depth:
            reports.log(read(*args[first:], **kwargs))
        return done

    with replaced(home, **{name: log}):
        yield


# --- Values of the sweep's metric in what a script prints: which of its lines report one ----------


_NUMBER: Final = (
    r"[-+]?(?:[1-9]\d{0,2}(?:[,_]\d{3})+(?![,_]?\d)(?:\.\d+)?|0,\d++(?!,\d)(?:e[-+]?\d+)?"
    r"|(?:\d++(?!,\d)(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|nan|inf(?:inity)?)(?!\w)(?!\.\d)"
)
"""A number: "15,000.5" has groups, "0,43" a decimal comma, and "1,2", which may be either or two, is none."""
_BETWEEN: Final = (
    r"[\"'`*\]]*+(?:\s*+[(\[][^()\[\]\d]*[)\]])?[\"'`*]*+\s*+(?:[:=|│┃~≈]|=>|[-=]>|→|is\s|was\s|of\s|\.{2,}+|-\s)?\s*+"
    r"(?:<tf\.Tensor:[^>]*?numpy=|(?:[a-z_][\w.]*+\s*+\()?[\[({<'\"`*$]*+)\s*+"
)
"""What may stand between a name and its number: quotes, a unit in brackets, a sign of equality, `tensor(`."""
_BEST: Final = re.compile(
    r"\b(?:best|lowest|highest|min(?:imum)?|max(?:imum)?|prev(?:ious)?|peak|optim(?:al|um)|target|baseline)\b",
    re.IGNORECASE,
)
"""Words for a value that is not the line's own."""
_COUNTED: Final = re.compile(r"\b(?:epochs?|ep|steps?|iter\w*|round|fold|run)\W{0,3}\d+(?:\s*/\s*\d+)?", re.IGNORECASE)
_CLAUSE: Final = re.compile(r"[|;,()\[\]{}\t]|\s{2,}|\.\s|\d")
_OF: Final = re.compile(r"(?<![\w./:-])(\d+)\s*(?:/|of)\s*(\d+)(?![\w/:-]|\.\d)", re.IGNORECASE)
_BATCH: Final = re.compile(r"\b(?:mini)?batch\W{0,3}(\d+)", re.IGNORECASE)
_BAR: Final = re.compile(r"\d%\||\bit/s\b|\bs/it\b|[█━▏▎▍▌▋▊▉]{2}")
_EPOCH: Final = re.compile(r"\bep(?:och)?s?\W{0,3}(\d+)", re.IGNORECASE)
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_EPOCHS: Final = ("ep", "round", "fold", "run", "trial", "gen", "cycle")
_STEPS: Final = ("step", "iter", "it", "update")
_VALIDATION: Final = re.compile(r"val|test|eval|dev", re.IGNORECASE)
_TRAINING: Final = re.compile(r"(?<![a-z])train(?!\.py)", re.IGNORECASE)
_MOST_CHARS: Final = 4000
"""How much of a line is looked at."""


def name_of(metric: str) -> re.Pattern[str]:
    """Return what finds a metric's name in text."""
    name = r"\s+".join(map(re.escape, metric.split()))
    return re.compile(rf"(?<![\w./@-]){name}(?!\w)", re.IGNORECASE)


@dataclass
class _Run:
    """Lines of single batches, one after another: what they begin with, and the last of them."""

    label: str
    value: float
    at: int = 0
    over: bool = False


@dataclass
class Reader:
    """Finds the metric's values in lines, and hands those that count as reports to ``report``.

    A line of a single batch is no report: it has a counter ("[ 10/196]", not that of epochs), is a progress bar, or
    repeats its epoch. Of such lines the last of each validation counts, unless another line sums them up. A value of
    training, by its line or the heading above ("Train metrics:"), counts only where none of a validation follows.
    """

    metric: str
    report: Callable[[float], object]
    note: Callable[[str], object] = lambda _: None
    _source: Any = None
    _best: list[float] = field(default_factory=list)
    _runs: list[_Run] = field(default_factory=list)
    _summed: bool = False
    _label: str | None = None
    _reported: int = 0
    _epoch: tuple[str, str] | None = None
    _again: float | None = None
    _repeats: bool = False
    _heading: str = ""
    _trained: tuple[float, str] | None = None
    _validated: bool = False

    def __post_init__(self) -> None:
        self._name = name_of(self.metric)
        self._value = re.compile(rf"{_BETWEEN}({_NUMBER})(?:\s?\(\s?({_NUMBER})\s?\))?", re.IGNORECASE)

    def take(self, line: str, source: Any = None, *, bar: bool = False) -> None:
        """Take a line. Once one ``source`` has reported, others, which may say the same, do not."""
        line = re.sub(r"\s{2,}", "  ", _ESCAPES.sub("", line))[:_MOST_CHARS]  # a table's columns may be far apart
        if self._source not in (None, source):
            return
        found = self._found(line)
        if found is None:
            self._close_run()
            self._heading = line if line.rstrip().endswith(":") else self._heading
        elif found[1]:
            self._best.append(found[0])
        elif (batch := _batch(line, line[: found[2]], bar=bar)) is not None:
            self._take_batch(found[3], *batch)
        else:
            self._runs, self._summed, self._source = [], self._summed or bool(self._runs), source
            trains = self._trains(line[: found[2]])
            self._validated |= self._trained is not None and not trains
            self._release()
            if trains:
                self._trained = found[0], line
            else:
                self._take_epoch(found[0], line)

    def _trains(self, start: str) -> bool:
        """Tell whether a value is of training, by what stands before its name, or above; never where the name tells."""
        if _TRAINING.search(self.metric) or _VALIDATION.search(self.metric):
            return False
        words = _CLAUSE.split(start)[-1] if re.search("[A-Za-z]", start) else self._heading
        return _TRAINING.search(words) is not None and _VALIDATION.search(words) is None

    def _release(self) -> None:
        """Report a value of training, if none of a validation ever follows one."""
        if self._trained is not None and not self._validated:
            self._take_epoch(*self._trained)
        self._trained = None

    def end(self) -> None:
        """Report what was held back: there is no line left that could sum it up."""
        self._release()
        if self._again is not None:
            self._report(self._again)
            self._again = None
        if self._runs and not self._summed:
            if self._label is None:
                self._settle()
            self._flush()
        if not self._reported:
            for value in self._best:
                self._report(value)
        self._runs = []

    def _found(self, line: str) -> tuple[float, bool, int, float] | None:
        """Return a line's last value of the metric, whether it is only the best so far, and where its name begins.

        Last: the mean behind it, as in "12.5 (50.5)", of this batch and those before; else the value again.
        """
        found: tuple[float, bool, int, float] | None = None
        summary = re.match(r"\W*(?:(?:the|new|current|overall|loaded|saving|saved)\W+)*", line)
        begins = _BEST.match(line, summary.end() if summary else 0)
        for name in self._name.finditer(line):
            value = self._value.match(line, name.end())
            if value is None:
                continue
            before = _CLAUSE.split(_COUNTED.sub("", line[: name.start()]))[-1]
            leads = begins is not None and not re.match(rf"[\s\w]*?\W*{_NUMBER}", line[begins.end() :], re.IGNORECASE)
            between = line[name.end() : value.start(1)]
            best = _BEST.search(before) is not None or _BEST.search(between) is not None or leads
            if found is None or not best or found[1]:
                found = _float(value[1]), best, name.start(), _float(value[2] or value[1])
        return found

    def _take_batch(self, value: float, label: str, at: int, of: int) -> None:
        if self._summed:
            return
        self.note(
            f"{self.metric} is also printed in lines of single batches, which are no reports: the last of each "
            "validation counts, or the line that sums it up. Call tunelight.report(metrics) to say it yourself."
        )
        last = self._runs[-1] if self._runs else None
        if last is not None and last.label == label and not last.over and at > last.at:
            last.value, last.at = value, at
        else:
            if self._label is None and any(run.label == label for run in self._runs):
                self._settle()  # a whole round has gone by, and no line has summed it up
            self._flush()
            self._runs.append(_Run(label, value, at))
        self._runs[-1].over = at == of > 0

    def _close_run(self) -> None:
        """Report a validation's last batch, behind which comes a line that does not sum it up."""
        if self._runs and self._runs[-1].over and self._label == self._runs[-1].label:
            self._flush()

    def _settle(self) -> None:
        """Choose which lines count: those of validation, if there are any, else the last ones."""
        labels = [run.label for run in self._runs]
        self._label = next((label for label in labels if _VALIDATION.search(label)), labels[-1])

    def _flush(self) -> None:
        """Report what counts of the runs that are over."""
        if self._label is not None:
            for run in self._runs:
                if run.label == self._label:
                    self._report(run.value)
            self._runs = []

    def _take_epoch(self, value: float, line: str) -> None:
        """Report a line's value; where lines repeat their epoch, the last of each: the first epoch shows whether."""
        epoch = _EPOCH.search(line)
        this = None if epoch is None else (re.sub(r"[\d.]+", "#", line.partition(epoch[0])[0]), epoch[1])
        if self._again is not None and this != self._epoch:
            self._report(self._again)
            self._again = None
        if this is not None and this == self._epoch:
            self._repeats = True
            self.note(
                f"{self.metric} is printed several times in an epoch, of which the last counts. Call "
                "tunelight.report(metrics) to say which does."
            )
        if this is not None and (self._repeats or not self._reported):
            self._again = value
        else:
            self._report(value)
        self._epoch = this

    def _report(self, value: float) -> None:
        self._reported += 1
        self.report(value)


def _float(number: str) -> float:
    return float(re.sub("[,_]", "", re.sub(r"^(\D?0),", r"\1.", number)))


def _batch(line: str, start: str, *, bar: bool) -> tuple[str, int, int] | None:
    """Return the beginning, the counter and the end of a line of a single batch; None for another line.

    ``start``: what comes before the metric's name.
    """
    epoch, steps = False, (0, 0)
    for counter in _OF.finditer(start):
        head = line[: counter.start()]
        words = re.findall(r"[A-Za-z]+", head)
        word = re.search(r"([A-Za-z]*)[\s:=(\[#]*$", head)
        name = word[1].lower() if word is not None else ""
        if name.startswith(_EPOCHS):
            epoch = True
        elif not (words or any(steps)) or (name.startswith(_STEPS) and not (epoch or _EPOCH.search(head))):
            # "[1/3]" is of epochs, unless it is a progress bar's; of "[1/3][10/196]" the second is of batches.
            steps = int(counter[1]), int(counter[2])
        else:
            return " ".join(words), int(counter[1]), int(counter[2])
    if (batch := _BATCH.search(start)) is not None:
        return " ".join(re.findall(r"[A-Za-z]+", start[: batch.start()])), int(batch[1]), 0
    if bar or _BAR.search(line):
        return " ".join(re.findall(r"[A-Za-z]+", start.partition("|")[0])), *steps
    return None

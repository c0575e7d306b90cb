"""Values of the sweep's metric in what a script prints: which of its lines report one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

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
_LONGEST: Final = 4000
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
        line = re.sub(r"\s{2,}", "  ", _ESCAPES.sub("", line))[:_LONGEST]  # a table's columns may be far apart
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
            own = begins is not None and not re.match(rf"[\s\w]*?\W*{_NUMBER}", line[begins.end() :], re.IGNORECASE)
            between = line[name.end() : value.start(1)]
            best = _BEST.search(before) is not None or _BEST.search(between) is not None or own
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

"""Values as the parsers that scripts use read them back from the words that are written for them."""

from __future__ import annotations

import argparse
import contextlib
import enum
import io
import math
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from tunelight.compat.lightning import pl
from tunelight.errors import SettingsError
from tunelight.extras.scripts import probe
from tunelight.extras.scripts.style import Option, spell, spell_one
from tunelight.settings.code import Style

TEXTS = [
    "sgd", "a b", " x ", "", "it's", "say \"x\"", "a\\b", "a\\", "\\'", "1e-3", "1", "-5", "-1e-05", "01",
    "1_000", "0x10", "true", "False", "None", "null", "~", "yes", "nan", "inf", ".inf", "[1,2]", "{a: 1}", "a: b",
    "#c", "a #b", "&x", "*x", "!x", "%x", "@x", "- x", "-x", "--x", "--", "-", "a=b", "=", "a,b", "a;b", "x:y",
    "é", "ünï", "日本", "😀", "a\nb", "\t", "../p", "C:\\p", "$x", "?", "|", ">", "(x)", "f(1)", "2020-01-01",
    "lambda", "a-b", "a/b.pt", "'x'", "\"x\"", "x'y\\'z", "{}", "[]", "\x7f",
]  # fmt: skip
CHARACTERS = "ab1.-_ =,'\"\\#{}[]:$é"


class Values:
    """Draws values of all kinds."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def text(self) -> str:
        if self._rng.random() < 0.5:
            return self._rng.choice(TEXTS)
        return "".join(self._rng.choices(CHARACTERS, k=self._rng.randint(1, 6)))

    def whole(self) -> int:
        return self._rng.choice([0, 1, -1, 7, 10**12, self._rng.randint(-999, 999)])

    def real(self) -> float:
        drawn = self._rng.gauss(0, 1) * 10.0 ** self._rng.randint(-9, 9)
        return self._rng.choice([0.1, 1e-05, -1e-05, 1e22, 8.0, -0.5, math.inf, -math.inf, math.nan, drawn])

    def truth(self) -> bool:
        return self._rng.random() < 0.5

    def several(self, draw: Callable[[], Any]) -> list[Any]:
        return [draw() for _ in range(self._rng.randint(0, 3))]

    def any(self) -> Any:
        plain: list[Callable[[], Any]] = [self.text, self.whole, self.real, self.truth, lambda: None]
        lists = [lambda: self.several(self._rng.choice(plain)), lambda: [self.several(self.whole)]]
        draw: Callable[[], Any] = self._rng.choice([*plain, *lists])
        return draw()

    def of(self, kind: str) -> Any:
        """Draw for "int", "float", "str", "bool" or "object"; before it "list", or "none" where it may be None."""
        first, _, rest = kind.partition(" ")
        if first == "list":
            return self.several(lambda: self.of(rest))
        if first == "none":
            return None if self._rng.random() < 0.3 else self.of(rest)
        kinds = {"int": self.whole, "float": self.real, "str": self.text, "bool": self.truth, "object": self.any}
        return kinds[kind]()


def same(value: Any, got: Any) -> bool:
    """Tell whether a script has a value: a number may be text, and one value a list, where its option has such."""
    if isinstance(got, enum.Enum):
        got = got.value
    if isinstance(got, tuple | list):
        if isinstance(value, str):
            return True  # the script's own way to write a list
        values = value if isinstance(value, list) else [value]
        return len(values) == len(got) and all(map(same, values, got))
    if value is None or got is None:
        return value is got
    if isinstance(value, bool) or isinstance(got, bool):
        return type(got) in (bool, int, float) and type(value) in (bool, int, float) and bool(value == got)
    if "nan" in (str(value), str(got)):
        return str(value) == str(got)
    if isinstance(value, str) is isinstance(got, str):
        return bool(value == got)
    return isinstance(value, int | float | str) and _number(str(value)) == _number(str(got))


def _number(text: str) -> float | None:
    try:
        return float(text.replace("_", ""))
    except ValueError:
        return None


def check(
    kinds: Mapping[str, str],
    read: Callable[[list[str]], Mapping[str, Any]],
    options: Iterable[Mapping[str, Any]],
    style: Style = "argparse",
    *,
    refused: float = 0.3,
) -> None:
    """Write and read 2,000 values of the options' own kinds, all options at a time, and 200 of any kind, one at a time.

    The latter may be refused by the parser, but not read as other ones. ``refused``: the share of the former that
    nobody can write for this parser, at most.
    """
    known, values = tuple(map(Option.of, options)), Values(7)
    wrong: list[Any] = []
    left = drawn = 0
    while drawn < 2000:
        config = {}
        for key, kind in kinds.items():
            value = values.of(kind)
            drawn += 1
            if _is_written(style, key, value, known):
                config[key] = value
        left += len(kinds) - len(config)
        if (got := _read(read, spell(style, config, known))) is not None:
            wrong += [(key, value, got[key]) for key, value in config.items() if not same(value, got[key])]
        else:  # which one?
            alone = {key: spell(style, {key: value}, known) for key, value in config.items()}
            wrong += [(key, config[key], words) for key, words in alone.items() if _read(read, words) is None] or [
                config
            ]
    assert not wrong, f"{len(wrong)} mismatches: {wrong[:12]}"
    assert left <= refused * drawn, left
    for _ in range(200 // len(kinds)):
        for key in kinds:
            value = values.any()
            if _is_written(style, key, value, known):
                got = _read(read, words := spell(style, {key: value}, known))
                assert got is None or same(value, got[key]), (key, value, words, got and got[key])


def _is_written(style: Style, key: str, value: Any, known: tuple[Option, ...]) -> bool:
    try:
        spell_one(style, key, value, known)
    except SettingsError as error:
        assert "does not take" in str(error)  # noqa: PT017 - whether it is raised is the question
        return False
    return True


def kinds_of(text: str) -> dict[str, str]:
    pairs = (one.partition("=") for one in text.split(", "))
    return {key: kind for key, _, kind in pairs}


def _read(read: Callable[[list[str]], Mapping[str, Any]], words: list[str]) -> Mapping[str, Any] | None:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            return read(words)
        except (SystemExit, Exception):  # noqa: BLE001 - whatever a parser raises
            return None


def test_argparse() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--int", type=int, default=3)
    p.add_argument("-f", type=float)
    p.add_argument("--learning-rate", "-l", type=float, default=0.1)
    p.add_argument("--text", default="x")
    p.add_argument("--bool", type=bool, default=True)
    p.add_argument("--untyped", default=False)
    p.add_argument("--ints", type=int, nargs="+")
    p.add_argument("--again", action="append")
    p.add_argument("--added", type=int, action="append", default=[])
    p.add_argument("--fast", action="store_true")
    p.add_argument("--no-shuffle", dest="shuffle", action="store_false")
    p.add_argument("--warm", action=argparse.BooleanOptionalAction)
    p.add_argument("--size", action="store_const", const=5, default=2)
    p.add_argument("--choice", choices=["True", "False"])
    kinds = kinds_of(
        "int=int, f=float, learning_rate=float, text=str, bool=bool, untyped=bool, ints=list int, again=list str, "
        "added=list int, fast=bool, shuffle=bool, warm=bool, size=int, choice=bool"
    )
    check(kinds, lambda words: _truths(vars(p.parse_args(words))), probe.of_argparse(p, []))


def _truths(found: dict[str, Any]) -> dict[str, Any]:
    """Return values as a script uses them that asks an option without a type whether it is true."""
    untyped = {"True": True, "": False}
    choice = {"True": True, "False": False}
    return {**found, "untyped": untyped.get(*[found["untyped"]] * 2), "choice": choice.get(*[found["choice"]] * 2)}


class Model(pl.LightningModule):
    def __init__(  # noqa: PLR0917 - arguments of a model
        self,
        real: float = 0.1,
        text: str = "x",
        maybe: str | None = None,
        number: float | None = None,
        either: str | int = "",
        other: int | str = 0,
        anything: Any = None,
        nested: list[list[int]] = [],  # noqa: B006 - it is never made
        sizes: list[int] | None = None,
        names: tuple[str, ...] = (),
        fast: bool = False,
        rate: float = 1.0,
        label: str = "",
    ) -> None:
        """Be declared, and never made."""


def test_lightning_cli() -> None:
    from pytorch_lightning.cli import LightningArgumentParser

    parser, fit = LightningArgumentParser(exit_on_error=False), LightningArgumentParser(exit_on_error=False)
    fit.add_lightning_class_args(Model, "model")
    fit.add_argument("--trainer.devices", type=int | str, default="auto")
    parser.add_subcommands().add_subcommand("fit", fit)
    kinds = kinds_of(
        "model.real=float, model.text=str, model.maybe=none str, model.sizes=none list int, model.names=list str, "
        "model.fast=bool, model.rate=float, model.label=str, model.number=none float, model.either=str, "
        "model.other=str, model.anything=object, model.nested=list list int, trainer.devices=int"
    )

    def read(words: list[str]) -> dict[str, Any]:
        found = parser.parse_args(["fit", *words]).fit
        return {key: found[key] for key in kinds}

    check(kinds, read, probe.of_jsonargparse(parser, ["fit"]), "lightning", refused=0.5)


def test_hydra() -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parser = OverridesParser.create()

    def read(words: list[str]) -> dict[str, Any]:
        overrides = parser.parse_overrides(words)
        return {one.key_or_group: _plain(one.value()) for one in overrides}

    check(
        dict.fromkeys(("a", "b.c", "d"), "object") | {"text": "str", "real": "float", "rows": "list str"},
        read,
        (),
        "hydra",
    )


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return getattr(value, "text", value)


def test_fire() -> None:
    fire = pytest.importorskip("fire")
    kinds = kinds_of("a=object, b=object, text=str, real=float, rows=list str")
    check(kinds, lambda words: fire.Fire(lambda **found: found, words, serialize=lambda _: None), (), "fire")

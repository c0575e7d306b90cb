"""How a script reads hyperparameters: as options of argparse and its like, of LightningCLI, or as Hydra's overrides."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal
from types import CodeType
from typing import Any, Final, Literal

from yaml import YAMLError, safe_load

from tunelight.errors import SettingsError
from tunelight.settings.code import Style, imports, operands, script_code

_BY_IMPORT: Final[dict[str, Style]] = {
    "hydra": "hydra",
    "jsonargparse": "lightning",
    "fire": "fire",
    "tyro": "argparse",
    "simple_parsing": "argparse",
    "absl": "argparse",
    "click": "argparse",
    "typer": "argparse",
    "argparse": "argparse",
    "transformers": "argparse",  # HfArgumentParser
}
"""The libraries that read a command line, those first that call another one of them."""
READ: Final = frozenset({"argparse", "jsonargparse", "simple_parsing", "transformers"})
"""Those whose options are read; the others get --key=value."""

_BIG: Final = {"inf": "1.0e+999", "-inf": "-1.0e+999"}
"""Infinity for whoever reads JSON, Python or YAML."""
_IN_HINTS: Final[dict[type, str]] = {
    type(None): "None|NoneType|Optional",
    bool: "bool",
    int: "int|float|complex",
    float: "float|complex",
    list: "(?i:list|sequence|tuple|set|iterable|collection)",
    dict: "(?i:dict|mapping)",
}
"""How types stand in type hints."""

_MOST_TIMES: Final = 100

Kind = Literal["value", "flag", "off", "both", "many", "again", "count"]


@dataclass(frozen=True)
class Option:
    """An option of a script's parser.

    Attributes:
        names: how it is written, "--learning-rate" and "-l".
        dest: the name of its value in the script.
        kind: "value" takes one value; "flag" none, and sets ``const``; "off" none, and sets False; "both" is written
            --name or --no-name; "many" takes several values; "again" is given once for each value; "count" is given as
            often as its value says.
        type: the name of its type, "float"; empty where it has none.
        default, choices, help: as the script declares them.
        required: whether a call without it is refused.
        negatives: those of its names that set False, of a "both".
        nested: whether keys may go below it, as arguments of the class that it names.
        const: what a "flag" sets.
        spoken: how True, False and None are written, as far as its parser reads them at all.
        lists: how a list is one word: a "literal", or with this between its values; empty where it is not.
        quoted: whether text stands in quotes, for a parser that reads literals.
        count: the fewest and the most values of a "many", or of each "again"; a most of None is no limit.
        adds: whether given values are added to its default.
        before: the subcommand that it has to precede.
    """

    names: tuple[str, ...]
    dest: str = ""
    kind: Kind = "value"
    type: str = ""
    default: Any = None
    choices: tuple[Any, ...] = ()
    help: str = ""
    required: bool = False
    negatives: tuple[str, ...] = ()
    nested: bool = False
    const: Any = True
    spoken: dict[str, str] = field(default_factory=dict)
    lists: str = ""
    quoted: bool = False
    count: tuple[int, int | None] | None = None
    adds: bool = False
    before: str = ""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Option:
        """Return the option that plain data describes, without what it does not know of that."""
        known: dict[str, Any] = {one.name: found[one.name] for one in fields(cls) if found.get(one.name) is not None}
        rows: dict[str, Any] = {
            name: tuple(known[name]) for name in ("names", "choices", "negatives", "count") if name in known
        }
        return cls(**(known | rows))

    def recorded(self) -> dict[str, Any]:
        """Return what the spelling of its values depends on, as plain data."""
        plain, apart = Option(self.names), ("help", "required", "nested")
        told = {name: one for name, one in vars(self).items() if name not in apart and one != getattr(plain, name)}
        return {
            name: list(one) if isinstance(one, tuple) else one for name, one in {"names": self.names, **told}.items()
        }

    @property
    def name(self) -> str:
        """The longest of its names that do not set False."""
        return max((one for one in self.names if one not in self.negatives), key=len)

    @property
    def key(self) -> str:
        """The key of a search space that sets it: its name, as an identifier."""
        return _identifier(self.name)

    def takes_more(self, words: Sequence[str]) -> bool:
        """Tell whether a word behind these, which give it values, would be one more value."""
        several = self.kind == "many" or (self.kind == "again" and self.count is not None)
        least, most = self.count or (0, None)
        return several and least != most and (len(words) > 1 or words[0] in self.names)

    def means(self, key: str) -> bool:
        """Tell whether a key is one of its names, or that of its value."""
        return _identifier(key) in {_identifier(self.dest), *map(_identifier, self.names)}


def _identifier(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def find_style(script: str) -> tuple[Style, str]:
    """Return the style that a script's imports, and those of the modules beside it, tell; and why."""
    found = parsers_of(script)
    for library, style in _BY_IMPORT.items():
        if library in found:
            return style, found[library]
    return "argparse", "it imports no library that reads a command line in another way"


def parsers_of(script: str) -> dict[str, str]:
    """Return the libraries that read a command line among a script's imports and those of modules beside it.

    Each with the sentence that says so. Raises: SettingsError for a script that cannot be compiled.
    """
    found: dict[str, str] = {}
    for file, code in script_code(script):
        if "LightningCLI" in set(_names(code)):
            found.setdefault("jsonargparse", f"{file.name} uses LightningCLI")
        for name in imports(code):
            top = name.partition(".")[0]
            if top in _BY_IMPORT:
                found.setdefault(top, f"{file.name} imports {top}")
    return found


def imported_by(script: str) -> set[str]:
    """Return the modules that a script and those beside it import, with the packages that hold them."""
    names = {name for _, code in script_code(script) for name in imports(code)}
    return names | {name.partition(".")[0] for name in names}


def reports_itself(script: str) -> bool:
    """Tell whether a script, or a module beside it, calls tunelight's ``report``."""
    return any(
        "report" in set(_names(code)) and any(name.partition(".")[0] == "tunelight" for name in imports(code))
        for _, code in script_code(script)
    )


def texts_of(script: str) -> Iterator[str]:
    """Yield the texts in a script and the modules beside it."""
    codes = [code for _, code in script_code(script)]
    while codes:
        for value in codes.pop().co_consts:
            if isinstance(value, str):
                yield value
            elif isinstance(value, CodeType):
                codes.append(value)
            elif isinstance(value, tuple):
                yield from (one for one in value if isinstance(one, str))


def _names(code: CodeType) -> Iterator[str]:
    for operation in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
        yield from operands(code, operation)


def spell(style: Style, values: Mapping[str, Any], options: tuple[Option, ...] = ()) -> list[str]:
    """Return the arguments that give a script these values, by dotted key, in its style.

    ``options``: those of its parser, as far as they are known. Raises: SettingsError for a value that the parser would
    read as another one, or not at all.
    """
    return [word for key, value in values.items() for word in spell_one(style, key, value, options)]


def spell_one(style: Style, key: str, value: Any, options: tuple[Option, ...] = ()) -> list[str]:
    """Return the arguments for one value. Raises: SettingsError as `spell`."""
    option = option_for(key, value, options)
    if option is not None and value is None and option.default is None and not option.required:
        return []
    try:
        if style == "hydra":
            return [f"{key}={hydra(value)}"]
        if style == "fire":
            return [f"--{key}={fire(value)}"]
        if style == "lightning" and (option is None or option.kind == "value"):
            return [f"--{key}={yaml(value) if option is None else _for_hint(value, option)}"]
        return _unknown(key, value) if option is None else _SPELT[option.kind](key, value, option)
    except ValueError as error:
        name = f"--{key}" if option is None else option.name
        raise SettingsError(f"{name} does not take {value!r}, a value of the key {key!r}: {error}.") from None


def spell_within(style: Style, holder: str, key: str, value: Any, options: tuple[Option, ...] = ()) -> list[str]:
    """Return what stands for a value behind ``holder``: "--name", "--name=" or nothing; none to leave both out.

    Options that are known are spelt as by `spell_one`. Raises: SettingsError as `spell`.
    """
    name = holder.removesuffix("=").lstrip("-") or key
    words, option = spell_one(style, name, value, options), option_for(name, value, options)
    if style in ("hydra", "fire") or (style == "lightning" and option is not None and option.kind == "value"):
        option = None  # they have the key before the value
    if not words or (option is not None and holder.startswith("-")):
        return words
    if option is None and len(words) > 1 and holder.startswith("-"):
        return [holder.removesuffix("="), *words[1:]]
    before = f"{name}=" if style == "hydra" else f"--{name}=" if option is None else f"{option.name}="
    text = words[0].removeprefix(before) if len(words) == 1 and words[0].startswith(before) else _text(value)
    return [holder + text] if holder.endswith("=") else [holder, text] if holder else [text]


def option_for(key: str, value: Any, options: Sequence[Option]) -> Option | None:
    """Return the option that a key means; of several the flag that sets the value, or the first that takes it."""
    meant = [one for one in options if one.means(key)]
    for one in sorted(meant, key=lambda one: one.kind != "flag" or one.const != value):
        with contextlib.suppress(ValueError):
            _SPELT[one.kind](key, value, one)
            return one
    return meant[0] if meant else None


# --- argparse and its like --------------------------------------------------------------------------------


def _unknown(key: str, value: Any) -> list[str]:
    """Spell a value for an option of which nothing is known; one that is None is left out."""
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [f"--{key}", *map(_text, value)]
    return [f"--{key}={_text(value)}"]


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, Mapping | list) else str(value)


def _joined(option: Option, text: str) -> list[str]:
    """Join a name and a value."""
    name = option.name
    if text == "--":
        raise ValueError("its parser drops that text")
    if len(name) > 2:
        return [f"{name}={text}"]
    return [f"{name}{text}"] if text else [name, text]


def _value(_key: str, value: Any, option: Option) -> list[str]:
    return _joined(option, _word(value, option))


def _flag(_key: str, value: Any, option: Option) -> list[str]:
    if value is not None and value == option.const:
        return [option.name]
    if value == option.default or (option.default is None and value in (None, False)):
        return []
    raise ValueError(f"it sets {option.const!r}, and is {option.default!r} where it is not given")


def _off(key: str, value: Any, option: Option) -> list[str]:
    if value not in (True, False):
        raise ValueError("it is a switch, for true and false")
    switched = bool(value) is not (_identifier(option.dest) == _identifier(key))
    if not switched and option.default is False:
        raise ValueError("it is False without it, too")
    return [option.name] if switched else []


def _both(key: str, value: Any, option: Option) -> list[str]:
    if value not in (True, False):
        raise ValueError("it is a switch, for true and false")
    off = option.negatives or tuple(one for one in option.names if one.startswith("--no-"))
    on = [one for one in option.names if one not in off]
    positive = max(on, key=len, default=option.name)
    negative = max(off, key=len, default=f"--no-{positive[2:]}")
    by_its_off = _identifier(key) in map(_identifier, off) and _identifier(key) != _identifier(option.dest)
    return [positive if bool(value) is not by_its_off else negative]


def _count(_key: str, value: Any, option: Option) -> list[str]:
    first = option.default or 0
    if not isinstance(value, int) or not first <= value <= first + _MOST_TIMES:
        raise ValueError(f"it is given once for each above {first}")
    return [option.name] * (value - first)


def _many(_key: str, value: Any, option: Option) -> list[str]:
    values = _added(value, option)
    if not values and value == option.default:
        return []
    words = _words(values, option)
    return _joined(option, *words) if len(words) == 1 else [option.name, *_undashed(values, words)]


def _again(_key: str, value: Any, option: Option) -> list[str]:
    values = _added(value, option)
    if not values and value != option.default:
        raise ValueError(f"it is {option.default!r} where it is not given")
    if option.count is None:
        return [word for one in values for word in _joined(option, _word(one, option))]
    groups = ((_list(one), _words(_list(one), option)) for one in values)
    return [word for group, words in groups for word in (option.name, *_undashed(group, words))]


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _added(value: Any, option: Option) -> list[Any]:
    """Return the values to give, where they are added to a default."""
    values = _list(value)
    default = option.default if option.adds and isinstance(option.default, list) else []
    if values[: len(default)] != default:
        raise ValueError(f"what is given is added to its default, {default!r}")
    return values[len(default) :]


def _words(values: Sequence[Any], option: Option) -> list[str]:
    """Return the words for several values, of which there are neither too few nor too many."""
    least, most = option.count or (0, None)
    if len(values) < least or (most is not None and len(values) > most):
        raise ValueError(f"it takes {least if least == most else f'{least} or more'} values")
    return [_word(one, option) for one in values]


def _undashed(values: list[Any], words: list[str]) -> list[str]:
    """Return the words for values that argparse takes for no options: it knows -0.001 for a number, and not -1e-3."""
    return [_fixed(value, word) if word.startswith("-") else word for value, word in zip(values, words, strict=True)]


def _fixed(value: Any, word: str) -> str:
    if re.fullmatch(r"-(\d+|\d*\.\d+)", word):
        return word
    if isinstance(value, float) and math.isfinite(value):
        return format(Decimal(word), "f")
    raise ValueError(f"its parser takes {word!r} for an option")


def _word(value: Any, option: Option) -> str:
    """Return a value as one word, in the way that its type reads."""
    if value is None or isinstance(value, bool):
        if (said := option.spoken.get(str(value))) is not None:
            return said
        if value is None:
            raise ValueError(f"it has a default, {option.default!r}, and no word for None")
        raise ValueError(f"it reads text, and {str(value)!r} counts as true. Search texts that the script knows")
    if isinstance(value, Mapping | list | tuple):
        return literal(value, _BIG | option.spoken) if option.lists == "literal" else _row(value, option)
    if option.type == "bool":
        raise ValueError("its type is bool")
    if isinstance(value, str):
        if value == option.spoken.get("None"):
            raise ValueError("it reads that text as None")
        if option.type in ("int", "float") and not NUMBER_LIKE.fullmatch(value.strip()):
            raise ValueError(f"its type is {option.type}")
        return quoted(value) if option.quoted else value
    if option.type == "int":
        if not float(value).is_integer():
            raise ValueError("its type is int")
        return str(int(value))
    return literal(value, _BIG | option.spoken, dotted=True) if option.quoted else str(value)


def _row(value: Any, option: Option) -> str:
    """Return a list as one word, with what its type splits it by."""
    if not option.lists or isinstance(value, Mapping):
        raise ValueError("it takes one value")
    if any(isinstance(one, Mapping | list | tuple) for one in value):
        raise ValueError("it takes no list within a list")
    texts = [_word(one, option) for one in value]
    if not texts or any(option.lists in one or one.split() != [one] for one in texts):
        raise ValueError(f"it is split by {option.lists!r}")
    return option.lists.join(texts)


_SPELT: Final[dict[str, Callable[[str, Any, Option], list[str]]]] = {
    "value": _value,
    "flag": _flag,
    "off": _off,
    "both": _both,
    "count": _count,
    "many": _many,
    "again": _again,
}


# --- jsonargparse ------------------------------------------------------------------------------------------


def _for_hint(value: Any, option: Option) -> str:
    """Return a value for an option of jsonargparse, whose type hint says what becomes of it."""
    hint = option.type
    plain = hint in ("int", "float", "bool")
    if isinstance(value, str):
        read = None if hint in ("", "str") or option.choices or option.nested else loaded(value)
        if hint in ("", "str") or option.choices or isinstance(read, str) or not _admits(hint, read):
            return yaml(value)
        raise ValueError(f"its type, {hint}, reads that text as {read!r}")
    if hint == "" or (re.search(r"\bstr\b", hint) and not _admits(hint, value)):
        if value is None or isinstance(value, bool | Mapping | list | tuple):
            raise ValueError("it reads that as text")
        return str(value)
    if value is None and (plain or not (option.nested or _admits(hint, value))):
        raise ValueError(f"its type is {hint}")
    if hint in ("int", "float") and isinstance(value, bool):
        return str(int(value))
    if hint == "int" and isinstance(value, float):
        if not value.is_integer():
            raise ValueError("its type is int")
        return str(int(value))
    return yaml(value)


def _admits(hint: str, value: Any) -> bool:
    """Tell whether a type hint takes a value before it takes text."""
    found = re.search(rf"\b({_IN_HINTS.get(type(value), 'Any')}|Any)\b", hint)
    text = re.search(r"\bstr\b", hint)
    return found is not None and (value is None or text is None or found.start() < text.start())


# --- Values as Python, JSON, YAML, Fire and Hydra write them --------------------------------------


_PLAIN = re.compile(r"[\w./:@%+-]+", re.ASCII)
"""Text that Hydra reads as it is."""
_WORD = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
"""Text that Fire reads as it is, but for Python's three constants."""
NUMBER_LIKE = re.compile(r"(?i)[-+]?(\d[\d_]*\.?\d*|\.\d+)(e[-+]?\d+)?|[-+]?(inf|nan)|true|false|null|")
_PYTHON: Final = {"True": "True", "False": "False", "None": "None", "inf": "1e999", "-inf": "-1e999"}
_YAML: Final = {"True": "true", "False": "false", "None": "null", "inf": ".inf", "-inf": "-.inf", "nan": ".nan"}


def literal(value: Any, words: Mapping[str, str], *, dotted: bool = False) -> str:
    """Return a value as JSON, Python and YAML write it alike; ``words``: what they call None, True and infinity.

    ``dotted``: numbers as YAML 1.1 knows them, 1.0e-05.
    """
    if value is None or isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        if (said := words.get(str(value))) is None:
            raise ValueError(f"it has no word for {value}")
        return said
    if isinstance(value, Mapping):
        pairs = (f"{literal(key, words)}: {literal(one, words, dotted=dotted)}" for key, one in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(literal(one, words, dotted=dotted) for one in value) + "]"
    if isinstance(value, str):
        return quoted(value)
    text = str(value)
    return re.sub(r"^(-?\d+)e", r"\1.0e", text) if dotted else text


def quoted(text: str) -> str:
    """Return text in double quotes, which JSON, Python and YAML read alike."""
    said = json.dumps(text, ensure_ascii=False)
    return "".join(one if one.isprintable() or ord(one) > 0xFFFF else f"\\u{ord(one):04x}" for one in said)


def fire(value: Any) -> str:
    """Return a value as Fire reads it: Python, but bare words are text."""
    if isinstance(value, str):
        return value if _WORD.fullmatch(value) and value not in _PYTHON else quoted(value)
    return literal(value, _PYTHON)


def yaml(value: Any) -> str:
    """Return a value as jsonargparse reads it: YAML, but text as it is."""
    if value == "--":
        raise ValueError("its parser drops that text")
    return value if isinstance(value, str) else literal(value, _YAML)


def loaded(text: str) -> Any:
    """Return what jsonargparse's YAML makes of text."""
    if NUMBER_LIKE.fullmatch(text):
        return None if text in ("", "null") else 0.0
    try:
        read = safe_load(text)
    except YAMLError:
        return text
    return read if isinstance(read, int | float | list | dict | None) else text


def hydra(value: Any) -> str:
    """Return a value in the grammar of Hydra's overrides."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_hydra_key(key)}:{hydra(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(hydra, value)) + "]"
    if value == "???":
        raise ValueError("to Hydra it stands for a value that is missing")
    if isinstance(value, str) and (not _PLAIN.fullmatch(value) or NUMBER_LIKE.fullmatch(value)):
        # only backslashes before a quote are doubled
        escaped = re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), value)
        return f"'{escaped}'"
    return str(value)


def _hydra_key(key: Any) -> str:
    """Return the key of a mapping, which stands without quotes."""
    text = str(key)
    known = re.fullmatch(r"[\w\-/+.$%*@?|(){}\[\]:=, \t\\]+", text, re.ASCII)
    if isinstance(key, str) and (known is None or NUMBER_LIKE.fullmatch(text)):
        raise ValueError(f"Hydra reads no key {text!r} within a mapping")
    return re.sub(r"[\\()\[\]{}:=, \t]", r"\\\g<0>", text)

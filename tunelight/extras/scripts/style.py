"""How a script reads hyperparameters: as options of argparse and its like, of LightningCLI, or as Hydra's overrides."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import CodeType
from typing import Any, Final, Literal

from yaml import YAMLError, safe_load

from tunelight.errors import SettingsError, guess
from tunelight.settings.code import Style, imports, operands

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

Kind = Literal["value", "flag", "off", "both", "many", "again"]


@dataclass(frozen=True)
class Option:
    """An option of a script's parser.

    Attributes:
        names: how it is written, "--learning-rate" and "-l".
        dest: the name of its value in the script.
        kind: "value" takes one value; "flag" none, and sets ``const``; "off" none, and sets False; "both" is written
            --name or --no-name; "many" takes several values; "again" is given once for each value.
        type: the name of its type, "float"; empty where it has none.
        default, choices, help: as the script declares them.
        required: whether a call without it is refused.
        negatives: those of its names that set False, of a "both".
        nested: whether keys may go below it, as arguments of the class that it names.
        const: what a "flag" sets.
        reads_truth: whether a "value" is known to read true and false.
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
    reads_truth: bool = False

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Option:
        """Return the option that plain data describes, without what it does not know of that."""
        known: dict[str, Any] = {f.name: found[f.name] for f in fields(cls) if found.get(f.name) is not None}
        rows: dict[str, Any] = {name: tuple(known[name]) for name in ("names", "choices", "negatives") if name in known}
        return cls(**(known | rows))

    def recorded(self) -> dict[str, Any]:
        """Return what the spelling of its values depends on, as plain data."""
        plain, apart = Option(self.names), ("help", "required", "nested")
        changed = {name: val for name, val in vars(self).items() if name not in apart and val != getattr(plain, name)}
        return {
            name: list(val) if isinstance(val, tuple) else val for name, val in {"names": self.names, **changed}.items()
        }

    @property
    def name(self) -> str:
        """The longest of its names that do not set False."""
        return max((name for name in self.names if name not in self.negatives), key=len)

    @property
    def key(self) -> str:
        """The key of a search space that sets it: its name, as an identifier."""
        return _identifier(self.name)

    def means(self, key: str) -> bool:
        """Tell whether a key is one of its names, or that of its value."""
        return _identifier(key) in {_identifier(self.dest), *map(_identifier, self.names)}


def _identifier(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def script_file(script: str) -> Path:
    """Return the file of a script, which is a path or the name of a module. Raises: SettingsError."""
    path = Path(script)
    if path.is_file():
        return path.absolute()
    if script.endswith(".py") or "/" in script or not all(part.isidentifier() for part in script.split(".")):
        beside = [other.name for other in path.parent.glob("*.py")]
        raise SettingsError(f"There is no script {script}.{guess(path.name, beside)} Give its path, or its module.")
    try:
        found = importlib.util.find_spec(script)
        if found is not None and found.submodule_search_locations is not None:
            found = importlib.util.find_spec(f"{script}.__main__") or found
        if found is not None and found.origin is not None and found.origin.endswith(".py"):
            return Path(found.origin)
    except ModuleNotFoundError:
        pass  # a package that the name begins with is missing
    raise SettingsError(
        f"There is no file and no module {script!r} to run. Give a script's path, train.py for example."
    )


_NOT_BESIDE = sys.stdlib_module_names | {"tunelight"}
"""Modules that a script does not bring."""


@functools.lru_cache(maxsize=200)
def _compiled(file: Path, _changed: int) -> tuple[CodeType, tuple[str, ...]]:
    code = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
    return code, tuple(imports(code))


def script_code(script: str) -> Iterator[tuple[Path, CodeType]]:
    """Yield a script's file with its code, then those of the modules that it imports from beside it.

    Those are found by their names, without running any, a hundred files at most. Raises: SettingsError for a script
    that cannot be compiled.
    """
    known: set[Path] = set()
    files = [script_file(script)]
    roots = [files[0].parent, Path.cwd()]
    while files and len(known) < 100:
        file = files.pop(0)
        if file in known:
            continue
        known.add(file)
        try:
            code, imported = _compiled(file, file.stat().st_mtime_ns)
        except (SyntaxError, ValueError) as error:  # ValueError: a null byte
            if len(known) > 1:
                continue
            line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            raise SettingsError(
                f"{file}{line}: the script does not compile: {getattr(error, 'msg', error)}."
            ) from error
        yield file, code
        for name in imported:
            if name.partition(".")[0] in _NOT_BESIDE:
                continue
            for path in (root.joinpath(*name.split(".")) for root in roots):
                files += [found for found in (path.with_suffix(".py"), path / "__init__.py") if found.is_file()]


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
                yield from (part for part in value if isinstance(part, str))


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
        return _unknown(key, value) if option is None else _known(key, value, option)
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
    meant = [opt for opt in options if opt.means(key)]
    for option in sorted(meant, key=lambda opt: opt.kind != "flag" or opt.const != value):
        with contextlib.suppress(ValueError):
            _known(key, value, option)
            return option
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


def _known(key: str, value: Any, option: Option) -> list[str]:
    """Spell a value for an option. Raises: ValueError where it does not take the value."""
    if option.kind == "flag":
        if value is not None and value == option.const:
            return [option.name]
        if value == option.default or (option.default is None and value in (None, False)):
            return []
        raise ValueError(f"it sets {option.const!r}, and is {option.default!r} where it is not given")
    if option.kind in ("off", "both"):
        return _switch(key, value, option)
    if option.kind == "again" and option.default:
        raise ValueError(f"what is given is added to its default, {option.default!r}")
    values = list(value) if option.kind != "value" and isinstance(value, list | tuple) else [value]
    if not values:
        raise ValueError("it takes one value or more")
    words = [_word(item, option) for item in values]
    if option.kind == "many" and len(words) > 1:
        return [option.name, *words]
    return [part for word in words for part in _joined(option, word)]


def _switch(key: str, value: Any, option: Option) -> list[str]:
    if value not in (True, False):
        raise ValueError("it is a switch, for true and false")
    if option.kind == "off":
        switched = bool(value) is not (_identifier(option.dest) == _identifier(key))
        if not switched and option.default is False:
            raise ValueError("it is False without it, too")
        return [option.name] if switched else []
    off = option.negatives or tuple(name for name in option.names if name.startswith("--no-"))
    positive = max((name for name in option.names if name not in off), key=len, default=option.name)
    negative = max(off, key=len, default=f"--no-{positive[2:]}")
    by_its_off = _identifier(key) in map(_identifier, off) and _identifier(key) != _identifier(option.dest)
    return [positive if bool(value) is not by_its_off else negative]


def _word(value: Any, option: Option) -> str:
    """Return a value as one word. Raises: ValueError where its type makes text of what is none."""
    if value is None:
        raise ValueError(f"it has a default, {option.default!r}, and no word for None")
    if option.type == "bool":
        raise ValueError("its type is bool, to which every word but the empty one is true")
    if option.type in ("", "str") and not option.choices:
        if isinstance(value, bool):
            raise ValueError(f"it reads text, and {str(value)!r} counts as true. Search texts that the script knows")
        if isinstance(value, Mapping | list | tuple):
            raise ValueError("it takes one value")
    return _text(int(value) if option.type == "int" and isinstance(value, float) and value.is_integer() else value)


# --- jsonargparse ------------------------------------------------------------------------------------------


_BESIDE_TEXT: Final[dict[type, str]] = {
    type(None): "None|Optional",
    list: "(?i:list|sequence|tuple|set|iterable|collection)",
    dict: "(?i:dict|mapping)",
}
"""How types stand in a hint that takes text, too."""


def _for_hint(value: Any, option: Option) -> str:
    """Return a value for an option of jsonargparse, whose type hint says what becomes of it."""
    hint, text = option.type, option.type in ("", "str")
    if text or re.search(r"\bstr\b", hint):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str) and not re.search(_BESIDE_TEXT.get(type(value), "$."), hint):
            raise ValueError("it reads that as text")
    if isinstance(value, str) and not (text or option.choices or isinstance(loaded(value), str)):
        raise ValueError(f"its type, {hint}, reads that text as {loaded(value)!r}")
    return yaml(int(value) if hint == "int" and isinstance(value, float) and value.is_integer() else value)


# --- Values as Python, JSON, YAML, Fire and Hydra write them --------------------------------------


_PLAIN = re.compile(r"[\w./:@%+-]+", re.ASCII)
"""Text that Hydra reads as it is."""
_WORD = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
"""Text that Fire reads as it is, but for Python's three constants."""
NUMBER_LIKE = re.compile(r"(?i)[-+]?(\d[\d_]*\.?\d*|\.\d+)(e[-+]?\d+)?|[-+]?(inf|nan)|true|false|null|")
_PYTHON: Final = {"True": "True", "False": "False", "None": "None", "inf": "1e999", "-inf": "-1e999"}
_YAML: Final = {"True": "true", "False": "false", "None": "null", "inf": ".inf", "-inf": "-.inf", "nan": ".nan"}


def literal(value: Any, words: Mapping[str, str]) -> str:
    """Return a value as JSON, Python and YAML write it alike; ``words``: what they call None, True and infinity."""
    if value is None or isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        if (word := words.get(str(value))) is None:
            raise ValueError(f"it has no word for {value}")
        return word
    if isinstance(value, Mapping):
        pairs = (f"{literal(key, words)}: {literal(item, words)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(literal(item, words) for item in value) + "]"
    return quoted(value) if isinstance(value, str) else str(value)


def quoted(text: str) -> str:
    """Return text in double quotes, which JSON, Python and YAML read alike."""
    escaped = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() or ord(char) > 0xFFFF else f"\\u{ord(char):04x}" for char in escaped)


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
        return "{" + ",".join(f"{_hydra_key(key)}:{hydra(item)}" for key, item in value.items()) + "}"
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

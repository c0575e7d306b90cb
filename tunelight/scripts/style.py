"""How a script reads hyperparameters: as options of argparse and its like, of LightningCLI, or as Hydra's overrides."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final, Literal

from tunelight.settings.code import Style, script_code
from tunelight.settings.pickling import imports, operands

_BY_IMPORT: Final[dict[str, Style]] = {
    "hydra": "hydra",
    "jsonargparse": "lightning",
    "fire": "fire",
    "click": "argparse",
    "typer": "argparse",
    "argparse": "argparse",
    "transformers": "argparse",  # HfArgumentParser
}
"""The libraries that read a command line, those first that call another one of them."""
_PLAIN = re.compile(r"[\w./:@%+-]+")
"""Text that Hydra reads as it is."""
_NUMBER_LIKE = re.compile(r"(?i)[-+]?(\d[\d_]*\.?\d*|\.\d+)(e[-+]?\d+)?|[-+]?(inf|nan)|true|false|null|")

Kind = Literal["value", "flag", "off", "both", "many", "again"]


@dataclass(frozen=True)
class Option:
    """An option of a script's parser.

    Attributes:
        names: how it is written, "--learning-rate" and "-l".
        dest: the name of its value in the script.
        kind: "value" takes one value; "flag" none, and sets True; "off" none, and sets False; "both" is written
            --name or --no-name; "many" takes several values; "again" is given once for each value.
        type: the name of its type, "float"; empty where it has none.
        default, choices, help: as the script declares them.
        required: whether a call without it is refused.
        negatives: those of its names that set False, of a "both".
        nested: whether keys may go below it, as arguments of the class that it names.
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

    @property
    def key(self) -> str:
        """The key of a search space that sets it: the longest of its names, as an identifier."""
        return _identifier(max((one for one in self.names if one not in self.negatives), key=len))

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


def _names(code: CodeType) -> Iterator[str]:
    for operation in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "IMPORT_FROM"):
        yield from operands(code, operation)


def spell(style: Style, values: Mapping[str, Any], options: tuple[Option, ...] = ()) -> list[str]:
    """Return the arguments that give a script these values, by dotted key, in its style.

    ``options``: those of its parser, as far as they are known.
    """
    words: list[str] = []
    for key, value in values.items():
        if style == "hydra":
            words.append(f"{key}={_hydra(value)}")
        elif style == "lightning":
            words.append(f"--{key}={_json(value)}")
        elif style == "fire":
            words.append(f"--{key}={value!r}" if not isinstance(value, str) else f"--{key}={_quoted(value)}")
        else:
            words += _option(key, value, next((one for one in options if one.means(key)), None))
    return words


def _option(key: str, value: Any, option: Option | None) -> list[str]:
    """Spell a value for argparse, click and typer; an option that is None is left out."""
    if value is None:
        return []
    name = f"--{key}" if option is None else max(option.names, key=len)
    if option is not None and option.kind in ("flag", "off", "both") and isinstance(value, bool):
        if option.kind == "both":
            off = option.negatives or tuple(one for one in option.names if one.startswith("--no-"))
            on = [one for one in option.names if one not in off]
            positive = max(on, key=len, default=name)
            negative = max(off, key=len, default=f"--no-{positive[2:]}")
            by_its_off = _identifier(key) in map(_identifier, off) and _identifier(key) != _identifier(option.dest)
            return [positive if value is not by_its_off else negative]
        by_its_value = option.kind == "off" and _identifier(option.dest) == _identifier(key)
        return [name] if value is not by_its_value else []
    if isinstance(value, list | tuple):
        texts = [_text(one) for one in value]
        if option is not None and option.kind == "again":
            return [f"{name}={text}" for text in texts]
        return [name, *texts]
    return [f"{name}={_text(value)}"]


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, Mapping | list) else str(value)


def _json(value: Any) -> str:
    """Return a value as jsonargparse reads it: YAML, but text as it is."""
    return value if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    """Return text for fire, which would take 1e-3 or None for the Python value."""
    return repr(text) if _NUMBER_LIKE.fullmatch(text) or text in ("None", "True", "False") else text


def _hydra(value: Any) -> str:
    """Return a value in the grammar of Hydra's overrides."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_hydra(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_hydra, value)) + "]"
    if isinstance(value, str) and (not _PLAIN.fullmatch(value) or _NUMBER_LIKE.fullmatch(value)):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    return str(value)

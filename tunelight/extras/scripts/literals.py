"""Values as Python, JSON, YAML, Fire and Hydra write them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from yaml import YAMLError, safe_load

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

"""Text that may be shown: without secrets (passwords, tokens, environment variables) and control characters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

MASK: Final = "***"
"""Stands for a secret."""
_NAMES: Final = (
    r"pass(?:word|wd|phrase)?|secret|token|credentials?|(?:api|access|private|account)[-_.]?key(?:[-_.]?id)?"
)
_SECRET: Final = re.compile(rf"(?i)(?:{_NAMES})$")
_VARIABLE: Final = r"(?!\$\{\w+\}|\*\*\*)"
"""References to environment variables are no secrets, nor is what is masked already."""
_PASSWORD: Final = re.compile(
    rf"(://[^/\s:@?#]*):{_VARIABLE}(?!\d+(?:[/?#\s]|$))(?:[^\s/?#'\"]*@(?=[^\s@/?#'\"]*)|[^@\s'\"]+@)"
)
_TOKEN: Final = re.compile(rf"(?i)(\bhttps?://){_VARIABLE}[^/\s:@?#]+@")
_QUERY: Final = re.compile(
    rf"(?i)([?&;](?:[\w.-]*[-_.])?(?:{_NAMES}|pwd|sig|signature|auth)=){_VARIABLE}[^&;\s#'\"<>)\]}}]+"
)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ENV_VARS: Final = "env_vars"
_AS_IT_IS: Final = frozenset({"space", "require", "baselines", "space_objects", "code", "versions", "reservation"})
"""Entries of sweep.yaml that are needed exactly (configurations), or that hold no user input."""


def printable(text: str) -> str:
    """Return text with control characters, but for tab and line feed, written out: a terminal would obey them."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def masked(text: str) -> str:
    """Return text with passwords and tokens of the addresses (URLs) in it masked; ``${NAME}`` is left as it is."""
    if "://" not in text:
        return text
    text = _PASSWORD.sub(rf"\1:{MASK}@", text)
    text = _TOKEN.sub(rf"\1{MASK}@", text)
    return _QUERY.sub(rf"\1{MASK}", text)


def masked_command(command: list[str]) -> list[str]:
    """Return a command line without values of passwords, tokens, keys and environment variables."""
    shown: list[str] = []
    hide = False
    for word in command:
        names = word.split("=")[:-1]  # --set=model.token=... has two
        secret = next((index for index, name in enumerate(names, start=1) if _SECRET.search(name.strip())), None)
        if hide:
            shown.append(MASK)
        elif _ENV_VARS in word:
            shown.append(f"{word[: word.index(_ENV_VARS)]}{_ENV_VARS}={MASK}")
        elif secret is not None and "://" not in "=".join(names[:secret]):
            shown.append(f"{'='.join(names[:secret])}={MASK}")
        else:
            shown.append(masked(word))
        hide = not hide and not names and word.startswith("-") and bool(_SECRET.search(word.strip()))
    return shown


def masked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sweep's settings as sweep.yaml may hold them.

    Variables of ``runtime_env`` keep their names, not their values; URLs and values of keys such as ``password`` are
    masked. Search space and configurations are unchanged: they must be known exactly.
    """
    shown = {name: value if name in _AS_IT_IS else _plain(value) for name, value in settings.items()}
    variables = (shown.get("runtime_env") or {}).get(_ENV_VARS) if isinstance(shown.get("runtime_env"), dict) else None
    if isinstance(variables, dict):
        shown["runtime_env"][_ENV_VARS] = dict.fromkeys(variables, MASK)
    return shown


def masked_error(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return a worker's error, as plain data, with URLs masked in its message and traceback."""
    return {key: masked(value) if isinstance(value, str) else value for key, value in error.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return printable(masked(value))
    if isinstance(value, Mapping):
        return {
            key: MASK if isinstance(part, str) and _SECRET.search(str(key).strip()) else _plain(part)
            for key, part in value.items()
        }
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def masked_in(name: str, value: Any) -> Iterator[str]:
    """Yield where in a setting something was masked: ``trainer_args['default_root_dir']``."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from masked_in(f"{name}[{key!r}]", part)
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from masked_in(f"{name}[{index}]", part)
    elif isinstance(value, str) and (value == MASK or ("://" in value and MASK in value)):
        yield name

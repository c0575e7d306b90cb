"""The words that W&B's agent puts in place of a command's macros, as in its ``create_sweep_command_args`` (0.31)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

AGENTS: Final = ("args_no_equals", "args_append_hydra", "args_override_hydra")
"""Macros that stand for the same words whatever a script reads its arguments by."""
_BEFORE: Final = {"args": "--", "args_no_hyphens": "", "args_append_hydra": "+", "args_override_hydra": "++"}


def agent_words(macro: str, config: Mapping[str, Any]) -> list[str]:
    """Return what stands for a macro: Python's text of each value; nested parameters are one, with a mapping."""
    match macro:
        case "args_json":
            return [json.dumps(dict(config))]
        case "args_no_equals":
            return [word for key, value in config.items() for word in (f"--{key}", str(value))]
        case "args_no_boolean_flags":
            return [
                f"--{key}" if value is True else f"--{key}={value}"
                for key, value in config.items()
                if value is not False
            ]
        case "no_args":
            return []
    return [f"{_BEFORE[macro]}{key}={value}" for key, value in config.items()]

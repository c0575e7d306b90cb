"""Write what W&B's own packages make of the sweeps in tests/unit/space/wandb_sweeps.yaml, for a test to compare with.

    pip install --no-deps sweeps==0.3.0 && pip install jsonref jsonschema scikit-learn
    python -m scripts.wandb_answers

``sweeps`` asks for a NumPy below 2, and works with later ones: that is why it is no dependency of the tests.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import yaml

HERE = Path(__file__).parents[1] / "tests" / "unit" / "space"
_LONGEST = 1000
"""Up to which report bands are listed: those of min_iter have no end."""


def answers(given: dict[str, Any]) -> dict[str, Any]:
    """Return parameters' distributions, the grid, bands of early termination, and the words of a run's command."""
    from sweeps.hyperband_stopping import hyperband_stop_runs
    from sweeps.params import HyperParameterSet
    from sweeps.run import RunState, SweepRun, next_runs

    found: dict[str, Any] = {}
    parameters = HyperParameterSet.from_config(given["parameters"])
    if given["method"] == "grid":
        runs = [one for one in next_runs(given, [], n=given.get("run_cap", 1000)) if one is not None]
        found["grid"] = [{key: one["value"] for key, one in run.config.items()} for run in runs]
    else:
        delimiter = HyperParameterSet.NESTING_DELIMITER
        found["parameters"] = {one.name.replace(delimiter, "."): shares(one) for one in parameters}
        for one in parameters:
            one.value = plain(one.ppf(0.3))
    if "early_terminate" in given:
        run = SweepRun(name="a", state=RunState.running, history=[{given["metric"]["name"]: 1.0}])
        hyperband_stop_runs([run], given)
        found["bands"] = [band for band in run.early_terminate_info["bands"] if band <= _LONGEST]
    config = parameters.to_config() if given["method"] != "grid" else runs[0].config
    found["config"] = {key: one["value"] for key, one in config.items()}
    found["words"] = words(given, config)
    return found


def shares(parameter: Any) -> dict[str, Any]:
    """Return the types of a parameter's values, and the shares that equal some of them, or are at most as large."""
    drawn = [plain(parameter.ppf(float(x))) for x in np.linspace(0.0005, 0.9995, 1000)]
    kinds = sorted({type(one).__name__ for one in drawn})
    if kinds not in (["float"], ["int"]) or "CATEGORICAL" in parameter.type.upper():
        counts = Counter(json.dumps(one) for one in drawn)
        return {"types": kinds, "equal": [[json.loads(text), count / 1000] for text, count in counts.items()]}
    ordered = sorted(drawn)
    points = sorted({float(f"{ordered[at]:.6g}") for at in range(50, 1000, 100)})
    return {
        "types": kinds,
        "ends": [plain(parameter.ppf(1e-9)), plain(parameter.ppf(1 - 1e-9))],
        "at_most": [[point, sum(one <= point for one in drawn) / 1000] for point in points],
    }


def words(given: dict[str, Any], config: dict[str, Any]) -> list[str]:
    """Return what follows the program in the command of W&B's agent, as its ``_command_run`` fills it in."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    command = create_sweep_command([*given["command"]] if "command" in given else None)
    told = create_sweep_command_args({"args": config})
    told |= {"interpreter": ["python"], "program": [given["program"]], "env": ["/usr/bin/env"]}
    filled: list[str] = []
    for word in map(str, command):
        filled += (told.get(word[2:-1]) or []) if word.startswith("${") and word.endswith("}") else [word]
    return filled[filled.index(given["program"]) + 1 :]


def plain(value: Any) -> Any:
    """Return a value of NumPy's as Python's."""
    return value.item() if hasattr(value, "item") else value


def main() -> None:
    """Write the answers."""
    given = list(yaml.safe_load_all((HERE / "wandb_sweeps.yaml").read_text(encoding="utf-8")))
    by = {name: version(name) for name in ("sweeps", "wandb")}
    lines = ",\n".join(json.dumps(answers(one)) for one in given)
    text = f'{{"by": {json.dumps({**by, "command": "python -m scripts.wandb_answers"})}, "answers": [\n{lines}\n]}}\n'
    (HERE / "wandb_answers.json").write_text(text, encoding="utf-8")
    sys.stdout.write(f"{len(given)} sweeps\n")


if __name__ == "__main__":
    main()

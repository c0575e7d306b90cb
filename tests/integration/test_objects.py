"""Choices that are objects of the script itself, live: the same objects in the train function and in results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tunelight as tl

SCRIPT = """
import dataclasses, enum
import tunelight as tl

class Opt(enum.Enum):
    SGD = 1
    ADAM = 2

@dataclasses.dataclass(frozen=True)
class Aug:
    p: float

def relu(x):
    return max(x, 0)

def facts(config):
    known = {"opt": config["opt"] in (Opt.SGD, Opt.ADAM), "aug": config["aug"] in (Aug(0.1), Aug(0.5))}
    return {**known, "act": config["act"] is relu, "context": tl.get_context().config["opt"] is config["opt"]}

def train(config):
    for number in range(1, 4):
        loss = config["aug"].p / number + (config["opt"] is Opt.SGD)
        tl.report({"loss": loss, **{name: int(true) for name, true in facts(config).items()}})
"""


def test_a_train_function_and_the_best_configuration_have_the_objects_of_the_script(ray4: Any, tmp_path: Path) -> None:
    script: dict[str, Any] = {"__name__": "__main__"}
    exec(SCRIPT, script)  # classes that workers cannot import
    opt, aug = script["Opt"], script["Aug"]
    space = {
        "opt": tl.choice([opt.SGD, opt.ADAM]),
        "aug": tl.choice([aug(0.1), aug(0.5)]),
        "act": tl.choice([script["relu"]]),
    }
    told: dict[str, Any] = {"metric": "loss", "storage": tmp_path, "name": "s", "progress": False, "seed": 1}
    told |= {"searcher": "tpe", "cpus_per_worker": 0.5}
    told["baselines"] = [{"opt": opt.ADAM, "aug": aug(0.5), "act": script["relu"]}]
    results = tl.run(space, script["train"], num_samples=2, repeats={"top": 1, "repeats": 2}, **told)
    results = tl.run(space, script["train"], num_samples=3, resume=True, repeats={"top": 1, "repeats": 2}, **told)
    for trial in results:
        assert [trial.metrics[name] for name in ("opt", "aug", "act", "context")] == [1, 1, 1, 1]
        assert trial.config["opt"] in opt
        assert trial.config["act"] is script["relu"]
    assert (len(results), len(results.repetitions)) == (3, 1)
    assert results.repetitions[0].metrics["opt"] == 1
    assert results.best_config["opt"] is opt.ADAM
    assert results.trial(0).plain_config == {"opt": "Opt.ADAM", "aug": "Aug(p=0.5)", "act": "__main__:relu"}

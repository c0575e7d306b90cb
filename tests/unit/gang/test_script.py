"""What training code finds in __main__ on a worker: the driver's script, as it would in a plain Python process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import pickle, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tunelight.gang import parcel

class Box:
    def __init__(self, value):
        self.value = value

def square(value):
    return Box(value * value)

def train(config):
    context = get_context(config["context"])
    with context.Pool(1) as pool:
        (first,) = pool.map(square, [2])
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        second = executor.submit(square, 3).result(timeout=60)
    assert type(first) is type(second) is Box
    assert type(pickle.loads(pickle.dumps(first))) is Box
    return first.value, second.value

if __name__ == "__main__":
    with open(sys.argv[1], "wb") as file:
        pickle.dump(parcel.pack(train), file)
else:
    raise RuntimeError("The script was run again.")
"""

WORKER = """
import pickle, sys
import __main__
from tunelight.gang import parcel, script

if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        packed = pickle.load(file)
    print(parcel.receive(packed)({"context": sys.argv[2]}))
    script.end()
    assert sys.modules["__main__"] is __main__
"""


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_processes_of_training_code_know_the_scripts_functions_and_classes(tmp_path: Path, context: str) -> None:
    for name, text in (("driver.py", SCRIPT), ("worker.py", WORKER)):
        Path(tmp_path, name).write_text(text)
    for command in (["driver.py"], ["worker.py", context]):
        done = subprocess.run(
            [sys.executable, str(tmp_path / command[0]), str(tmp_path / "packed"), *command[1:]],
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert done.stdout == "(4, 9)\n"

"""The doors between rooms (table and reader: tests/doors.py), and how long a file may be."""

from __future__ import annotations

import graphlib
import importlib.metadata
import re
import subprocess
import symtable
import sys
import tomllib
from collections.abc import Iterator

import pytest

from tests.doors import (
    EXTRAS,
    PACKAGE,
    ROOMS,
    STAIRS,
    every_import,
    floors,
    forced,
    is_extra,
    modules,
    room_of,
    target,
)  # fmt: skip
from tests.drawing import PICTURE, drawn

ROOT = PACKAGE.parent

BROUGHT_BY_USERS = {
    "IPython": "only a notebook has it, and brings its own",
    "pynvml": "Ray holds a copy",
    "transformers": "only training code that uses it imports what is made for it",
}
"""Libraries that are used where they are and missed nowhere: no dependency."""

VAGUE = frozenset({"told", "said", "there", "one", "own"})
"""No local name or parameter: each of them fits any value."""

MOST_FLOORS = 12
MOST_LINES = {"tunelight": 47_000, "tests": 41_149, "benchmarks": 9_331}
MOST_FILES = 202
MOST_CORE_LINES = 28_923
"""As many as there are: what is added takes as much away."""
FRONT = frozenset({"cli", "__main__"})
"""The commands: neither core, nor extras."""

LONGEST_FILE = 800
LONG_FILES: dict[str, str] = {}
"""Files that are longer, each with a reason that a reader would accept."""


# --- the package ------------------------------------------------------------------------------------------


def test_no_door_is_forced():
    known = modules()
    said = [forced(module, found, known) for module, found in every_import()]
    sentences = dict.fromkeys(sentence for sentence in said if sentence)
    assert not sentences, "\n".join(sentences)


def test_no_module_imports_itself_round_a_corner():
    known = modules()
    graph: dict[str, set[str]] = {module: set() for module in known}
    for module, found in every_import():
        inside = target(found.name, known)
        if inside is not None and inside != module and not (is_extra(inside) and not is_extra(module)):
            graph[module].add(inside)
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail("modules import each other in a circle: " + " <- ".join(error.args[1]))


def test_the_table_of_rooms_is_the_package():
    known = modules()
    assert {room_of(module) for module in known} == ROOMS.keys()
    used = {
        (room_of(module), room_of(inside))
        for module, found in every_import()
        if (inside := target(found.name, known)) is not None and room_of(inside) != room_of(module)
    }
    open_for_nobody = {
        (room, entry) for room in ROOMS for entry in ROOMS[room].rooms if (room, entry.partition(":")[0]) not in used
    }
    assert not open_for_nobody, "the table opens doors that nobody uses"


def test_the_house_stays_as_small_as_it_was_drawn():
    loose = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert len(loose) <= 8, f"more than 8 files beside the folders: {sorted(loose)}. Which room do they belong to?"
    assert len(ROOMS) - len(EXTRAS) <= 30
    assert max(floors()[room] for room in ROOMS.keys() - EXTRAS.keys()) <= MOST_FLOORS


def lines_of(folder: str) -> int:
    return sum(len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py"))


def test_the_whole_house_stays_within_its_budget():
    counted = {folder: lines_of(folder) for folder in MOST_LINES}
    assert not {folder: count for folder, count in counted.items() if count > MOST_LINES[folder]}, counted
    assert len(modules()) <= MOST_FILES
    core = [path for module, path in modules().items() if not is_extra(module) and room_of(module) not in FRONT]
    assert sum(len(path.read_text().splitlines()) for path in core) <= MOST_CORE_LINES


def names_in_functions(table: symtable.SymbolTable) -> Iterator[tuple[int, str]]:
    """Yield parameters and local names, those of comprehensions and lambdas too, each with its function's line."""
    if isinstance(table, symtable.Function):
        yield from ((table.get_lineno(), name) for name in table.get_locals())
    for inner in table.get_children():
        yield from names_in_functions(inner)


def test_local_names_say_what_a_value_is():
    vague = []
    for path in modules().values():
        file = path.relative_to(PACKAGE).as_posix()
        names = names_in_functions(symtable.symtable(path.read_text(), file, "exec"))
        vague += [f"{file}:{line}: {name}" for line, name in names if name in VAGUE]
    assert not vague, "\n".join(vague)


def test_the_table_of_stairs_is_the_code():
    known = modules()
    used = {
        (module, room_of(inside))
        for module, found in every_import()
        if not found.typing and (inside := target(found.name, known)) and is_extra(inside) and not is_extra(module)
    }
    assert used == {(module, room) for module, rooms in STAIRS.items() for room in rooms.split()}


def test_the_picture_shows_the_table():
    assert PICTURE.read_text() == drawn(), "run: python -m tests.drawing"


def test_every_library_is_installed_with_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *(line for name in extras if name not in {"dev", "docs"} for line in extras[name]),
    ]
    declared = {re.split(r"[^\w.-]", line)[0].lower().replace("_", "-") for line in wanted}
    distributions = importlib.metadata.packages_distributions()
    for module, found in every_import():
        library = room_of(found.name)
        if library in {"tunelight", *sys.stdlib_module_names, *BROUGHT_BY_USERS}:
            continue
        sources = {name.lower().replace("_", "-") for name in distributions.get(library, [library])}
        assert sources & declared, f"{module} imports {library}, which pyproject.toml does not depend on"


@pytest.mark.parametrize("folder", ["tunelight", "tests", "benchmarks", "examples"])
def test_files_stay_short(folder):
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")
    }
    long = {path: length for path, length in lengths.items() if length > LONGEST_FILE}
    unexplained = {path: length for path, length in long.items() if path not in LONG_FILES}
    assert not unexplained, f"more than {LONGEST_FILE} lines, and no reason in LONG_FILES: {unexplained}"
    stale = [path for path in LONG_FILES if path.startswith(f"{folder}/") and path not in long]
    assert not stale, f"in LONG_FILES, but not longer than {LONGEST_FILE} lines: {stale}"


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import tunelight", "torch pytorch_lightning ray yaml cloudpickle tunelight.settings tunelight.compat.ray"),
        ("from tunelight import stores", "tunelight.settings"),
        ("import tunelight.space", "ray torch"),
        ("from tunelight.settings import Settings; Settings(train=lambda config: None)", "ray torch pytorch_lightning"),
        ("import tunelight.settings.backends", "torch pytorch_lightning ray horovod"),
        ("import tunelight.session.session", "torch pytorch_lightning ray numpy"),
        ("import tunelight.trial.trainable", "torch pytorch_lightning"),
        ("import tunelight.gang.gang", "torch pytorch_lightning ray.tune"),
        ("import tunelight.sweep.run", "torch pytorch_lightning"),
    ],
)
def test_importing_a_room_stays_cheap(statement, unwanted):
    look = f"{statement}; import sys; print(*sorted({set(unwanted.split())!r} & sys.modules.keys()))"
    run = subprocess.run(
        [sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [], f"`{statement}` imports {run.stdout.strip()} as well"


def test_what_a_sweep_waits_for_is_asked_of_modules_whose_time_the_world_can_replace():
    hidden = r"^ *(from (time|threading|queue|signal|concurrent|asyncio)\b|import (concurrent|asyncio))|datetime\.now\("
    for path in (path for path in PACKAGE.rglob("*.py") if path.parts[len(PACKAGE.parts)] != "extras"):
        if path != PACKAGE / "gang/meeting/group.py":  # the real collectives, which the world has a model of
            assert not re.search(hidden, path.read_text(), re.MULTILINE), path

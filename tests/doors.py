"""The rooms of the package: what each is for, which others and which libraries it may import; and the judge of that.

Rooms import downwards only. Imports inside functions count, as do modules imported by a name that is written out,
`ray.tune` reached through `import ray`, and imports under `if TYPE_CHECKING:`, for a reader follows those too. Of
libraries the last do not count: no process carries them out.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "tunelight"


@dataclass(frozen=True)
class Room:
    """A folder or a loose file of the package.

    ``rule`` says in one line what belongs there; ``rooms`` are those that it may import. An entry with a colon, such
    as "stores:lightning.remote cluster:lightning.remote", is open to that part of the room alone.
    """

    rule: str
    rooms: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Libraries:
    """The third-party modules, or single names in them, that a room or a part of it may import.

    ``late`` are those that only the inside of a function may import, so that importing the room stays cheap.
    """

    names: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()
    why: str = ""


def names(*lists: str) -> frozenset[str]:
    return frozenset(" ".join(lists).split())


# From the ground up. Every import counts, also one inside a function or for annotations alone.
ROOMS: dict[str, Room] = {
    "messages": Room("what crosses a process: frozen, without behaviour"),
    "errors": Room("what can go wrong for a user", names("messages")),
    "compat": Room("names of Ray, of Lightning and of other tools that differ between versions", names("errors")),
    "policies": Room("deciders without clock or act: failure, divergence", names("messages errors")),
    "machine": Room("this process and this machine", names("messages errors")),
    "stores": Room("files that move between nodes and an object store, and atomic writes", names("errors")),
    "checkpoints": Room("one checkpoint: when, how written, found, kept", names("messages errors stores")),
    "settings": Room(
        "what a sweep can be told, value by value", names("messages errors compat policies stores checkpoints")
    ),
    "session": Room("a worker's own context and its reports", names("messages errors compat checkpoints")),
    "space": Room("what is searched, and settings checked against it", names("errors compat settings")),
    "resources": Room("workers to one reservation", names("messages errors settings")),
    "record": Room("what happened, on disk, read without Ray", names("messages errors machine stores settings")),
    "gang": Room(
        "workers that train as one, without Tune or Lightning",
        names("messages errors compat policies machine stores checkpoints settings session resources"),
    ),
    "schedulers": Room(
        "decide when a trial stops, pauses or changes its size", names("messages errors compat settings space")
    ),
    "searchers": Room(
        "suggest configurations",
        names("errors settings space"),
    ),
    "results": Room(
        "best, table and export, from the record alone",
        names("errors stores checkpoints settings space record"),
    ),
    "trial": Room(
        "one trial of Tune as one gang",
        names("messages errors compat policies machine stores checkpoints session gang"),
    ),
    "cluster": Room(
        "find, start, ask and watch a Ray",
        names("messages errors compat machine stores settings resources"),
    ),
    "reporting": Room(
        "shows what the record says",
        names("machine stores settings record results"),
    ),
    "lightning": Room(
        "all that overrides Lightning",
        names(
            "messages errors compat policies settings session space gang",
        ),
    ),
    "sweep": Room(
        "run, resume, reproduce, check: wires the rooms",
        names(
            "messages errors compat policies machine stores checkpoints settings space record resources",
            "gang schedulers searchers results trial cluster reporting lightning",
            "checkpoints:sweep.steering session:sweep.run",
        ),
    ),
    "cli": Room(
        "parses and calls",
        names(
            "errors compat stores settings space record results reporting sweep",
        ),
    ),
    "__main__": Room("the command line by another name", names("cli")),
    "": Room(
        "the front door: every public name",
        names(
            "errors compat policies settings session space schedulers results",
            "lightning cluster sweep",
        ),
    ),
}

# What a sweep does without. Each may import all of the first storey, which imports one of these only inside a function,
# at the places of `STAIRS`.
EXTRAS: dict[str, Room] = {
    "extras.figures": Room("figures of a sweep", names("extras.optuna_versions")),
    "extras.report": Room("saved reports", names("extras.figures")),
    "extras.web": Room("the live page", names("cli extras.report extras.attach")),
    "extras.optuna": Room("Optuna's samplers for a sweep", names("extras.earlier extras.optuna_versions")),
    "extras.optuna_versions": Room("what differs between versions of Optuna"),
    "extras.earlier": Room("trials of earlier sweeps, for a searcher to begin with"),
    "extras.export": Room("what one takes of a trial: exports, and its model"),
    "extras.study": Room("a sweep as an Optuna study", names("extras.optuna_versions")),
    "extras.reproduce": Room("a trial, trained again and compared"),
    "extras.mcp": Room("`tunelight mcp`", names("cli extras.attach")),
    "extras.plan": Room("how long a sweep will take"),
    "extras.tuneup": Room("measured settings", names("extras.standalone")),
    "extras.attach": Room("a running sweep, followed and told by another process"),
    "extras.check": Room("a sweep looked at before it runs", names("extras.reproduce")),
    "extras.upkeep": Room("sweeps deleted"),
    "extras.plain_tune": Room("trials on gangs for those who run Tune themselves"),
    "extras.forks": Room("workers forked from a process that has their imports"),
    "extras.stay": Room("a command's driver, which stays for the next command", names("extras.forks")),
    "extras.wandb": Room("sweeps of W&B"),
    "extras.zoo": Room("models and data of the search spaces that come along", names("extras.digits")),
    "extras.digits": Room("a first model and its data, as a user would write them"),
    "extras.horovod": Room("Horovod as a backend"),
    "extras.sharded": Room("models that are sharded over their workers, a backend"),
    "extras.tensorboard": Room("TensorBoard's files of a sweep"),
    "extras.trackers": Room("runs of W&B and MLflow, one a trial"),
    "extras.transformers": Room("reports from the Trainer of transformers"),
    "extras.scripts": Room(
        "training scripts as they are, their options and what they log", names("extras.transformers")
    ),
    "extras.data": Room("datasets and caches for training code"),
    "extras.standalone": Room("fits outside of a sweep"),
}
STAIRS = {
    "cli.app": "extras.stay",
    "cli.figures": "extras.figures extras.web",
    "cli.inspect": "extras.attach extras.export extras.reproduce",
    "cli.listing": "extras.upkeep",
    "cli.starter": "extras.scripts",
    "cli.sweeps": "extras.check extras.stay",
    "cli.steer": "extras.attach extras.mcp",
    "cli.tuning": "extras.plan extras.tuneup",
    "cluster.local": "extras.forks",
    "gang.worker": "extras.standalone extras.trackers",
    "lightning.recipe": "extras.scripts",
    "lightning.strategies.base": "extras.standalone",
    "results.sweep": "extras.figures extras.study",
    "results.trial": "extras.export extras.scripts",
    "searchers.choose": "extras.earlier extras.optuna",
    "settings.checks": "extras.data extras.scripts",
    "settings.code": "extras.scripts",
    "settings.values": "extras.scripts",
    "space.more_domains": "extras.wandb",
    "space.space": "extras.wandb",
    "sweep.run": "extras.data extras.forks extras.scripts extras.tensorboard extras.web",
}
"""Modules of the first storey that import an extra inside a function, and which."""
FIRST_STOREY = ROOMS.keys() - {"cli", "__main__", ""}
"""The rooms that any extra may import."""
ROOMS |= EXTRAS
ROOMS["extras"] = Room("what a sweep does without")

TUNE = "ray ray.tune"
LIGHTNING = "pytorch_lightning lightning_fabric torch"
HEAD = "the head of a gang passes the training code on as bytes, so that its process stays without torch"

# The longest name that fits a module is its entry: a part of a room may have one of its own.
LIBRARIES: dict[str, Libraries] = {
    "compat": Libraries(
        late=names(TUNE, "ray.air.execution pynvml filelock", LIGHTNING),
        why="each is imported when asked for",
    ),
    "machine": Libraries(names("psutil"), why="it knows neither Ray nor torch"),
    "stores": Libraries(late=names("fsspec filelock"), why="every process imports it, and few use a store"),
    "stores.tune": Libraries(names("fsspec pyarrow"), why="it is Tune's side of a store, imported where there is one"),
    "settings": Libraries(names("yaml")),
    "space": Libraries(names("numpy yaml", TUNE)),
    "space.kinds": Libraries(names(TUNE), late=names("optuna"), why="only what asks Optuna imports it"),
    "resources": Libraries(late=names(TUNE)),
    "extras.digits": Libraries(
        names("numpy", LIGHTNING), late=names("sklearn"), why="it is what a user could have written"
    ),
    "extras.zoo": Libraries(names("numpy", LIGHTNING), why="as digits"),
    "record": Libraries(
        names("numpy yaml ray.tune.Callback"), why="what is on disk outlives every version of Tune that wrote it"
    ),
    "gang": Libraries(names("ray psutil cloudpickle"), why=HEAD),
    "gang.worker": Libraries(names("ray psutil cloudpickle"), late=names("torch numpy"), why=HEAD),
    "gang.parcel": Libraries(names("ray cloudpickle numpy"), late=names("torch"), why=HEAD),
    "gang.reset": Libraries(names("ray psutil"), late=names("torch numpy"), why=HEAD),
    "gang.meeting.torch_group": Libraries(names("torch"), why="only workers import it, by its name"),
    "gang.meeting": Libraries(names("ray psutil"), late=names("torch"), why=HEAD),
    "trial": Libraries(names("cloudpickle numpy", TUNE), why=HEAD),
    "cluster": Libraries(names("ray ray.tune.Callback")),
    "schedulers": Libraries(names("numpy sortedcontainers", TUNE)),
    "searchers": Libraries(names("numpy", TUNE)),
    "results": Libraries(
        names("numpy pandas yaml"),
        late=names(LIGHTNING, "safetensors"),
        why="results are read where neither Ray nor torch is installed",
    ),
    "extras.optuna": Libraries(names("numpy optuna", "ray.tune"), why="its samplers are asked"),
    "extras.optuna_versions": Libraries(late=names("optuna"), why="only what asks Optuna imports it"),
    "extras.study": Libraries(late=names("optuna"), why="it makes a study, when one is asked for"),
    "extras.figures": Libraries(
        names("numpy plotly"), late=names("optuna"), why="it draws, when a figure is asked for"
    ),
    "reporting": Libraries(names("numpy plotly rich ray.tune.Callback"), late=names("IPython optuna")),
    "extras.export": Libraries(late=names("torch safetensors"), why="only weights need them"),
    "extras.forks.ready": Libraries(
        late=names("ray"), why="it is asked before there is a Ray, and in the server after torch"
    ),
    "extras.report": Libraries(late=names("plotly"), why="a report draws when it is looked at"),
    "extras.wandb": Libraries(names("numpy ray.tune"), late=names("scipy"), why="its domains are Ray Tune's"),
    "extras.web": Libraries(names("starlette uvicorn"), why="an extra"),
    "lightning": Libraries(names("cloudpickle numpy", LIGHTNING), late=names("torchmetrics")),
    "extras.horovod": Libraries(names("torch"), late=names("horovod torchmetrics"), why="an extra"),
    "extras.sharded": Libraries(names("torch"), why="it is a backend's strategy, which only training code imports"),
    "extras.horovod.group": Libraries(late=names("torch horovod"), why=HEAD),
    "extras.reproduce": Libraries(names("ray.tune"), why="it trains a trial once more"),
    "extras.tensorboard": Libraries(names("ray.tune.Callback tensorboard"), why="it writes TensorBoard's own messages"),
    "extras.trackers": Libraries(late=names("filelock"), why="it waits for a tracker to be imported"),
    "lightning.guard": Libraries(why="every Trainer of the environment loads it, whatever its Lightning"),
    "lightning.strategy_check": Libraries(late=names(LIGHTNING), why="a Trainer of either Lightning loads it"),
    "lightning.recipe": Libraries(
        late=names(LIGHTNING, "jsonargparse"), why="a driver makes it, and only workers carry it out"
    ),
    "extras.check": Libraries(names("numpy"), late=names("ray"), why="it draws samples, and asks a cluster"),
    "extras.standalone": Libraries(
        names("numpy cloudpickle ray", LIGHTNING), late=names("IPython ray.tune"), why="it finds a Ray and forms gangs"
    ),
    "extras.transformers": Libraries(
        names("transformers torch"), why="only training code that uses transformers imports it"
    ),
    "extras.scripts": Libraries(names("yaml"), why="a driver makes a Script, and only workers run it"),
    "extras.scripts.files": Libraries(late=names("torch ray.tune.Callback"), why="only workers watch files"),
    "extras.scripts.output": Libraries(names("ray.tune.Callback"), why="it runs on the driver"),
    "extras.scripts.worker": Libraries(names("psutil"), why="it ends what a trial has started"),
    "extras.scripts.logged": Libraries(late=names("torch"), why="for scripts that log and report nothing"),
    "extras.scripts.trainer": Libraries(
        names("torch"), late=names("transformers"), why="for scripts that use transformers"
    ),
    "extras.data": Libraries(late=names("ray ray.data pyarrow"), why="a sweep without datasets needs none of them"),
    "extras.data.module": Libraries(
        names("numpy", LIGHTNING), late=names("ray.data"), why="it is Lightning's side of a dataset"
    ),
    "extras.data.cached": Libraries(names("joblib filelock")),
    "sweep": Libraries(names("cloudpickle numpy rich yaml", TUNE), why="only workers need torch and Lightning"),
    "extras.tuneup": Libraries(
        names("numpy yaml ray"), late=names("ruamel.yaml"), why="only workers need torch and Lightning"
    ),
    "extras.tuneup.worker": Libraries(names("torch"), why="it runs on workers, and a driver only sends it"),
    "cli": Libraries(names("typer"), late=names("rich yaml"), why="each command imports what it needs"),
    "extras.mcp": Libraries(names("mcp pydantic"), why="an extra"),
    "cli.starter.train": Libraries(names(LIGHTNING), why="it is what a user could have written"),
    "": Libraries(why="`import tunelight` costs nothing that its user does not need"),
}

# Parts of Ray with a door of their own: who may use actors may not therefore use Tune.
RAY_LIBRARIES = ("ray.air", "ray.data", "ray.rllib", "ray.serve", "ray.train", "ray.tune")


# --- reading imports --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    """One import: its full dotted name, its line, whether inside a function, and whether for annotations alone."""

    name: str
    line: int
    late: bool
    typing: bool = False


def _dotted(node: ast.expr) -> str | None:
    """Return "a.b.c" for the expression a.b.c."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (head := _dotted(node.value)):
        return f"{head}.{node.attr}"
    return None


def read_imports(source: str, package: str = "tunelight") -> list[Import]:
    """Return every import of a module's source; ``package`` is what its relative imports start from."""
    found: list[Import] = []

    def visit_all(nodes: Iterable[ast.AST], late: bool, typing: bool) -> None:
        for node in nodes:
            visit(node, late, typing)

    def visit(node: ast.AST, late: bool, typing: bool) -> None:
        here = getattr(node, "lineno", 0)
        if isinstance(node, ast.If) and (_dotted(node.test) or "").split(".")[-1] == "TYPE_CHECKING":
            visit_all(node.body, late, typing=True)
            visit_all(node.orelse, late, typing)
            return
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, here, late, typing) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            start = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            base = ".".join(part for part in (start, node.module) if part)
            found.extend(Import(f"{base}.{alias.name}", here, late, typing) for alias in node.names)
        elif isinstance(node, ast.Call) and (_dotted(node.func) or "").endswith(("import_module", "__import__")):
            if node.args and isinstance(node.args[0], ast.Constant):
                found.append(Import(str(node.args[0].value), here, late, typing))
        elif isinstance(node, ast.Attribute) and (_dotted(node) or "").startswith(RAY_LIBRARIES):
            found.append(Import(str(_dotted(node)), here, late, typing))
            return
        late = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        visit_all(ast.iter_child_nodes(node), late, typing)

    visit(ast.parse(source), late=False, typing=False)
    return found


def modules() -> dict[str, Path]:
    """Return the package's modules by their name without ``tunelight.``; the front door is ""."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, path: Path) -> list[Import]:
    full = f"tunelight.{module}" if module else "tunelight"
    is_package = path.name == "__init__.py"
    return read_imports(path.read_text(), full if is_package else full.rpartition(".")[0])


def room_of(module: str) -> str:
    """Return the room that a module lies in: "gang" for gang.worker, "extras.web" for extras.web.app."""
    parts = module.split(".")
    return ".".join(parts[: 1 + (parts[0] == "extras")])


def target(name: str, known: dict[str, Path]) -> str | None:
    """Return which module of tunelight an imported name belongs to; None where it is no part of it."""
    top, *parts = name.split(".")
    if top != "tunelight":
        return None
    while parts and ".".join(parts) not in known:
        parts.pop()
    return ".".join(parts)


# --- judging them -----------------------------------------------------------------------------------------


def libraries_of(module: str) -> Libraries:
    """Return what a module may import of others: the longest entry that fits it, else nothing."""
    parts = module.split(".")
    ends = range(len(parts), 0, -1)
    entry = next((name for end in ends if (name := ".".join(parts[:end])) in LIBRARIES), None)
    return Libraries() if entry is None else LIBRARIES[entry]


def _within(name: str, allowed: Iterable[str]) -> bool:
    """Tell whether a dotted name is one of those allowed, or lies in one of them."""
    own = next((library for library in RAY_LIBRARIES if f"{name}.".startswith(f"{library}.")), "")
    return any(f"{name}.".startswith(f"{spec}.") and spec.startswith(own) for spec in allowed)


def opened(module: str) -> set[str]:
    """Return the rooms that a module may import."""
    rooms = set()
    for entry in ROOMS[room_of(module)].rooms:
        room, _, part = entry.partition(":")
        if _within(module, [part or room_of(module)]):
            rooms.add(room)
    return rooms | FIRST_STOREY if is_extra(module) else rooms


def forced(module: str, found: Import, known: dict[str, Path]) -> str | None:
    """Return a sentence that says which door an import forces; None where it may pass."""
    where = f"tunelight/{module.replace('.', '/') or '__init__'}:{found.line}"
    room = room_of(module)
    if room not in ROOMS:
        return f"the room {room!r} has no entry in ROOMS: say there what belongs into it, and what it may import."
    called = module or "the front door"
    inside = target(found.name, known)
    if inside is not None:
        if inside == "":
            return f"{where} imports the front door for `{found.name}`: {called} must name a room that exists."
        if room_of(inside) == room or room_of(inside) in opened(module):
            return None
        if is_extra(inside) and not is_extra(module):
            if found.typing or (found.late and room_of(inside) in STAIRS.get(module, "").split()):
                return None
            return f"{where} imports {inside}: a sweep does without it, and only `STAIRS` may ask {room_of(inside)}."
        allowed = ", ".join(sorted(opened(module))) or "no other room"
        return f"{where} forces the door from {called} to {inside}: it may import {allowed} ({ROOMS[room].rule})."
    libraries = libraries_of(module)
    because = f" ({libraries.why})" if libraries.why else ""
    if room_of(found.name) in sys.stdlib_module_names or found.typing or _within(found.name, libraries.names):
        return None
    if _within(found.name, libraries.late):
        if found.late:
            return None
        return f"{where}: {called} may import {found.name} only inside a function{because}."
    allowed = ", ".join(sorted(libraries.names | libraries.late)) or "no third-party library"
    return f"{where} forces the door from {called} to {found.name}: it may import {allowed}{because}."


def is_extra(module: str) -> bool:
    """Tell whether a module lies on the second storey, which a sweep does without."""
    return module.split(".", maxsplit=1)[0] == "extras"


def floors() -> dict[str, int]:
    """Return the floor of each room by the table: 1 imports no other room, each stands above all that it imports."""
    found: dict[str, int] = {}
    order = graphlib.TopologicalSorter(
        {room: {entry.partition(":")[0] for entry in entry_of.rooms} for room, entry_of in ROOMS.items()}
    )
    for room in order.static_order():
        found[room] = 1 + max((found[entry.partition(":")[0]] for entry in ROOMS[room].rooms), default=0)
    return found


@functools.cache
def every_import() -> tuple[tuple[str, Import], ...]:
    """Return each import of the package, beside the module that it stands in."""
    return tuple((module, found) for module, path in modules().items() for found in imports_of(module, path))

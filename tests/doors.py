"""Who may import whom: the table of doors, and the reader of imports that holds the package against it.

Imports inside functions count, as do modules imported by a name that is written out and `ray.tune` reached
through `import ray`. Imports under `if TYPE_CHECKING:` are exempt: they are for readers and mypy, and no
process ever carries them out.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "tunelight"


@dataclass(frozen=True)
class Door:
    """What one room may import.

    ``rooms`` are rooms of tunelight, or single modules of one ("lightning.guard"); a room may always
    import its own modules. ``libraries`` are third-party modules or single names in them; ``late`` are
    libraries that only the inside of a function may import, so that importing the room stays cheap.
    """

    rooms: frozenset[str] = frozenset()
    libraries: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()
    why: str = ""


def names(*lists: str) -> frozenset[str]:
    return frozenset(" ".join(lists).split())


TUNE = "ray ray.tune"
FIRST = "messages errors compat.arguments machine stores checkpoints session settings space resources policies"
LIGHTNING = "pytorch_lightning lightning_fabric torch"
HEAD = "the head of a gang passes the training code on as bytes, so that its process stays without torch"

# The longest name that fits a module is its entry, so a module can have a door of its own.
DOORS: dict[str, Door] = {
    # What crosses a process, and what every process may know.
    "messages": Door(),
    "machine.imports": Door(),
    "machine.versions": Door(),
    "stores.masking": Door(),
    "errors": Door(names("messages")),
    "machine": Door(
        names("errors"), names("psutil"), why="it knows this process and this machine, and neither Ray nor torch"
    ),
    "compat.arguments": Door(names("errors"), why="it says what to write instead, and knows none of what it speaks of"),
    "machine.notebook": Door(names("messages"), late=names("IPython"), why="it shows text that came, whoever drew it"),
    "stores": Door(
        names("errors stores.masking"),
        late=names("fsspec"),
        why="every process may read a path, and few of them one in a store",
    ),
    "stores.tune": Door(libraries=names("fsspec pyarrow"), why="it is Tune's side of a store, imported where one is"),
    "checkpoints": Door(names("messages errors stores"), why="reads and writes files, and knows no framework"),
    "checkpoints.writer": Door(
        names("messages errors stores checkpoints policies"), why="it writes what it is handed, and knows no framework"
    ),
    "session.shared": Door(
        names("messages errors session.mailbox"), why="it is handed the way to fetch, and knows no framework"
    ),
    "session.mailbox": Door(names("messages errors"), why="what ranks hear is decided elsewhere"),
    "session.exchange": Door(names("messages"), why="it is handed the store and what can be put there"),
    "session": Door(
        names(
            "messages errors compat.arguments checkpoints",
            "policies session.mailbox checkpoints.writer session.exchange session.shared",
        ),
        why="a worker's context knows neither Ray nor torch",
    ),
    # What is declared before anything runs, and plain deciders.
    "settings": Door(names("messages errors compat.arguments policies stores"), names("cloudpickle yaml")),
    "space": Door(names("messages errors compat.arguments settings"), names("numpy pydantic yaml", TUNE)),
    "resources": Door(names("messages errors compat.arguments settings"), late=names(TUNE)),
    "cluster.runtime_env": Door(names("errors"), why="it says what goes along to other nodes, and knows none of them"),
    "sweep.failfast": Door(
        names("messages errors policies record"),
        names("ray.tune.Callback"),
        why="it hears what Tune's callbacks are told, and ends one sweep",
    ),
    "cluster.gcs_watch": Door(
        names("errors"), names("ray.tune.Callback"), why="it looks at one port, and ends one driver"
    ),
    "cluster": Door(
        names(
            "messages errors resources cluster.runtime_env",
            "settings cluster.gcs_watch cluster.nodes record.names machine.network",
        ),
        names("ray"),
        why="it finds or starts a Ray and asks what it holds, whatever runs there",
    ),
    "cluster.nodes": Door(
        names("messages stores machine.version_check machine.network gang.meeting.rendezvous"),
        names("ray"),
        late=names("torch"),
        why="its probes run on every node, and meet there as a gang does",
    ),
    "cluster.survey": Door(
        names("errors cluster cluster.doctor cluster.nodes machine.version_check"),
        names("ray"),
        why="it asks probes, and judges what they say",
    ),
    "policies": Door(
        names("messages errors compat.arguments"), why="a policy decides by what it is handed, and acts on nothing"
    ),
    # N actors that train as one.
    "gang": Door(names(FIRST), names("ray psutil cloudpickle"), why=HEAD),
    "gang.worker": Door(names(FIRST), names("ray psutil cloudpickle"), late=names("torch numpy"), why=HEAD),
    "gang.meeting.rendezvous": Door(names(FIRST), names("ray psutil"), late=names("torch"), why=HEAD),
    "gang.meeting.torch_group": Door(names(FIRST), late=names("torch"), why=HEAD),
    "gang.meeting.gathering": Door(names(FIRST), late=names("torch"), why=HEAD),
    "gang.meeting.horovod": Door(names(FIRST), late=names("torch horovod"), why=HEAD),
    "gang.reset": Door(names(FIRST), names("ray psutil"), late=names("torch numpy"), why=HEAD),
    # Lightning's side, inside a worker.
    "lightning": Door(why="Lightning imports what is above its rooms for every Trainer of the environment"),
    "lightning.guard": Door(
        names("lightning.strategy_check"),
        why="every Trainer of the environment loads it, whatever its Lightning: it may cost nothing",
    ),
    "lightning": Door(
        names("messages errors compat.arguments checkpoints session settings policies gang"),
        names(LIGHTNING),
        late=names("torchmetrics horovod"),
        why="a worker knows its session, never a scheduler, a storage or Tune",
    ),
    "lightning.transfer": Door(names("settings.code"), names("cloudpickle numpy torch")),
    "lightning.exact.generators": Door(libraries=names("numpy torch")),
    "lightning.state.changes": Door(libraries=names("numpy", LIGHTNING)),
    "lightning.remote.disks": Door(names("errors"), names("numpy")),
    "lightning.remote.job": Door(
        names("messages errors session settings.code gang"),
        names("ray", LIGHTNING),
        why="it is what a driver sends and a worker runs, through Ray's object store",
    ),
    "lightning.remote.driver": Door(
        names(FIRST, "cluster gang machine.notebook"),
        names("ray cloudpickle", LIGHTNING),
        why="it is the driver's side of a strategy: it finds a Ray and forms gangs",
    ),
    "lightning.remote.tune": Door(
        names("messages checkpoints"),
        names(TUNE),
        why="the one way to Tune for a gang inside a function trainable, in the process of the trial",
    ),
    "lightning.callbacks": Door(
        names(
            "messages errors compat.arguments checkpoints",
            "session gang lightning.strategy_check lightning.state.adoption",
        ),
        names(LIGHTNING),
        why="a worker knows its session, never a scheduler, a storage or Tune",
    ),
    # Ray Data, an extra: imported where somebody has datasets.
    "data": Door(
        names("messages errors session settings"),
        late=names("ray ray.data pyarrow"),
        why="a sweep without datasets needs neither Ray Data nor pyarrow",
    ),
    "data.module": Door(
        names("messages errors compat.arguments session settings lightning.exact.eval_shards"),
        names(LIGHTNING),
        late=names("ray.data"),
        why="it is Lightning's side of a dataset",
    ),
    "data.cached": Door(
        names("messages errors session lightning.transfer"),
        names("numpy"),
        late=names("cloudpickle filelock"),
        why="it keeps what a user's function loads, whatever trains on it",
    ),
    "lightning.recipe": Door(
        names("messages errors session settings lightning.callbacks lightning"),
        late=names(LIGHTNING),
        why="the driver holds it and only workers carry it out",
    ),
    "digits": Door(
        names("errors"),
        names("numpy", LIGHTNING),
        late=names("sklearn"),
        why="it is what a user could have written: a model and its data",
    ),
    "zoo": Door(
        names("errors digits"),
        names("numpy", LIGHTNING),
        late=names("pyarrow PIL"),
        why="as digits: the models and data that the search spaces name",
    ),
    # The driver's side: Tune, the trial's head, and what becomes of results.
    "trial": Door(names(FIRST, "gang"), why=HEAD),
    "trial.trainable": Door(names(FIRST, "gang trial"), names("cloudpickle numpy", TUNE), why=HEAD),
    "trial.settling": Door(
        names("gang"), names("ray ray.tune.Callback"), why="it waits for heads, as Tune ends a sweep"
    ),
    "trial.plain_tune": Door(
        names(FIRST, "trial trial.trainable"), why="it makes trainables; what it is given, it checks and hands on"
    ),
    "schedulers": Door(names(FIRST), names("numpy sortedcontainers", TUNE)),
    "schedulers.pb2": Door(names(FIRST), names("numpy"), late=names("sklearn threadpoolctl"), why="an extra"),
    "searchers": Door(
        names(FIRST, "record"),
        names("numpy optuna", TUNE),
        why="they suggest, from what they are told and what earlier sweeps recorded",
    ),
    "simulation": Door(
        names(FIRST, "schedulers searchers record"),
        names("numpy sortedcontainers", TUNE),
        why="it runs schedulers and searchers on virtual time, and reads what sweeps left",
    ),
    "record": Door(
        names("messages errors machine.versions stores.masking stores checkpoints settings space"),
        names("numpy yaml ray.tune.Callback"),
        why="what is on disk outlives every version of Tune; of Tune it knows the callback that tells it",
    ),
    "sweep.past": Door(
        names("errors settings space record stores"), why="a sweep's past is read, and judged, without Ray"
    ),
    "sweep.replay": Door(
        names("messages errors searchers space record"),
        names(TUNE),
        why="it tells Tune's schedulers and searchers what the record says",
    ),
    "results.pareto": Door(names("errors settings record"), names("numpy"), why="it compares what trials reported"),
    "results": Door(
        names("messages errors checkpoints results.pareto settings space record stores lightning.recipe resources"),
        names("numpy pandas yaml"),
        late=names(LIGHTNING, "safetensors"),
        why="results are read from the record alone, also where neither Ray nor torch is installed",
    ),
    "results.ensemble": Door(
        names("errors"), names("torch"), why="it is a module of torch, and imported when one is asked for"
    ),
    "reporting": Door(
        names("messages errors machine.notebook settings space record"),
        names("numpy plotly rich tensorboard ray.tune.Callback"),
        late=names("IPython optuna"),
        why="it shows what the record says",
    ),
    "sweep": Door(
        names(
            FIRST,
            "cluster data sweep.failfast gang.pool gang.seat",
            "cluster.gcs_watch machine.signals sweep.past lightning.recipe sweep.replay cluster.runtime_env",
            "trial.settling trial trial.trainable",
            "schedulers searchers record results reporting",
        ),
        names("cloudpickle numpy rich yaml", TUNE),
        why="it wires the rooms into one Tuner; only workers need torch and Lightning",
    ),
    "sweep.resume": Door(
        names("errors compat.arguments stores.masking settings space record stores sweep results"),
        why="it reads what a sweep was told, and runs that again",
    ),
    "sweep.reproduce": Door(
        names("errors compat.arguments sweep.resume results schedulers record"),
        why="it runs a trial again as a sweep of its own, and compares two records",
    ),
    "sweep.check": Door(
        names("errors cluster data.shelf resources schedulers searchers settings space sweep"),
        names("numpy"),
        why="it builds all of a sweep but its trials, and runs one batch as a sweep",
    ),
    "cluster.doctor": Door(
        names("errors cluster reporting.dashboards"),
        names("packaging psutil"),
        late=names("torch horovod"),
        why="it looks at what may be broken, so it imports it last",
    ),
    "reporting.dashboards": Door(names("errors"), why="it starts programs of others, and ends them"),
    "cli.starter": Door(names("errors"), why="it copies files into an empty folder"),
    "cli.starter.train": Door(libraries=names(LIGHTNING), why="it is what a user could have written"),
    "cli": Door(
        names(
            "errors compat.arguments settings space record stores",
            "sweep sweep.resume sweep.reproduce results reporting simulation",
            "sweep.check cluster.doctor cluster.survey reporting.dashboards cli.starter",
        ),
        names("typer"),
        late=names("rich yaml"),
        why="it parses and calls, and holds no logic; each command imports what it needs",
    ),
    "__main__": Door(names("cli"), why="it is the command line by another name"),
    # The front door hands out names of every room, each when it is first asked for.
    "": Door(
        names(
            FIRST,
            "gang lightning lightning.callbacks lightning.recipe digits data data.cached",
            "trial.trainable trial.plain_tune schedulers searchers simulation",
            "record results reporting sweep sweep.resume sweep.reproduce",
        ),
        why="`import tunelight` costs nothing that its user does not need",
    ),
}

# Parts of Ray with a door of their own: who may use actors may not therefore use Tune.
RAY_LIBRARIES = ("ray.air", "ray.data", "ray.rllib", "ray.serve", "ray.train", "ray.tune")


# --- reading imports --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    """One import: the full dotted name, where it stands, and whether inside a function."""

    name: str
    line: int
    late: bool


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

    def visit_all(nodes: Iterable[ast.AST], late: bool) -> None:
        for node in nodes:
            visit(node, late)

    def visit(node: ast.AST, late: bool) -> None:
        here = getattr(node, "lineno", 0)
        if isinstance(node, ast.If) and (_dotted(node.test) or "").split(".")[-1] == "TYPE_CHECKING":
            visit_all(node.orelse, late)
            return
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, here, late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            start = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            base = ".".join(part for part in (start, node.module) if part)
            found.extend(Import(f"{base}.{alias.name}", here, late) for alias in node.names)
        elif isinstance(node, ast.Call) and (_dotted(node.func) or "").endswith(("import_module", "__import__")):
            if node.args and isinstance(node.args[0], ast.Constant):
                found.append(Import(str(node.args[0].value), here, late))
        elif isinstance(node, ast.Attribute) and (_dotted(node) or "").startswith(RAY_LIBRARIES):
            found.append(Import(str(_dotted(node)), here, late))
            return
        late = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        visit_all(ast.iter_child_nodes(node), late)

    visit(ast.parse(source), late=False)
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
    """Return the room that a module lies in: "gang" for gang.worker."""
    return module.split(".", maxsplit=1)[0]


def target(name: str, known: dict[str, Path]) -> str | None:
    """Return which module of tunelight an imported name belongs to; None where it is no part of it."""
    top, *parts = name.split(".")
    if top != "tunelight":
        return None
    while parts and ".".join(parts) not in known:
        parts.pop()
    return ".".join(parts)


# --- judging them -----------------------------------------------------------------------------------------


def door_of(module: str) -> str | None:
    """Return the entry of the table for a module: the longest that fits; None where there is none."""
    parts = module.split(".")
    ends = range(len(parts), 0, -1)
    return next((entry for end in ends if (entry := ".".join(parts[:end])) in DOORS), None)


def _within(name: str, allowed: frozenset[str]) -> bool:
    """Tell whether a dotted name is one of those allowed, or lies in one of them."""
    own = next((library for library in RAY_LIBRARIES if f"{name}.".startswith(f"{library}.")), "")
    return any(f"{name}.".startswith(f"{spec}.") and spec.startswith(own) for spec in allowed)


def forced(module: str, found: Import, known: dict[str, Path]) -> str | None:
    """Return a sentence that says which door an import forces; None where it may pass."""
    where = f"tunelight/{module.replace('.', '/') or '__init__'}:{found.line}"
    entry = door_of(module)
    if entry is None:
        return f"the room {room_of(module)!r} has no entry in DOORS: say there what it may import, and why."
    door = DOORS[entry]
    because = f" ({door.why})" if door.why else ""
    room = entry or "the front door"
    inside = target(found.name, known)
    if inside is not None:
        if inside == "":
            return f"{where} imports the front door for `{found.name}`: {room} must name a room that exists."
        if room_of(inside) == room_of(module) or _within(inside, door.rooms):
            return None
        allowed = ", ".join(sorted(door.rooms)) or "no other room"
        return f"{where} forces the door from {room} to {inside}: {room} may import {allowed}{because}."
    if room_of(found.name) in sys.stdlib_module_names or _within(found.name, door.libraries):
        return None
    if _within(found.name, door.late):
        if found.late:
            return None
        return f"{where}: {room} may import {found.name} only inside a function{because}."
    allowed = ", ".join(sorted(door.libraries | door.late)) or "no third-party library"
    return f"{where} forces the door from {room} to {found.name}: {room} may import {allowed}{because}."


def every_import() -> Iterator[tuple[str, Import]]:
    for module, path in modules().items():
        for found in imports_of(module, path):
            yield module, found

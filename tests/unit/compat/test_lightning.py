"""The names of Lightning that tunelight uses: each is in the installed Lightning, in both of its packages."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any, get_args

import pytest

import tunelight
from tests import flavours
from tests.kit.programs import printed_by
from tunelight.compat import lightning as names
from tunelight.errors import SettingsError
from tunelight.extras.digits import DigitsClassifier

PACKAGE = Path(tunelight.__file__).parent


def both(name: str) -> list[Any]:
    return [names.lookup(name, flavour) for flavour in get_args(names.Flavour)]


def imported(tree: ast.AST) -> dict[str, str]:
    """Return the names that some code imports from Lightning, each with its module."""
    return {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if node.module.partition(".")[0] in ("pytorch_lightning", "lightning_fabric", "lightning")
    }


def test_only_this_module_imports_lightning():
    users = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        plain = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        if imported(tree) or {"pytorch_lightning", "lightning_fabric", "lightning"} & {
            name.partition(".")[0] for name in plain
        }:
            users.add(path.relative_to(PACKAGE.parent).as_posix())
    copied = "tunelight/cli/starter/train.py"  # into a user's folder
    assert users == {copied, "tunelight/compat/lightning.py"}


def test_type_checkers_see_the_names_that_the_table_has():
    seen = imported(ast.parse(inspect.getsource(names)))
    packages = {"pl": "pytorch_lightning", "fabric": "lightning_fabric"}
    places = {}
    for name, place in (names.DOCUMENTED | names.UNDOCUMENTED).items():
        package, _, rest = place.partition(".")
        places[name] = f"{packages[package]}.{rest}"
    assert seen == places


@pytest.mark.parametrize("name", ["pl", *names.DOCUMENTED, *names.UNDOCUMENTED])
def test_both_flavours_have_every_name(name):
    ours, other = both(name)
    assert type(ours) is type(other)
    if inspect.isfunction(ours):
        assert [*inspect.signature(ours).parameters] == [*inspect.signature(other).parameters]


def test_a_class_knows_its_flavour():
    class Own(DigitsClassifier):
        pass

    ours, other = both("pl")
    assert names.flavour_of(Own) == names.flavour()
    assert [names.flavour_of(package.Trainer) for package in (ours, other)] == [
        "pytorch_lightning",
        "lightning.pytorch",
    ]
    assert names.flavour_of(Path) is None


def top_level_imports(path: Path) -> set[str]:
    """Return the modules, and the names in them, that a file imports when it is imported itself."""
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(path.read_text())]
    while nodes:
        for node in ast.iter_child_nodes(nodes.pop()):
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            elif not isinstance(node, ast.FunctionDef | ast.Lambda):
                nodes.append(node)
    return found


def test_only_the_lightning_room_and_models_import_names_of_lightning_at_once():
    """A fork that changes its flavour imports the lightning room anew, and nothing else may have kept such a name."""
    kept = {f"tunelight.compat.lightning.{name}" for name in ("pl", *names.DOCUMENTED, *names.UNDOCUMENTED)}
    keep = {path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py") if top_level_imports(path) & kept}
    assert keep == {"lightning", "extras"}


def test_a_forked_worker_takes_the_flavour_of_its_sweep():
    printed_by("""
import os, sys
from tunelight.compat import lightning
from tunelight.lightning import callbacks
before = callbacks.TuneReportCallback
assert lightning.flavour_of(before) == "pytorch_lightning"
os.environ[lightning.VARIABLE] = "lightning"
lightning.decide_in_worker()
from tunelight.lightning import callbacks
from tunelight.lightning.strategies import RayStrategy
assert lightning.flavour_of(callbacks.TuneReportCallback) == lightning.flavour_of(RayStrategy) == "lightning.pytorch"
assert lightning.pl.__name__ == "lightning.pytorch"
lightning.decide_in_worker()
assert lightning.flavour_of(before) == "pytorch_lightning"
import tunelight
assert tunelight.TuneReportCallback is callbacks.TuneReportCallback
""", env=flavours.as_a_user())  # fmt: skip


def test_a_process_has_one_flavour():
    before, other = names.flavour(), flavours.other()
    package = other.partition(".")[0]
    with pytest.raises(SettingsError, match=rf"asks for {other}, and this process works with {before}.*new one.*use"):
        tunelight.use(package)
    assert names.flavour() == before


@pytest.mark.parametrize(
    ("imported", "code", "chosen"),
    [
        ((), "", "pytorch_lightning"),
        (("lightning.pytorch",), "", "lightning.pytorch"),
        (tuple(names.FABRIC), "", "pytorch_lightning"),
        (tuple(names.FABRIC), "tunelight.use('lightning')", "lightning.pytorch"),
        ((), "os.environ['TUNELIGHT_LIGHTNING'] = 'lightning'", "lightning.pytorch"),
    ],
)
def test_what_the_environment_and_imports_choose(imported, code, chosen):
    printed_by(f"""
import os, sys, types
import tunelight
for name in {imported!r}:
    sys.modules[name] = types.ModuleType(name)
{code}
from tunelight.compat import lightning
assert lightning.flavour() == {chosen!r}, lightning.flavour()
""", env=flavours.as_a_user())  # fmt: skip

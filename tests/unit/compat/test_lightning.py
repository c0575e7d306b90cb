"""The names of Lightning that tunelight uses: each is in the installed Lightning, in both of its packages."""

from __future__ import annotations

import ast
import inspect
import os
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest

import tunelight
from tests import flavours
from tunelight.compat import lightning as names
from tunelight.compat.lightning import pl
from tunelight.digits import DigitsClassifier
from tunelight.errors import SettingsError

PACKAGE = Path(tunelight.__file__).parent
AS_A_USER = {"tunelight/cli/starter/train.py"}
"""Copied into a user's folder."""


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


# --- one place ----------------------------------------------------------------------------------------------


def test_only_this_module_imports_lightning():
    users = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        plain = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        if imported(tree) or {"pytorch_lightning", "lightning_fabric", "lightning"} & {
            name.partition(".")[0] for name in plain
        }:
            users.add(path.relative_to(PACKAGE.parent).as_posix())
    assert users == AS_A_USER | {"tunelight/compat/lightning.py"}


def test_type_checkers_see_the_names_that_the_table_has():
    seen = imported(ast.parse(inspect.getsource(names)))
    packages = {"pl": "pytorch_lightning", "fabric": "lightning_fabric"}
    places = {}
    for name, place in (names.DOCUMENTED | names.UNDOCUMENTED).items():
        package, _, rest = place.partition(".")
        places[name] = f"{packages[package]}.{rest}"
    assert seen == places


def test_every_name_is_used():
    text = "".join(path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "lightning.py")
    assert [name for name in [*names.DOCUMENTED, *names.UNDOCUMENTED] if name not in text] == []


def test_the_module_itself_imports_neither_lightning_nor_torch():
    code = (
        "import sys, tunelight.compat.lightning as names; names.flavour(), names.loaded(); "
        "sys.exit(bool({'pytorch_lightning', 'lightning', 'torch'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent)


# --- the two flavours ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pl", *names.DOCUMENTED, *names.UNDOCUMENTED])
def test_both_flavours_have_every_name(name):
    ours, other = both(name)
    assert type(ours) is type(other)
    if inspect.isfunction(ours):
        assert [*inspect.signature(ours).parameters] == [*inspect.signature(other).parameters]


def test_names_are_those_of_the_flavour_of_the_process():
    assert names.flavour() == names.CHOICES[os.environ.get(names.VARIABLE, "pytorch_lightning")]
    assert names.pl.__name__ == names.flavour()
    assert names.pl is pl is names.loaded()
    assert names.Callback is pl.Callback
    with pytest.raises(AttributeError, match="no attribute 'Backcall'"):
        names.Backcall  # type: ignore[attr-defined] # noqa: B018


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


def test_all_modules_with_names_of_lightning_are_exchanged_and_nobody_else_keeps_them():
    kept = {f"tunelight.compat.lightning.{name}" for name in ("pl", *names.DOCUMENTED, *names.UNDOCUMENTED)}
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        imported = top_level_imports(path)
        if not names.made_for_one(module) and module != "tunelight.compat.lightning":
            assert not imported & kept, f"{module} keeps names of one flavour"
            made = {name for name in imported if names.made_for_one(name)} - {
                "tunelight.lightning.recipe.training_code"
            }
            assert not made, f"{module} keeps what is made for one flavour: {made}"


def test_a_process_changes_to_the_other_flavour_and_back():
    before = names.flavour()
    other = flavours.other()
    parts = {name: import_module(f"tunelight.zoo.{name}") for name in ("parquet", "vision")}
    ours = tunelight.TuneReportCallback, tunelight.RayStrategy, DigitsClassifier
    try:
        names.switch(other)
        theirs = (
            tunelight.TuneReportCallback,
            tunelight.RayStrategy,
            pickle.loads(b"ctunelight.digits\nDigitsClassifier\n."),
        )
        assert [names.flavour_of(kind) for kind in theirs] == [other] * 3
        assert [names.flavour_of(kind) for kind in ours] == [before] * 3
        assert names.pl is names.lookup("pl", other)
        assert type(pickle.loads(pickle.dumps(theirs[0]()))) is theirs[0]
    finally:
        names.switch(before)
    assert (tunelight.TuneReportCallback, tunelight.RayStrategy) == ours[:2]
    assert type(pickle.loads(pickle.dumps(ours[0]()))) is ours[0]
    assert names.pl is names.lookup("pl", before)
    assert {name: getattr(sys.modules["tunelight.zoo"], name) for name in parts} == parts


def test_only_names_of_packages_can_be_chosen():
    with pytest.raises(SettingsError, match=r"no package of Lightning named 'lightening'.*Did you mean 'lightning'"):
        tunelight.use("lightening")


def test_what_the_environment_and_imports_choose():
    """A process of its own: the choice is made once."""
    both = ("pytorch_lightning", "lightning.pytorch")
    for imported, code, chosen in (
        ((), "", "pytorch_lightning"),
        (both[1:], "", "lightning.pytorch"),
        (both, "", "pytorch_lightning"),
        (both, "tunelight.use('lightning')", "lightning.pytorch"),
        ((), "os.environ['TUNELIGHT_LIGHTNING'] = 'lightning'", "lightning.pytorch"),
    ):
        script = f"""
import os, sys, types
import tunelight
for name in {imported!r}:
    sys.modules[name] = types.ModuleType(name)
{code}
from tunelight.compat import lightning
assert lightning.flavour() == {chosen!r}, lightning.flavour()
"""
        environment = {key: value for key, value in os.environ.items() if key != names.VARIABLE}
        subprocess.run([sys.executable, "-c", script], check=True, cwd=PACKAGE.parent, env=environment)


# --- what is called of the undocumented ones -----------------------------------------------------------------


@pytest.mark.parametrize("which", [0, 1])
def test_hooks_and_loops_are_called_as_lightning_calls_them(which):
    call = both("call")[which]
    called = {
        "_call_and_handle_interrupt": ["trainer", "trainer_fn", "args", "kwargs"],
        "_call_callback_hooks": ["trainer", "hook_name", "args", "monitoring_callbacks", "kwargs"],
        "_call_lightning_datamodule_hook": ["trainer", "hook_name", "args", "kwargs"],
        "_call_lightning_module_hook": ["trainer", "hook_name", "args", "pl_module", "kwargs"],
    }
    assert {name: list(inspect.signature(getattr(call, name)).parameters) for name in called} == called
    assert {"launch", "kill", "is_interactive_compatible"} <= set(dir(both("_Launcher")[which]))
    assert {"state_dict", "load_state_dict", "on_save_checkpoint", "restarting"} <= set(dir(both("_Loop")[which]))


def test_a_trainer_has_the_protected_attributes_that_are_read():
    trainer: Any = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu", barebones=False)
    accelerators = {
        "use_distributed_sampler",
        "precision_plugin",
        "_devices_flag",
        "_num_nodes_flag",
        "_parallel_devices",
    }
    assert [name for name in accelerators if not hasattr(trainer._accelerator_connector, name)] == []
    logged = {"_callback_metrics", "_logged_metrics", "_progress_bar_metrics", "_first_loop_iter", "_current_fx"}
    assert [name for name in logged if not hasattr(trainer._logger_connector, name)] == []
    fit, epoch = trainer.fit_loop, trainer.fit_loop.epoch_loop
    assert [name for name in ("_combined_loader", "_should_accumulate", "_restarting") if not hasattr(fit, name)] == []
    steps = ("_results", "_batches_that_stepped", "_num_ready_batches_reached")
    assert [name for name in steps if not hasattr(epoch, name)] == []
    assert {"_results", "_active_loop"} <= set(dir(type(trainer)))
    assert {"_current_fx_name", "_trainer", "_compiler_ctx"} <= vars(DigitsClassifier()).keys()
    assert hasattr(pl.LightningModule, "_on_before_batch_transfer")

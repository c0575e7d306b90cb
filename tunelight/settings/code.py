"""The code that a sweep trains: import paths, and checks of a function or class before it runs.

Neither torch nor Lightning is imported here: their classes are recognised by module and name.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib
import importlib.util
import inspect
import itertools
import pkgutil
import time
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Literal

from tunelight.compat import lightning
from tunelight.compat.lightning import Flavour, flavour_of_module
from tunelight.errors import ImportPathError, SettingsError, TrainFunctionError, guess

Style = Literal["argparse", "fire", "lightning", "hydra", "wandb"]
"""How a script reads hyperparameters from its command line; click's and typer's are as argparse's."""

# --- import paths -----------------------------------------------------------------------------------------


def import_path(value: Any) -> str:
    """Return the import path of a function or class, "module:Name"; of another object, that of its class."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}:{named.__qualname__}"


def load_object(path: str) -> Any:
    """Import and return the object at "package.module:Name" or "package.module.Name".

    Raises: ImportPathError, which names the part of the path that failed.
    """
    module_name, colon, names = path.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        module = module_name.rpartition("/")[2].removesuffix(".py")
        raise ImportPathError(
            f"{path!r} is a file, not an import path. Write package.module:Name, for the file {module}.py "
            f"'{module}:{names or 'train'}'."
        )
    if not colon:
        module_name, _, names = path.rpartition(".")
    if not all(part.isidentifier() for part in (*module_name.split("."), *names.split("."))):
        raise ImportPathError(f"{path!r} is no import path. Write package.module:Name.")
    found = _load_module(module_name, path)
    for name in names.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            kind = "module" if isinstance(found, ModuleType) else "class"
            raise ImportPathError(
                f"{path!r} does not import: the {kind} {getattr(found, '__name__', found)!r} has no {name!r}."
                f"{guess(name, [known for known in dir(found) if known[0] != '_'])}"
            ) from error
    return found


def _load_module(name: str, path: str) -> Any:
    importlib.invalidate_caches()  # finds a file that was written a moment ago
    module: Any = None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        part = ".".join(parts[:end])
        parent, module = module, None
        try:
            module = importlib.import_module(part)
        except (Exception, SystemExit) as error:  # a script without a main guard may well exit
            if not (isinstance(error, ModuleNotFoundError) and error.name == part):
                raise ImportPathError(
                    f"{path!r} does not import: the module {part!r} was found, but raised "
                    f"{type(error).__name__}: {error}."
                ) from error
            inside = f" in {parent.__name__!r}" if parent else ""
            known = [found.name for found in pkgutil.iter_modules(getattr(parent, "__path__", []) if parent else None)]
            raise ImportPathError(
                f"{path!r} does not import: there is no module {parts[end - 1]!r}{inside}."
                f"{guess(parts[end - 1], known)}"
            ) from error
    return module


def fingerprint(value: Any) -> str | None:
    """Return a short hash of the source of a function or class; None if the source is not available.

    Functions that it calls, base classes and arguments of a partial are not included. ``value`` may be a script.
    """
    if isinstance(value, str):
        from tunelight.extras.scripts.style import script_file

        return hashlib.sha256(script_file(value).read_bytes()).hexdigest()[:16]
    while isinstance(value, functools.partial):
        value = value.func
    named = value if hasattr(value, "__qualname__") else type(value)
    try:
        source = inspect.getsource(named)
    except (OSError, TypeError):  # typed into a console, or compiled
        return None
    return hashlib.sha256(inspect.cleandoc(source).encode()).hexdigest()[:16]


# --- what is trained --------------------------------------------------------------------------------------


def check_train(train: Any, *, more: bool = False) -> None:
    """Raise TrainFunctionError unless ``train(config)`` can be called; with ``more``, also with further parameters."""
    if isinstance(train, type):
        hint = f" Did you mean model={train.__name__}?" if _is_lightning(train, "LightningModule") else ""
        raise TrainFunctionError(
            f"train must be a function of one configuration, train(config), not the class {train.__name__}.{hint}"
        )
    if not callable(train):
        raise TrainFunctionError(f"train must be a function of one configuration, train(config), not {train!r}.")
    name = getattr(train, "__name__", type(train).__name__)
    try:
        signature: inspect.Signature | None = inspect.signature(train)
    except (TypeError, ValueError):
        signature = None  # some built-ins have none
    if signature is not None:
        try:
            (signature.bind_partial if more else signature.bind)({})
        except TypeError as error:
            raise TrainFunctionError(
                f"train is called with one argument, the configuration: train(config). {name}{signature} "
                f"cannot be called so: {error}. Bind what else it needs with functools.partial, or give it a "
                "default."
            ) from error
    if inspect.iscoroutinefunction(train) or inspect.isgeneratorfunction(train):
        raise TrainFunctionError(
            f"{name} is an async or generator function: calling it trains nothing. Make it a plain function."
        )


def check_model(model: Any, data: Any = None) -> None:
    """Raise TrainFunctionError unless model and data are classes, or functions that build them on a worker."""
    for what, value, base in (("model", model, "LightningModule"), ("data", data, "LightningDataModule")):
        if value is None:
            continue
        if not callable(value) or _is_lightning(type(value), base):
            raise TrainFunctionError(
                f"{what}= must be a {base} class or a function that builds one, not an object "
                f"({type(value).__name__}), for each trial builds its own. Give the class, "
                f"functools.partial({type(value).__name__}, ...) to fix some of its arguments, or a function; "
                f"the search space's {what}.* keys are its other arguments."
            )
        if isinstance(value, type) and not _is_lightning(value, base):
            raise TrainFunctionError(
                f"{what}={value.__name__} is no {base}. Derive it from Lightning's {base}, or "
                "train it in a train function of your own."
            )


def _is_lightning(kind: type, name: str) -> bool:
    """Tell whether a class derives from Lightning's class of that name, of either flavour."""
    return any(base.__name__ == name and flavour_of_module(base.__module__) for base in kind.__mro__)


# --- which package of Lightning -----------------------------------------------------------------------------


def find_flavour(code: Mapping[str, Any]) -> Flavour:
    """Return the flavour of Lightning that code is written with, by what it names itself, else by what is imported.

    Args:
        code: functions, classes and scripts' code, by the names that errors give them.

    Raises: SettingsError where the code uses another flavour than this process, or the package is not installed;
    TrainFunctionError where it uses both and the user has not chosen.
    """
    found: dict[Flavour, str] = {}
    for what, value in code.items():
        for module in _modules(value):
            if (flavour := flavour_of_module(module)) is not None:
                found.setdefault(flavour, f"{what} uses {module}")
    uses = " and ".join(found.values())
    decided = lightning.check_decided(found, uses)
    if len(found) > 1 and lightning.asked() is None:
        raise TrainFunctionError(
            f"{uses}. {lightning.ALIKE} Import the same one in all of this code, or choose: {lightning.HOW_TO_CHOOSE}."
        )
    return lightning.check_installed(
        decided or next(iter(found), None) or lightning.flavour(), "The code of this sweep"
    )


def _modules(value: Any) -> Iterator[str]:
    """Yield the modules that a value names: a function's imports, and what it refers to; a class is its Lightning's."""
    while isinstance(value, functools.partial):
        value = value.func
    kind = type(value)  # which a proxy cannot answer for another object
    if issubclass(kind, ModuleType):
        yield value.__name__
    elif issubclass(kind, type) and not value.__module__.startswith("tunelight."):  # ours are of the process's flavour
        yield lightning.flavour_of(value) or ""
    elif issubclass(kind, CodeType):  # of a script
        yield from imports(value)
    elif issubclass(kind, FunctionType):
        yield from imports(value.__code__)
        for _, part in captured(value):
            if issubclass(type(part), ModuleType | type):
                yield from _modules(part)


# --- callbacks --------------------------------------------------------------------------------------------


def tune_callback(value: Any) -> Any:
    """Return a Ray Tune callback, also from its class. Raises: SettingsError for any other object."""
    kind = value if isinstance(value, type) else type(value)
    if any(base.__name__ == "Callback" and base.__module__.startswith("ray.tune") for base in kind.__mro__):
        return value() if isinstance(value, type) else value
    if hasattr(kind, "on_validation_end"):
        raise SettingsError(
            f"callbacks holds {kind.__name__}, a Lightning callback, and takes Ray Tune callbacks, which run "
            "on the driver. Lightning's go to the Trainer: pl.Trainer(callbacks=[...]) in the train "
            'function, or trainer_args={"callbacks": [...]} with model=.'
        )
    raise SettingsError(f"callbacks takes objects of ray.tune.Callback, and {value!r} is none.")


# --- What an object takes with it when it is pickled, and which part of it cannot be --------------


_MOST_PARTS = 1000


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object takes with it when it is pickled, each part with a label: "attribute 'lock'"."""
    if isinstance(value, FunctionType):
        yield from captured(value)
    elif isinstance(value, MethodType):
        yield from (("object", value.__self__), ("function", value.__func__))
    elif isinstance(value, functools.partial):
        yield "function", value.func
        yield from ((f"argument {index}", part) for index, part in enumerate(value.args))
        yield from ((f"argument {name!r}", part) for name, part in value.keywords.items())
    elif isinstance(value, Mapping):
        yield from ((f"item {key!r}", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"item {index}", part) for index, part in enumerate(value))
    else:
        attributes = dict(getattr(value, "__dict__", {}))
        yield from ((f"attribute {name!r}", part) for name, part in attributes.items())


def captured(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield a function's closure variables, the globals that its code names, and its default values."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        yield f"closure variable {name!r}", content
    for name in dict.fromkeys(operands(code, "LOAD_GLOBAL")):
        if name in function.__globals__:
            yield f"global variable {name!r}", function.__globals__[name]
    defaults = function.__defaults__ or ()
    first = code.co_argcount - len(defaults)
    named = dict(zip(code.co_varnames[first : code.co_argcount], defaults, strict=True))
    for name, default in {**named, **(function.__kwdefaults__ or {})}.items():
        yield f"default value of {name!r}", default


def operands(code: CodeType, operation: str) -> Iterator[str]:
    """Yield the names that one kind of instruction uses in some code and in the functions inside it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == operation:
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from operands(constant, operation)


def imports(code: CodeType) -> Iterator[str]:
    """Yield the modules that some code and the functions inside it import by absolute names."""
    level: Any = 0
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
            # Before an import come its level and the names that it takes of the module.
            level = instruction.argval if isinstance(instruction.argval, int) else level
        elif instruction.opname == "IMPORT_NAME":
            if not level:
                yield instruction.argval
            level = 0
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from imports(constant)


def find_unpicklable(value: Any, dumps: Callable[[Any], object]) -> tuple[list[str], Any, Exception | None]:
    """Find the innermost part that ``dumps`` fails on, in a value that it has failed on.

    Returns: the labels that lead to it, the part, and its error (None where that is the value itself). What was found
    after five seconds is returned.
    """
    end = time.monotonic() + 5
    labels: list[str] = []
    reason: Exception | None = None
    seen = {id(value): value}  # keeps the parts, so that no later object gets the id of one that was seen
    searching = True
    while searching:
        searching = False
        for label, part in itertools.islice(parts_of(value), _MOST_PARTS):
            if time.monotonic() > end:
                break
            if id(part) in seen:
                continue
            seen[id(part)] = part
            try:
                dumps(part)
            except Exception as error:  # noqa: BLE001 - an object may raise anything when it is pickled
                labels.append(label)
                value, reason, searching = part, error, True
                break
    return labels, value, reason

"""Models of a search space file: they check its outline, and give editors a JSON Schema.

A model's types are for the schema. What is right is decided where it is for Python too: a setting by
``settings.check_setting``, which each field calls, and domains by the reader of domains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, Union

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    create_model,
)

from tunelight.errors import SettingsError, SpaceError, TunelightError, unknown
from tunelight.settings import NAMES, SETTINGS, Settings, check_setting
from tunelight.settings.values import Setting
from tunelight.space.domains import ARGUMENTS, AROUND, MODIFIERS, OPTIONAL
from tunelight.space.files import YamlFile

# --- domains ----------------------------------------------------------------------------------------------

Scalar = bool | int | float | str | None
_HELP = {
    "choice": "One of the values.",
    "ordinal": "One of the values, which have an order.",
    "uniform": "A number between the bounds.",
    "quniform": "A number between the bounds, in steps of q.",
    "loguniform": "A number between the bounds, all orders of magnitude alike.",
    "qloguniform": "A number between the bounds, all orders of magnitude alike, in steps of q.",
    "randint": "A whole number; the upper bound is excluded.",
    "qrandint": "A whole number in steps of q; the upper bound is included.",
    "lograndint": "A whole number, all orders of magnitude alike; the upper bound is excluded.",
    "qlograndint": "A whole number in steps of q, all orders of magnitude alike; the upper bound is included.",
    "randn": "From a normal distribution.",
    "qrandn": "From a normal distribution, in steps of q.",
    "sample_from": "What a function returns for the configuration drawn so far: package.module:function.",
    "grid_search": "Every value in turn.",
    "grid": "Every value in turn.",
    "fixed": "This value.",
    "wandb_parameter": "A parameter of a W&B sweep, in its own words.",
}


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _arguments(name: str) -> Any:
    """Return the type of a domain's arguments: a list of them, or a mapping."""
    names = ARGUMENTS[name]
    if name == "fixed":
        return Any
    if name == "wandb_parameter":
        return dict[str, Any]
    values = Annotated[list[Any], Field(min_length=1)]
    if names == ("values",):
        named: Any = create_model(f"{name}_named", __base__=_Closed, values=(values, ...))
        return values | named
    number: Any = str if name == "sample_from" else int if "int" in name else float
    optional = OPTIONAL.get(name, 0)
    fields: dict[str, Any] = {
        argument: (number, ... if index < len(names) - optional else None) for index, argument in enumerate(names)
    }
    listed = Annotated[list[number], Field(min_length=len(names) - optional, max_length=len(names))]
    named = create_model(f"{name}_named", __base__=_Closed, **fields)
    return listed | named | number if len(names) - optional <= 1 else listed | named


def _domain(name: str) -> type[BaseModel]:
    """Return the model of a domain's description: its name with its arguments, ``when`` and ``around``."""
    fields: dict[str, Any] = {
        name: (_arguments(name), Field(description=_HELP[name])),
        "when": (
            dict[str, Any],
            Field(None, min_length=1, description="The key counts only where these others have one of these values."),
        ),
    }
    if name in AROUND:
        near: Any = Any if name == "ordinal" else int if "int" in name else float
        fields["around"] = (near, Field(None, description="A value that most draws are to be near."))
    return create_model(name, __base__=_Closed, **fields)


class Group(RootModel[dict[str, "Domain"]]):
    """Keys that stand nested: {model: {lr: ...}} is model.lr."""

    model_config = ConfigDict(
        json_schema_extra={"minProperties": 1, "propertyNames": {"not": {"enum": [*ARGUMENTS, *MODIFIERS]}}}
    )


Domain: TypeAlias = Union[Scalar, *(_domain(name) for name in ARGUMENTS), Group]  # type: ignore[valid-type]
Group.model_rebuild()

# --- settings ---------------------------------------------------------------------------------------------


class _RefusedError(ValueError):
    """Carries one of tunelight's errors through pydantic."""

    def __init__(self, error: TunelightError) -> None:
        super().__init__(str(error))
        self.error = error


def _checked(value: Any, _: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """Check a setting; the field's own type is for the schema only."""
    try:
        return check_setting(str(info.field_name), value)
    except TunelightError as error:
        raise _RefusedError(error) from error


def _raw(value: Any, _: ValidatorFunctionWrapHandler) -> Any:
    return value


def _field(setting: Setting) -> Any:
    default = list(setting.default) if isinstance(setting.default, tuple) else setting.default
    kind = Annotated[Any, WithJsonSchema(dict(setting.json)), WrapValidator(_checked)]
    return kind, Field(default, description=setting.help)


SpaceFile = create_model(
    "SpaceFile",
    __base__=_Closed,
    __doc__="A search space file of tunelight: what is searched, and how.",
    space=(
        Annotated[dict[str, Domain], Field(min_length=1), WrapValidator(_raw)],
        Field(description="A domain, or a fixed value, for each hyperparameter."),
    ),
    require=(
        Annotated[str | list[str], WrapValidator(_raw)],
        Field([], description="Constraints that every configuration meets: model.hidden * model.layers <= 4096."),
    ),
    **{name: _field(setting) for name, setting in SETTINGS.items()},
)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a search space file, for editors and other programs."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **SpaceFile.model_json_schema()}


def read_outline(file: YamlFile) -> dict[str, Any]:
    """Return a file's settings, checked, with ``space`` and ``require`` as they were written.

    Raises: SpaceError, SettingsError, ImportPathError, with the place of each mistake.
    """
    if not isinstance(file.data, Mapping):
        what = "nothing" if file.data is None else repr(file.data)
        raise SpaceError(f"{file.where(())}A search space file holds `space:` and settings; this one holds {what}.")
    try:
        read = SpaceFile.model_validate(dict(file.data))
    except ValidationError as error:
        mistakes = sorted(error.errors(), key=lambda one: one["type"] == "missing")  # a misspelt key says more
        found = [_told(file, one["type"], one["loc"], one.get("ctx", {}).get("error")) for one in mistakes]
        raise type(found[0])("\n".join(map(str, found))) from error
    given = {name: getattr(read, name) for name in file.data}
    settings = {name: value for name, value in given.items() if name in NAMES}
    try:
        Settings(**settings)
    except SettingsError as error:  # each is right by itself: it is the scheduler against max_epochs
        raise type(error)(f"{file.where(('scheduler',))}{error}") from error
    return given


def _told(file: YamlFile, kind: str, keys: tuple[int | str, ...], cause: Any) -> TunelightError:
    """Return tunelight's error for one of pydantic's."""
    name = str(keys[0]) if keys else ""
    where = file.where((name,))
    if isinstance(cause, _RefusedError):
        value = file.data[name]
        wrong = [key for key in value if f"{key!r}" in str(cause.error)] if isinstance(value, Mapping) else []
        return type(cause.error)(f"{file.where((name, *map(str, wrong[:1])))}{cause.error}")
    if kind == "missing":
        return SpaceError(f"{file.where(())}The file has no `{name}:`, which maps keys to domains.")
    value = file.data.get(keys[0], file.data.get(name))
    if isinstance(value, Mapping) and set(value) & set(ARGUMENTS):
        return SpaceError(f"{where}{name}: a domain must stand under `space:`, not beside it.")
    valid = ["space", "require", *NAMES]
    return SettingsError(f"{where}{unknown('there is no key', name, valid)}")

"""The JSON Schema of a search space's file, for editors: models of the domains, and what each setting may be.

What is right is decided by the checks of settings and the reader of domains; tests ask both of the same files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeAlias, Union, get_args

from pydantic import BaseModel, ConfigDict, Field, RootModel, WithJsonSchema, create_model

from tunelight.messages import Evaluation
from tunelight.settings import SETTINGS
from tunelight.settings.backends import BACKENDS
from tunelight.settings.code import Style
from tunelight.settings.values import MODES
from tunelight.space.kinds import KINDS, Kind

# --- domains ----------------------------------------------------------------------------------------------

Scalar = bool | int | float | str | None


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _arguments(kind: Kind) -> Any:
    """Return the type of a domain's arguments: a list of them, or a mapping."""
    if kind.name == "fixed":
        return Any
    if kind.name == "wandb_parameter":
        return dict[str, Any]
    values = Annotated[list[Any], Field(min_length=1)]
    if kind.arguments == ("values",):
        named: Any = create_model(f"{kind.name}_named", __base__=_Closed, values=(values, ...))
        return values | named
    number: Any = kind.number or str
    fields: dict[str, Any] = {name: (number, None if name in kind.defaults else ...) for name in kind.arguments}
    least = len(fields) - len(kind.defaults)
    listed = Annotated[list[number], Field(min_length=least, max_length=len(fields))]
    named = create_model(f"{kind.name}_named", __base__=_Closed, **fields)
    return listed | named | number if least <= 1 else listed | named


def _domain(kind: Kind) -> type[BaseModel]:
    """Return the model of a domain's description: its name with its arguments, and ``when``."""
    fields: dict[str, Any] = {
        kind.name: (_arguments(kind), Field(description=kind.about)),
        "when": (
            dict[str, Any],
            Field(None, min_length=1, description="The key counts only where these others have one of these values."),
        ),
    }
    return create_model(kind.name, __base__=_Closed, **fields)


class Group(RootModel[dict[str, "Domain"]]):
    """Keys that stand nested: {model: {lr: ...}} is model.lr."""

    model_config = ConfigDict(
        json_schema_extra={"minProperties": 1, "propertyNames": {"not": {"enum": [*KINDS, "when"]}}}
    )


Domain: TypeAlias = Union[Scalar, *map(_domain, KINDS.values()), Group]  # type: ignore[valid-type]
Group.model_rebuild()

# --- settings ---------------------------------------------------------------------------------------------

JsonType = Mapping[str, Any]


def _any_of(*types: JsonType) -> JsonType:
    return {"anyOf": list(types)}


def _array(items: JsonType, **more: Any) -> JsonType:
    return {"items": items, "type": "array", **more}


def _enum(values: Iterable[str]) -> JsonType:
    return {"enum": list(values), "type": "string"}


_NULL: JsonType = {"type": "null"}
_TEXT: JsonType = {"type": "string"}
_FLAG: JsonType = {"type": "boolean"}
_OBJECT: JsonType = {"additionalProperties": True, "type": "object"}
_NUMBER: JsonType = {"type": "number"}
_INTEGER: JsonType = {"type": "integer"}
_COUNT: JsonType = {"exclusiveMinimum": 0, "type": "integer"}
_POSITIVE: JsonType = {"exclusiveMinimum": 0, "type": "number"}
_NOT_NEGATIVE: JsonType = {"minimum": 0, "type": "number"}
_PATH: JsonType = {"pattern": r"^[\w.]+:[\w.]+$|^\w+(\.\w+)+$", "type": "string"}
_AGAIN: JsonType = {"minimum": 2, "type": "integer"}
_REPEATS: JsonType = {
    "additionalProperties": False,
    "oneOf": [{"required": ["repeats"]}, {"required": ["folds"]}],
    "properties": {"folds": _AGAIN, "repeats": _AGAIN, "top": _COUNT},
    "type": "object",
}
_SOURCES: JsonType = {
    "additionalProperties": _any_of(_TEXT, {"additionalProperties": _any_of(_TEXT, _array(_TEXT)), "type": "object"}),
    "type": "object",
}

_TYPES: Mapping[str, tuple[JsonType, ...]] = {
    "train": (_PATH,),
    "model": (_PATH,),
    "data": (_PATH,),
    "trainer_args": (_OBJECT,),
    "script": (_TEXT,),
    "args": (_array(_any_of(_TEXT, _NUMBER)),),
    "style": (_enum(get_args(Style)),),
    "datasets": (_SOURCES,),
    "data_cpus": (_NOT_NEGATIVE,),
    "cache": (_FLAG,),
    "metric": (
        _TEXT,
        _array(_TEXT),
    ),
    "mode": (
        _enum(MODES),
        _array(_enum(MODES)),
    ),
    "num_samples": (_COUNT,),
    "repeats": (
        _AGAIN,
        _REPEATS,
    ),
    "max_epochs": (_COUNT,),
    "scheduler": (
        _TEXT,
        _OBJECT,
        _NULL,
    ),
    "searcher": (
        _TEXT,
        _OBJECT,
    ),
    "workers": (
        _COUNT,
        _array(_COUNT, maxItems=2, minItems=2),
    ),
    "cpus_per_worker": (_POSITIVE,),
    "gpus_per_worker": ({"maximum": 1, "minimum": 0, "type": "number"},),
    "resources_per_trial": (_OBJECT,),
    "backend": (_enum(BACKENDS),),
    "reuse_gangs": (_FLAG,),
    "checkpoints": (
        _FLAG,
        _OBJECT,
        _NULL,
    ),
    "max_concurrent": (_COUNT,),
    "time_budget": (
        _POSITIVE,
        _TEXT,
    ),
    "storage": (_TEXT,),
    "name": (_TEXT,),
    "resume": (
        _FLAG,
        {"const": "force", "type": "string"},
    ),
    "seed": ({"minimum": 0, "type": "integer"},),
    "baselines": (_array(_OBJECT),),
    "warm_start": (
        _TEXT,
        _array(_TEXT),
    ),
    "callbacks": (_array(_PATH),),
    "failures": (
        _INTEGER,
        _OBJECT,
    ),
    "evaluation": (_enum(get_args(Evaluation)),),
    "address": (_TEXT,),
    "runtime_env": (_OBJECT,),
    "progress": (
        _FLAG,
        _array(_TEXT),
    ),
    "web": (_FLAG,),
    "verbose": ({"maximum": 2, "minimum": 0, "type": "integer"},),
}
"""What a YAML file may hold for each setting; null, too, where that is the default."""


def setting_type(name: str) -> JsonType:
    """Return the JSON Schema of a setting's value."""
    types = (*_TYPES[name], *((_NULL,) if SETTINGS[name].default is None else ()))
    return types[0] if len(types) == 1 else _any_of(*types)


def _field(name: str) -> Any:
    default = SETTINGS[name].default
    kind = Annotated[Any, WithJsonSchema(dict(setting_type(name)))]
    return kind, Field(list(default) if isinstance(default, tuple) else default, description=SETTINGS[name].help)


SpaceFile = create_model(
    "SpaceFile",
    __base__=_Closed,
    __doc__="A search space file of tunelight: what is searched, and how.",
    space=(
        Annotated[dict[str, Domain], Field(min_length=1)],
        Field(description="A domain, or a fixed value, for each hyperparameter."),
    ),
    require=(
        str | list[str],
        Field([], description="Constraints that every configuration meets: model.hidden * model.layers <= 4096."),
    ),
    **{name: _field(name) for name in SETTINGS},
)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a search space file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **SpaceFile.model_json_schema()}

"""Wide models in a sweep: what they are multiplied by, from a model's class, its arguments and its narrow ones."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch import nn

from tunelight.errors import SettingsError
from tunelight.extras.widths.callback import WiderModel
from tunelight.extras.widths.rules import Scales, derive, without_memory
from tunelight.settings.checks import holder_of

_PART: Final = "model."


@dataclass(frozen=True)
class Wider:
    """Makes the callback that lets a model train with hyperparameters that were found on a narrower one.

    Args:
        model: the class, or a function that makes a module.
        base: the narrow values by dotted key: {"model.width": 64}.
    """

    model: Callable[..., Any]
    base: Mapping[str, Any]

    def callbacks(self, arguments: Mapping[str, Any]) -> list[WiderModel]:
        """Return the callback for a model with these arguments; none for the narrow one itself."""
        scales = self.scales(arguments)
        return [WiderModel.of(scales)] if scales != Scales() else []

    def prepare(self, module: nn.Module, arguments: Mapping[str, Any]) -> None:
        """Let a trained module compute as it did in training: one whose output's weight is an embedding as well."""
        for callback in self.callbacks(arguments):
            callback.scale_inputs(module)

    def scales(self, arguments: Mapping[str, Any]) -> Scales:
        """Return by what the parameters are multiplied. Raises: SettingsError for a model that cannot be rescaled."""
        if not self._sizes(arguments):
            return Scales()
        return derive(self.builder(arguments), *self.width(arguments))

    def width(self, arguments: Mapping[str, Any]) -> tuple[int, int]:
        """Return the narrow and the full value of the key that differs most."""
        sizes = self._sizes(arguments)
        return max(sizes.values(), key=lambda pair: abs(math.log(pair[1] / pair[0])))

    def builder(self, arguments: Mapping[str, Any]) -> Callable[[int], nn.Module]:
        """Return what builds the model for a value of the key that differs most; other keys grow along with it."""
        sizes = self._sizes(arguments)
        base, wide = self.width(arguments)
        reach = math.log(wide / base)

        def build(width: int) -> nn.Module:
            share = math.log(width / base) / reach
            changed = {key: round(one * (other / one) ** share) for key, (one, other) in sizes.items()}
            module: nn.Module = self.model(**_changed(arguments, changed))
            return module

        return build

    def grows(self, arguments: Mapping[str, Any]) -> bool:
        """Tell whether the model has wider layers than its narrow one, and not only more of them.

        Raises: SettingsError for one with both.
        """
        if not self._sizes(arguments):
            return False
        narrow, full = (
            {name: tuple(one.shape) for name, one in self._shaped(arguments, values).named_parameters()}
            for values in (self._narrow, {})
        )
        wider = sorted(name for name in narrow.keys() & full.keys() if narrow[name] != full[name])
        if wider and (other := sorted(narrow.keys() ^ full.keys())):
            raise SettingsError(
                f"proxy= makes layers of {self._name} narrower ({wider[0]}) and changes which there are ({other[0]}). "
                "What is found with fewer layers need not hold for more. Give proxy= a key that changes the width "
                "alone."
            )
        return bool(wider)

    def _shaped(self, arguments: Mapping[str, Any], values: Mapping[str, Any]) -> nn.Module:
        """Return the model with some values changed, of which only the shapes count."""
        return without_memory(lambda: self.model(**_changed(arguments, values)))

    @property
    def _narrow(self) -> dict[str, Any]:
        return {key.removeprefix(_PART): value for key, value in self.base.items() if key.startswith(_PART)}

    @property
    def _name(self) -> str:
        return str(getattr(self.model, "__name__", "the model"))

    def _sizes(self, arguments: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
        """Return the narrow and the full value of each of the model's whole numbers that differ."""
        found = {}
        for key, narrow in self._narrow.items():
            full = self._full(arguments, key)
            if any(isinstance(one, bool) or not isinstance(one, int) or one < 1 for one in (narrow, full)):
                continue
            if narrow != full:
                found[key] = (narrow, full)
        return found

    def _full(self, arguments: Mapping[str, Any], key: str) -> Any:
        holder, last = holder_of(dict(arguments), key)
        if last in holder:
            return holder[last]
        default = inspect.signature(self.model).parameters.get(key)
        return None if default is None or default.default is default.empty else default.default


def _changed(arguments: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's arguments with other values, by dotted key."""
    changed = copy.deepcopy(dict(arguments))
    for key, value in values.items():
        holder, last = holder_of(changed, key)
        holder[last] = value
    return changed

"""Rules: by what the parameters of a wider model are multiplied so that it trains as its narrow one does.

They are those of the maximal update parametrisation (Yang et al., Tensor Programs V, arXiv 2203.03466, tables 3 and 8),
relative to a base width: a model of that width is left as it is. No multiplier stands in the forward pass, so that a
checkpoint is the user's own model, but where a weight is both an embedding and an output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch
from torch import nn

from tunelight.errors import SettingsError

Kind = Literal["adam", "sgd"]
"""How an optimizer's step depends on the size of gradients: not at all, or in proportion."""
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_QUERIES = frozenset(("query", "q_proj", "to_q", "q_lin", "wq", "q", "q_proj_weight"))
_JOINED = frozenset(("in_proj_weight", "in_proj_bias", "c_attn", "qkv", "to_qkv", "Wqkv", "in_proj", "qkv_proj"))
"""Names of layers that compute queries, keys and values at once, queries first."""
_HEAD_WIDTHS = ("head_dim", "attention_head_size", "head_size", "dim_head", "d_head", "d_k")
_HEADS = ("num_heads", "n_heads", "n_head", "num_attention_heads", "nhead", "heads")
_PARAMETRISED = ("parametrizations", "weight_g", "weight_orig")
_ENOUGH = 64
"""How many values of a parameter tell how large its initial values are."""
_MOST_SEEDS = 32


class Rows(NamedTuple):
    """A part of a parameter with factors of its own: from ``begin`` to ``end`` (exclusive) along ``dim``."""

    dim: int
    begin: int
    end: int
    initial: float
    adam: float
    sgd: float


@dataclass(frozen=True)
class Scale:
    """By what a parameter of the wider model is multiplied, relative to what the model itself does.

    Attributes:
        initial: its values before training.
        adam, sgd: its learning rate under an optimizer of that kind; its weight decay is divided by it, so that their
            product stays.
        rows: parts of it with further factors: the queries of an attention whose heads grow.
    """

    initial: float = 1.0
    adam: float = 1.0
    sgd: float = 1.0
    rows: tuple[Rows, ...] = ()


@dataclass(frozen=True)
class Scales:
    """What turns a model of some width into one that trains as its narrow one does.

    Attributes:
        parameters: by name; those that are left as they are have no entry.
        inputs: by the name of a layer, the factor of its input: a layer whose weight is an embedding as well.
        queries: by the name of a layer that computes the queries of heads that grow, the factor of what it gives out.
    """

    parameters: Mapping[str, Scale] = field(default_factory=dict)
    inputs: Mapping[str, float] = field(default_factory=dict)
    queries: Mapping[str, float] = field(default_factory=dict)


class _Place(NamedTuple):
    """Where a parameter stands: its name, the layer that holds it, the layer's name, and its name in the layer."""

    name: str
    layer: nn.Module
    path: str
    leaf: str


def derive(build: Callable[[int], nn.Module], base: int, wide: int) -> Scales:
    """Return the scales of the model of width ``wide`` for hyperparameters that were found at width ``base``.

    Args:
        build: makes the model of a width; it is called for ``base`` and up to four times that, a few times, and on the
            meta device, without memory for parameters, for ``wide``.

    Raises: SettingsError for a model that cannot be rescaled, with the name of the layer.
    """
    if base == wide:
        return Scales()
    narrow, between = _built(build, base), min(4 * base, wide)
    target = without_memory(lambda: build(wide))
    _check_alike(narrow, target, base, wide)
    powers = _powers(build, base, between)
    attentions = dict(_attentions(narrow, target))
    first = dict(narrow.named_parameters())
    parameters: dict[str, Scale] = {}
    inputs: dict[str, float] = {}
    for places, parameter in _places(target):
        name = places[0].name
        base_shape = first[name].shape
        grows = [dim for dim, size in enumerate(parameter.shape) if size != base_shape[dim]]
        contracted = [_contracted(place, parameter, grows) for place in places]
        fan_ins = [_ratio(base_shape, parameter.shape, dims) for dims in contracted]
        if len(set(fan_ins)) > 1:  # an embedding that is an output's weight too
            inputs |= {place.path: 1 / fan for place, fan in zip(places, fan_ins, strict=True) if fan != 1}
            contracted, fan_ins = [()], [1.0]
        others = [dim for dim in range(parameter.dim()) if dim not in contracted[0]]
        scale = _scale(fan_ins[0], _ratio(base_shape, parameter.shape, others))
        power = powers[name]
        scale = replace(scale, initial=1.0 if power is None else scale.initial / (wide / base) ** power)
        scale = _with_queries(scale, places[0], parameter, attentions)
        if scale != Scale():
            parameters[name] = scale
    queries = {
        f"{path}.{child}": factor
        for path, factor in attentions.items()
        for child, _ in target.get_submodule(path).named_children()
        if child in _QUERIES
    }
    return Scales(parameters, inputs, queries)


def kind_of(optimizer: torch.optim.Optimizer) -> Kind:
    """Return how an optimizer's step depends on gradients. Raises: SettingsError for one that is not known."""
    names = [one.__name__.lower() for one in type(optimizer).__mro__]
    other = any(word in name for name in names for word in ("muon", "lbfgs", "lamb", "lars"))
    if "sgd" in names[0] and not other:
        return "sgd"
    known = ("adam", "rmsprop", "adagrad", "lion", "adan", "prodigy")
    if any(word in name for name in names for word in known) and not other:
        return "adam"
    raise SettingsError(
        f"It is not known how the learning rate of {type(optimizer).__name__} changes with a model's width. Train with "
        "one of Adam's or SGD's kind, or leave proxy= out."
    )


def without_memory(make: Callable[[], nn.Module]) -> nn.Module:
    """Return a model without memory for its parameters, where it can be made so."""
    try:
        with torch.device("meta"):
            return make()
    except Exception:  # noqa: BLE001 - it reads its values, which are not there; what fails anyway fails again
        with torch.random.fork_rng(devices=[]):
            return make()


def _built(build: Callable[[int], nn.Module], width: int, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(width)


def _check_alike(narrow: nn.Module, wide: nn.Module, base: int, width: int) -> None:
    if different := sorted(dict(narrow.named_parameters()).keys() ^ dict(wide.named_parameters()).keys()):
        raise SettingsError(
            f"At width {width} the model has other parameters than at width {base}: {different[0]}. Only models whose "
            "layers grow, and stay as many, can be trained wide by proxy=."
        )


def _powers(build: Callable[[int], nn.Module], base: int, wider: int) -> dict[str, float | None]:
    """Return by which power of the width the model's own initial values grow, in halves; None: they are constants.

    The model is built with several seeds, so that the values of small parameters are enough to tell.
    """
    squares: list[dict[str, float]] = [{}, {}]
    constant: set[str] = set()
    seed, seeds = 0, 1
    while seed < seeds:
        for sums, width in zip(squares, (base, wider), strict=True):
            for name, parameter in _built(build, width, seed).named_parameters():
                values = parameter.detach().float()
                if bool((values == values.flatten()[0]).all()) and values.numel() > 1:
                    constant.add(name)
                elif seed == 0:
                    seeds = max(seeds, min(_MOST_SEEDS, -(-_ENOUGH // values.numel())))
                sums[name] = sums.get(name, 0.0) + float(values.square().mean())
        seed += 1
    return {
        name: None
        if name in constant or not first or not squares[1][name]
        else round(math.log(squares[1][name] / first, wider / base)) / 2
        for name, first in squares[0].items()
    }


def _places(model: nn.Module) -> Iterator[tuple[list[_Place], torch.Tensor]]:
    """Yield each parameter of a model, with all the places where it stands; the first gives it its name."""
    layers = dict(model.named_modules())
    found: dict[int, tuple[list[_Place], torch.Tensor]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        path, _, leaf = name.rpartition(".")
        if leaf in _PARAMETRISED or any(word in path.split(".") for word in _PARAMETRISED):
            raise SettingsError(
                f"{name}: the weight of this layer is computed from other parameters (weight or spectral norm), for "
                "which proxy= knows no rule. Build the layer without it."
            )
        found.setdefault(id(parameter), ([], parameter))[0].append(_Place(name, layers[path], path, leaf))
    yield from found.values()


def _contracted(place: _Place, parameter: torch.Tensor, grows: Sequence[int]) -> tuple[int, ...]:
    """Return the dimensions that a layer sums over, those of its inputs; ``grows``: those that follow the width."""
    layer, leaf = place.layer, place.leaf
    if parameter.dim() < 2:
        return ()
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return ()
    if isinstance(layer, _TRANSPOSED) or type(layer).__name__ == "Conv1D":  # the latter is transformers' linear layer
        return (0,)
    if isinstance(layer, nn.Bilinear):
        return (1, 2)
    if isinstance(layer, (nn.Linear, *_CONVOLUTIONS, *_RECURRENT)):
        return (1,)
    if isinstance(layer, nn.MultiheadAttention):
        return () if leaf in ("bias_k", "bias_v") else (1,)
    return tuple(grows[-1:]) if len(grows) > 1 else ()  # held raw: which of two that grow is summed over is the same


def _ratio(base: Sequence[int], wide: Sequence[int], dims: Sequence[int]) -> float:
    return math.prod(wide[dim] / base[dim] for dim in dims)


def _scale(fan_in: float, fan_out: float) -> Scale:
    """Return the factors of a parameter: of its initial values relative to the narrow model's, and of its rates."""
    if fan_in == 1:  # of inputs, a bias, a norm, an embedding
        return Scale(sgd=fan_out)
    return Scale(fan_in**-0.5 if fan_out != 1 else 1 / fan_in, 1 / fan_in, fan_out / fan_in)


# --- attention: its scale is 1/d in place of 1/sqrt(d), where the heads' width d grows; the queries take that -------


def _attentions(narrow: nn.Module, wide: nn.Module) -> Iterator[tuple[str, float]]:
    """Yield the name of each attention whose heads grow, with the factor of its queries."""
    wider = dict(wide.named_modules())
    for path, layer in narrow.named_modules():
        base, grown = _head_width(layer), _head_width(wider[path])
        if base and grown and grown != base:
            yield path, (base / grown) ** 0.5


def _head_width(layer: nn.Module) -> int | None:
    own = (*layer.named_children(), *layer.named_parameters(recurse=False))
    if not {name for name, _ in own} & (_QUERIES | _JOINED):
        return None
    for name in _HEAD_WIDTHS:
        if isinstance(found := getattr(layer, name, None), int):
            return found
    heads = next((found for name in _HEADS if isinstance(found := getattr(layer, name, None), int)), None)
    queries = next((one for name, one in own if name in _QUERIES and isinstance(one, nn.Linear)), None)
    return queries.out_features // heads if heads and queries is not None else None


def _with_queries(scale: Scale, place: _Place, parameter: torch.Tensor, attentions: Mapping[str, float]) -> Scale:
    """Return a parameter's scale with the factor of queries, where it computes them."""
    owner, name = place.path, place.leaf
    if name not in _QUERIES | _JOINED:  # the weight or bias of a layer that does
        owner, _, name = place.path.rpartition(".")
    factor = attentions.get(owner)
    if factor is None or name not in _QUERIES | _JOINED:
        return scale
    if name in _QUERIES:
        return Scale(scale.initial * factor, scale.adam * factor, scale.sgd * factor**2)
    dim = 1 if type(place.layer).__name__ == "Conv1D" and parameter.dim() == 2 else 0
    return replace(scale, rows=(Rows(dim, 0, parameter.shape[dim] // 3, factor, factor, factor**2),))

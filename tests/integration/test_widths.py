"""The coordinate check on the kinds of models that people have: handled, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.integration.compared_widths import Trained, batch
from tunelight.errors import SettingsError
from tunelight.extras.widths.check import MOST, CoordinateCheck, Layer, measure, refuse

CLASSES, INPUTS, WORDS, LENGTH = 10, 20, 50, 12


def drawn(*shape: int, words: int = 0, classes: tuple[int, ...] = (32,)) -> Any:
    made = torch.Generator().manual_seed(0)
    inputs = torch.randint(words, shape, generator=made) if words else torch.randn(shape, generator=made)
    return batch(inputs, torch.randint(CLASSES, classes, generator=made))


class Tied(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.head(torch.relu(self.hidden(self.words(inputs))))


class Raw(nn.Module):
    """Its output's weight is a parameter of no layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, width)
        self.out = nn.Parameter(torch.randn(width, CLASSES) * width**-0.5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.first(inputs)) @ self.out


class Token(nn.Module):
    """A parameter of no layer that stands where an embedding would."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, width)
        self.token = nn.Parameter(torch.zeros(1, width))
        self.out = nn.Linear(width, CLASSES)

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.out(torch.relu(self.first(inputs) + self.token))


class Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(INPUTS, width, batch_first=True)
        self.out = nn.Linear(width, CLASSES)

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.out(self.lstm(inputs)[0][:, -1])


def mlp(width: int, *between: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, width), *between, nn.ReLU(), nn.Linear(width, CLASSES)
    )


def own_init(width: int) -> nn.Module:
    made = mlp(width)
    for layer in made:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.1)
            nn.init.zeros_(layer.bias)
    return made


def grouped(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1, groups=width), nn.ReLU(), nn.Conv2d(width, width, 1, groups=4), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES),
    )  # fmt: skip


def bottleneck(width: int) -> nn.Module:
    """Return a network with a part of a size that does not follow the width."""
    return nn.Sequential(
        nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, width), nn.ReLU(),
        nn.Linear(width, CLASSES),
    )  # fmt: skip


def transformer(width: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(WORDS, width), encoder, nn.Linear(width, CLASSES))


VECTORS = drawn(32, INPUTS)
SENTENCES = drawn(16, LENGTH, words=WORDS, classes=(16, LENGTH))
MODELS: dict[str, tuple[Callable[[int], nn.Module], Any]] = {
    "tied embeddings": (Tied, SENTENCES),
    "an initialisation of its own": (own_init, VECTORS),
    "grouped convolutions": (grouped, drawn(16, 3, 8, 8, classes=(16,))),
    "a part of a fixed size": (bottleneck, VECTORS),
    "LayerNorm without affine": (lambda width: mlp(width, nn.LayerNorm(width, elementwise_affine=False)), VECTORS),
    "a raw parameter": (Token, VECTORS),
    "an LSTM": (Recurrent, drawn(32, LENGTH, INPUTS)),
    "a transformer with heads that grow": (transformer, SENTENCES),
}


def layers(
    build: Callable[[int], nn.Module], data: Any, optimizer: str = "Adam", *, scaled: bool = True
) -> list[Layer]:
    lr = 0.01 if optimizer == "Adam" else 0.1
    return measure(
        lambda width: Trained(build(width), lr, optimizer), data, 32, factors=(1, 2, 4), seeds=(0,), scaled=scaled
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_can_be_scaled_is_and_would_not_do_without(name: str) -> None:
    build, data = MODELS[name]
    refuse(layers(build, data))
    with pytest.raises(SettingsError, match="in a training step the wider the model is"):
        refuse(layers(build, data, scaled=False))


@pytest.mark.parametrize("name", ["LayerNorm without affine", "an LSTM"])
def test_sgd_too(name: str) -> None:
    build, data = MODELS[name]
    refuse(layers(build, data, "SGD"))


def deep(width: int) -> nn.Module:
    hidden = [part for _ in range(3) for part in (nn.Linear(width, width), nn.ReLU())]
    made = nn.Sequential(nn.Linear(INPUTS, width), nn.ReLU(), *hidden, nn.Linear(width, CLASSES))
    for layer in made:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return made


def test_first_outputs_that_are_larger_the_narrower_the_model_are_no_reason_to_refuse_it(monkeypatch: Any) -> None:
    def slow(width: int) -> Trained:
        return Trained(deep(width), 0.001, "SGD")

    refuse(measure(slow, VECTORS, 64))
    monkeypatch.setattr("tunelight.extras.widths.check._QUIET", 1.0)
    with pytest.raises(SettingsError, match="change less"):
        refuse(measure(slow, VECTORS, 64))


def test_where_one_learning_rate_is_too_large_for_any_width_others_decide(monkeypatch: Any) -> None:
    told: list[dict[str, float]] = []
    context = SimpleNamespace(report=told.append)
    monkeypatch.setattr("tunelight.session.session.get_context", lambda: context)

    def model(width: int, lr: float) -> Trained:
        return Trained(deep(width), lr, "SGD")

    for rates in ((30.0, 0.1, 0.01), (30.0, 30.0, 0.1)):
        config, *others = ({"model": {"width": 128, "lr": lr}} for lr in rates)
        CoordinateCheck(model, lambda: VECTORS, {"model.width": 32}, others)(config)
    assert [report["largest"] <= MOST for report in told] == [True, False]


def test_a_raw_weight_is_refused_with_the_layer_that_holds_it() -> None:
    with pytest.raises(SettingsError, match="The outputs of the layer 'net' change more"):
        refuse(layers(Raw, VECTORS))


def test_weight_norm_is_refused_by_its_parameter() -> None:
    def build(width: int) -> nn.Module:
        return nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(INPUTS, width)), nn.ReLU(), nn.Linear(width, CLASSES)
        )

    with pytest.raises(SettingsError, match=r"net\.0\.parametrizations\.weight\.original0.*weight or spectral norm"):
        layers(build, VECTORS)

"""Compares the multipliers of wide models with mup's, and checks models of transformers, where these are installed.

python -m tests.integration.compared_widths mup
python -m tests.integration.compared_widths transformers
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tunelight.compat.lightning import pl
from tunelight.errors import SettingsError
from tunelight.extras.widths.check import measure, refuse
from tunelight.extras.widths.rules import Scale, derive

BASE, WIDE = 32, 256
CLASSES = 10


class Trained(pl.LightningModule):
    """Any network, as a classifier of what it is given."""

    def __init__(self, net: nn.Module, lr: float, optimizer: str) -> None:
        super().__init__()
        self.net, self.lr, self.optimizer = net, lr, optimizer

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        return functional.cross_entropy(self.net(batch[0]).flatten(0, -2), batch[1].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = getattr(torch.optim, self.optimizer)(self.parameters(), lr=self.lr)
        return made


def batch(inputs: torch.Tensor, targets: torch.Tensor) -> Any:
    data = torch.utils.data.TensorDataset(inputs, targets)
    return torch.utils.data.DataLoader(data, batch_size=len(data))


def mlp(width: int, last: type[nn.Linear]) -> nn.Module:
    return nn.Sequential(
        nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2 * width), nn.ReLU(),
        last(2 * width, CLASSES),
    )  # fmt: skip


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.norm(self.first(x)))) + self.shortcut(x))


def resnet(width: int, last: type[nn.Linear]) -> nn.Module:
    blocks = [
        nn.Conv2d(3, width, 3),
        Block(width, width),
        Block(width, 2 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ]
    return nn.Sequential(*blocks, last(2 * width, CLASSES))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_heads = 4
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention, self.norm, self.norm2 = Attention(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)


def transformer(width: int, last: type[nn.Linear]) -> nn.Module:
    return nn.Sequential(nn.Embedding(50, width), Layer(width), Layer(width), last(width, 50))


def of_mup(build: Callable[..., nn.Module]) -> dict[str, Scale]:
    """Return mup's multipliers, with those that it has in the forward pass folded into the weights."""
    import mup

    torch.manual_seed(0)
    model = build(WIDE, mup.MuReadout)
    drawn = copy.deepcopy(dict(model.named_parameters()))
    mup.set_base_shapes(model, build(BASE, mup.MuReadout), delta=build(2 * BASE, mup.MuReadout))
    rates = []
    for make in (mup.MuAdam, mup.MuSGD):
        groups = make(model.parameters(), lr=1.0).param_groups
        rates.append({id(parameter): group["lr"] for group in groups for parameter in group["params"]})
    layers = dict(model.named_modules())
    found = {}
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        fold = 1.0
        if isinstance(layers[path], mup.MuReadout) and leaf == "weight":
            fold = BASE / WIDE  # its input is divided by the width
        elif path.endswith("attention.query"):
            fold = (BASE / WIDE) ** 0.5  # 1/d in place of 1/sqrt(d)
        initial = float(parameter.norm() / drawn[name].norm()) * fold
        adam, sgd = (by_id[id(parameter)] for by_id in rates)
        found[name] = Scale(initial, adam * fold, sgd * fold**2)
    return found


def compare_with_mup() -> dict[str, float]:
    """Return the largest difference of each model's multipliers, relative to mup's."""
    differences = {}
    for build in (mlp, resnet, transformer):
        own = derive(lambda width, build=build: build(width, nn.Linear), BASE, WIDE).parameters  # type: ignore[misc]
        worst = 0.0
        for name, theirs in of_mup(build).items():
            ours = own.get(name, Scale())
            pairs = [(getattr(ours, each), getattr(theirs, each)) for each in ("initial", "adam", "sgd")]
            worst = max(worst, *(abs(a / b - 1) for a, b in pairs))
        differences[build.__name__] = worst
    return differences


class OfTransformers(Trained):
    """A model of transformers, which returns its own loss."""

    def training_step(self, batch: Any, _: int) -> Any:
        return self.net(input_ids=batch[0], labels=batch[1]).loss


def check_transformers() -> dict[str, list[float]]:
    """Return the largest power of the layers of each model, scaled and plain."""
    import transformers  # type: ignore[import-not-found,unused-ignore]

    made = torch.Generator().manual_seed(0)
    words, classes = torch.randint(100, (8, 16), generator=made), torch.randint(2, (8,), generator=made)

    def bert(kind: Any, heads: int | None = None) -> Callable[[int], nn.Module]:
        def build(width: int) -> nn.Module:
            told = {"num_hidden_layers": 2, "intermediate_size": 4 * width, "max_position_embeddings": 32}
            off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
            model: nn.Module = kind(
                transformers.BertConfig(
                    vocab_size=100, hidden_size=width, num_attention_heads=heads or width // 16, **told, **off
                )
            )
            return model

        return build

    def gpt(width: int) -> nn.Module:
        off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        told = {"n_embd": width, "n_layer": 2, "n_head": width // 16, "n_positions": 32}
        model: nn.Module = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=100, **told, **off))
        return model

    models: dict[str, tuple[Callable[[int], nn.Module], torch.Tensor]] = {
        "BERT, a classifier": (bert(transformers.BertForSequenceClassification), classes),
        "BERT, heads that grow": (bert(transformers.BertForSequenceClassification, 2), classes),
        "BERT, tied": (bert(transformers.BertForMaskedLM), words),
        "GPT-2, tied": (gpt, words),
    }
    found = {}
    for name, (build, targets) in models.items():
        worst = []
        for scaled in (True, False):
            layers = measure(
                lambda width, build=build: OfTransformers(build(width), 1e-3, "Adam"),  # type: ignore[misc]
                batch(words, targets), 32, factors=(1, 2, 4), seeds=(0,), scaled=scaled,
            )  # fmt: skip
            worst.append(max((layer.power for layer in layers), key=abs))
            try:
                refuse(layers)
            except SettingsError:
                assert not scaled, name
            else:
                assert scaled, name
        found[name] = worst
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(compare_with_mup() if sys.argv[1] == "mup" else check_transformers()))

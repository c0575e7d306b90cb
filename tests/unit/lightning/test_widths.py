"""Rules of wide models: what parameters are multiplied by, and a step with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tunelight.compat.lightning import pl
from tunelight.errors import SettingsError
from tunelight.extras.widths.callback import WiderModel, plain
from tunelight.extras.widths.check import MOST, measure, refuse
from tunelight.extras.widths.rules import Kind, Rows, Scale, Scales, derive, kind_of


def near(value: float) -> Any:
    return pytest.approx(value)


class MLP(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(
            nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.LayerNorm(width), nn.Linear(width, 10)
        )


def test_adam_trains_hidden_layers_slower_sgd_what_stands_at_the_input_faster_and_the_output_begins_small():
    found = derive(MLP, 64, 512).parameters
    assert found == {
        "0.weight": Scale(sgd=8),
        "0.bias": Scale(sgd=8),
        "2.weight": Scale(1.0, 1 / 8),
        "2.bias": Scale(near(math.sqrt(8)), sgd=8),  # torch draws it by the layer's inputs
        "3.weight": Scale(sgd=8),
        "3.bias": Scale(sgd=8),
        "4.weight": Scale(near(math.sqrt(1 / 8)), 1 / 8, 1 / 8),
        "4.bias": Scale(near(math.sqrt(8))),
    }


def test_a_model_of_the_narrow_width_is_left_as_it_is():
    assert derive(MLP, 64, 64).parameters == {}


def test_a_fixed_initial_scale_is_brought_to_the_width():
    def build(width: int) -> nn.Module:
        layers = [nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 3)]
        for layer in layers:
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(*layers)

    found = derive(build, 32, 128).parameters
    assert found == {
        "0.weight": Scale(sgd=4),
        "0.bias": Scale(sgd=4),
        "1.weight": Scale(near(1 / 2), 1 / 4),
        "1.bias": Scale(sgd=4),
        "2.weight": Scale(near(1 / 4), 1 / 4, 1 / 4),
    }


def test_convolutions_recurrent_cells_embeddings_and_raw_parameters():
    class Mixed(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.conv = nn.Conv2d(width, 2 * width, 3, bias=False)
            self.depthwise = nn.Conv2d(width, width, 3, groups=width, bias=False)
            self.up = nn.ConvTranspose2d(width, 3, 2, bias=False)
            self.lstm = nn.LSTM(16, width, bias=False)
            self.words = nn.Embedding(100, width)
            self.square = nn.Parameter(torch.randn(width, width) * width**-0.5)
            self.token = nn.Parameter(torch.randn(1, 1, width))

    found = derive(Mixed, 16, 64).parameters
    rates = {name: scale.adam for name, scale in found.items() if scale.adam != 1}
    assert rates == {"conv.weight": 1 / 4, "up.weight": 1 / 4, "lstm.weight_hh_l0": 1 / 4, "square": 1 / 4}
    assert found["up.weight"].initial == near(1 / 2 if _fans_out(16) else 1 / 4)


def _fans_out(width: int) -> bool:
    """Tell whether torch draws a transposed convolution by its outputs, which are fixed here."""
    layer = nn.ConvTranspose2d(width, 3, 2)
    return float(layer.weight.detach().abs().max()) < 1 / math.sqrt(width * 4) * 1.5


def test_queries_of_heads_that_grow_carry_the_scale_of_attention():
    found = derive(lambda width: nn.MultiheadAttention(width, 4), 32, 128).parameters
    assert found["in_proj_weight"].rows == (Rows(0, 0, 128, 0.5, 0.5, 0.25),)
    more = derive(lambda width: nn.MultiheadAttention(width, width // 8), 32, 128).parameters
    assert more.get("in_proj_weight", Scale()).rows == ()


def test_a_layer_of_queries_may_change_less_where_heads_grow():
    class Attention(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.num_heads = 2
            self.query = nn.Linear(width, width)
            self.key = nn.Linear(width, width)

    def build(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(3, width), Attention(width))

    assert derive(build, 8, 32).queries == {"1.query": near(1 / 2)}


def test_an_embedding_that_is_the_output_too_has_its_input_scaled_there():
    class Tied(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.words = nn.Embedding(50, width)
            self.head = nn.Linear(width, 50, bias=False)
            self.head.weight = self.words.weight

    found = derive(Tied, 16, 64)
    assert found.inputs == {"head": 1 / 4}
    assert found.parameters == {"words.weight": Scale(sgd=4)}


def test_weight_norm_is_refused_with_its_layer():
    def build(width: int) -> nn.Module:
        return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(width, width)))

    with pytest.raises(SettingsError, match=r"0\.parametrizations\.weight\.original0.*weight or spectral norm"):
        derive(build, 8, 32)


def test_a_width_that_adds_layers_is_refused():
    def build(width: int) -> nn.Module:
        return nn.Sequential(*(nn.Linear(8, 8) for _ in range(width // 8)))

    with pytest.raises(SettingsError, match=r"At width 32 the model has other parameters than at width 8: 1\.bias"):
        derive(build, 8, 32)


@pytest.mark.parametrize(
    ("make", "kind"),
    [(torch.optim.AdamW, "adam"), (torch.optim.RMSprop, "adam"), (torch.optim.SGD, "sgd")],
)
def test_the_kind_of_an_optimizer_is_known_by_its_class(make: Callable[..., Any], kind: str):
    assert kind_of(make([nn.Parameter(torch.ones(1))], lr=0.1)) == kind


def test_an_optimizer_of_another_kind_is_refused():
    with pytest.raises(SettingsError, match="LBFGS changes with a model's width"):
        kind_of(torch.optim.LBFGS([nn.Parameter(torch.ones(1))]))


class Wide(pl.LightningModule):
    def __init__(self, optimizer: str, width: int = 64) -> None:
        super().__init__()
        self.optimizer = optimizer
        self.net = MLP(width)
        self.seen: list[list[float]] = []

    def training_step(self, batch: Any, _: int) -> Any:
        optimizer: Any = self.optimizers()
        self.seen.append([group["lr"] for group in optimizer.param_groups])
        return self.net(batch).square().mean()

    def configure_optimizers(self) -> Any:
        groups = [
            {"params": [self.net[0].weight, self.net[2].weight], "lr": 0.02},
            {"params": [p for n, p in self.net.named_parameters() if n not in ("0.weight", "2.weight")]},
        ]
        optimizer = getattr(torch.optim, self.optimizer)(groups, lr=0.01, weight_decay=0.1)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), "interval": "step"}]


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_a_fit_with_the_callback_equals_one_with_groups_written_by_hand(name: str):
    """The module's own groups and scheduler keep their ratios, and see none of the multipliers."""
    data: Any = [torch.randn(8, 20, generator=torch.Generator().manual_seed(n)) for n in range(4)]
    kind: Kind = "adam" if name == "AdamW" else "sgd"
    scales = derive(MLP, 16, 64)
    torch.manual_seed(1)
    model = Wide(name)
    expected = MLP(64)
    expected.load_state_dict(model.net.state_dict())
    named = {f"net.{key}": scale for key, scale in scales.parameters.items()}
    scaled = WiderModel(plain(Scales(named)))
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[scaled],
    )
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=None))

    groups = []
    with torch.no_grad():
        for key, parameter in expected.named_parameters():
            scale = scales.parameters.get(key, Scale())
            parameter.mul_(scale.initial)
            own, rate = 0.02 if key in ("0.weight", "2.weight") else 0.01, getattr(scale, kind)
            groups.append({"params": [parameter], "lr": own * rate, "weight_decay": 0.1 / rate})
    optimizer = getattr(torch.optim, name)(groups)
    for number, batch in enumerate(data):
        for group, first in zip(optimizer.param_groups, groups, strict=True):
            group["lr"] = first["lr"] if number == 0 else group["lr"]
        optimizer.zero_grad()
        expected(batch).square().mean().backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
    for key, parameter in model.net.named_parameters():
        torch.testing.assert_close(parameter, dict(expected.named_parameters())[key])
    assert model.seen == [[0.02 / 2**n, 0.01 / 2**n] for n in range(4)]


def test_a_second_fit_and_a_resumed_one_do_not_scale_again(tmp_path: Any):
    batches: Any = [torch.zeros(2, 20)]
    data = torch.utils.data.DataLoader(batches, batch_size=None)
    model = Wide("SGD")
    scaled = {"net.2.bias": {"initial": 3.0}}

    def fit(model: Wide, **given: Any) -> None:
        trainer = pl.Trainer(
            accelerator="cpu", max_epochs=1, logger=False, limit_train_batches=0, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, callbacks=[WiderModel(scaled)],
        )  # fmt: skip
        trainer.fit(model, data, **given)
        trainer.save_checkpoint(tmp_path / "last.ckpt")

    bias: Any = model.net[2].bias
    before = bias.detach().clone()
    fit(model)
    torch.testing.assert_close(model.net[2].bias, before * 3)
    fit(model)
    other = Wide("SGD")
    fit(other, ckpt_path=tmp_path / "last.ckpt")
    torch.testing.assert_close(other.net[2].bias, before * 3)


class Trained(pl.LightningModule):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class RawOutput(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(20, width)
        self.out = nn.Parameter(torch.randn(width, 10) * width**-0.5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.first(inputs)) @ self.out


@pytest.fixture
def one_batch() -> Any:
    made = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(32, 20, generator=made), torch.randint(0, 10, (32,), generator=made)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=32)


def test_with_scales_layers_change_alike_at_every_width_and_without_them_they_do_not(one_batch: Any):
    scaled, plain = (
        {layer.name: layer.power for layer in measure(lambda width: Trained(MLP(width)), one_batch, 32, scaled=on)}
        for on in (True, False)
    )
    assert scaled.keys() == plain.keys() >= {"net.0", "net.2", "net.4"}
    assert all(abs(power) < 0.3 for power in scaled.values()), scaled
    assert min(plain["net.2"], plain["net.4"]) > MOST


def test_a_layer_that_changes_more_the_wider_the_model_is_is_named(one_batch: Any):
    layers = measure(lambda width: Trained(RawOutput(width)), one_batch, 32, seeds=(0,))
    with pytest.raises(SettingsError, match="The outputs of the layer 'net' change more in a training step"):
        refuse(layers)

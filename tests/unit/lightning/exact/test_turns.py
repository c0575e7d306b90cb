"""Steps in turns, by Lightning's own loop in a gang of one: they learn and log what a step of the whole batch does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import tunelight as tl
from tests import flavours
from tests.kit import tasks
from tests.kit.training import QUIET
from tunelight.compat.lightning import Callback, pl
from tunelight.session import session

X = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)
ROWS = TensorDataset(X, Y)


class Model(pl.LightningModule):
    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = torch.nn.Linear(4, 1)
        self.lr = lr

    def loss(self, batch: Any) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Stream(IterableDataset[Any]):
    """Rows without a length, of which Lightning draws a batch ahead."""

    def __iter__(self) -> Iterator[Any]:
        return iter(ROWS)


class Fit:
    """Trains models, each on a rank of a gang of one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self, model: pl.LightningModule, data: Any, pieces: int = 1, *, wanted: int = 1, **given: Any
    ) -> tuple[pl.Trainer, session.Session]:
        one = tasks.session_of(self.folder, pieces=pieces, wanted=wanted)
        session.set_current(one)
        torch.manual_seed(0)
        trainer = pl.Trainer(strategy=tl.RayStrategy(**given.pop("ddp", {})), **{"max_epochs": 1, **QUIET, **given})
        trainer.fit(model, data)
        return trainer, one


@pytest.fixture
def fit(tmp_path: Path) -> Iterator[Fit]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield Fit(tmp_path)
    session.set_current(None)
    if dist.is_initialized():
        dist.destroy_process_group()


def weights(model: pl.LightningModule) -> list[float]:
    return torch.cat([one.detach().flatten() for one in model.parameters()]).tolist()


def same(fit: Fit, make: Callable[[], pl.LightningModule], data: Callable[[], Any], pieces: int, **given: Any) -> None:
    """Assert that training in pieces learns what training without them does."""
    whole, cut = make(), make()
    fit(whole, data(), **given)
    fit(cut, data(), pieces, **given)
    assert weights(cut) == pytest.approx(weights(whole), rel=1e-4, abs=1e-6)
    assert weights(cut) != pytest.approx(weights(make()), rel=1e-3)  # it has learned


@pytest.mark.parametrize("pieces", [2, 4, 16])
@pytest.mark.parametrize("batch", [8, 9])
def test_pieces_of_sized_data_make_up_each_batch(fit: Fit, pieces: int, batch: int) -> None:
    same(fit, Model, lambda: DataLoader(ROWS, batch), pieces, max_epochs=2)


@pytest.mark.parametrize(
    "given",
    [
        {"accumulate_grad_batches": 3},
        {"gradient_clip_val": 0.5},
        {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"},
        {"ddp": {"find_unused_parameters": True}},
        {"precision": "64-true"},
    ],
    ids=str,
)
def test_pieces_are_one_batch_to_the_trainer(fit: Fit, given: Any) -> None:
    same(fit, Model, lambda: DataLoader(ROWS, 8), 4, **given)


class Sharpness(torch.optim.SGD):
    """Asks for a step's gradients twice: at the weights, and a little uphill."""

    def step(self, closure: Any = None) -> Any:
        loss = closure()
        weights: list[torch.Tensor] = self.param_groups[0]["params"]
        grads = [one.grad for one in weights]
        uphill = [0.3 * grad / (1 + grad.norm()) for grad in grads if grad is not None]
        with torch.no_grad():
            torch._foreach_add_(weights, uphill)
        closure()
        with torch.no_grad():
            torch._foreach_sub_(weights, uphill)
        super().step()
        return loss


@pytest.mark.parametrize("wanted", [1, 2])
def test_an_optimizer_that_runs_a_step_twice_has_the_same_batch_twice(fit: Fit, wanted: int) -> None:
    class Twice(Model):
        def configure_optimizers(self) -> Any:
            return Sharpness(self.parameters(), lr=self.lr)

    same(fit, Twice, lambda: DataLoader(ROWS, 4), 2, wanted=wanted, max_epochs=2)


@pytest.mark.parametrize("scale", [2.0**10, 2.0**40])
def test_a_scaled_loss_is_scaled_back_once_a_step(fit: Fit, scale: float) -> None:
    """The larger scale overflows at first, whereupon a step is skipped, and the scale made smaller."""
    models, scales = [], []
    for pieces in (1, 4):
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        models.append(Model())
        plugin = flavours.module("plugins").MixedPrecision("16-mixed", "cpu", scaler)
        fit(models[-1], DataLoader(ROWS, 8), pieces, plugins=[plugin], max_epochs=6)
        scales.append(scaler.get_scale())
    assert scales[0] == scales[1]
    assert weights(models[1]) == pytest.approx(weights(models[0]), rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("pieces", [2, 4])
@pytest.mark.parametrize(
    "given", [{}, {"max_epochs": 3}, {"limit_train_batches": 2, "max_epochs": 2}, {"max_steps": 3}]
)
def test_pieces_of_a_stream_are_of_one_batch_though_the_next_one_is_drawn(fit: Fit, pieces: int, given: Any) -> None:
    same(fit, Model, lambda: DataLoader(Stream(), 8), pieces, **given)


class Seen(Model):
    """Notes the rows that it trains on, by step."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, list[int]] = defaultdict(list)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        index = [int((row == X).all(1).nonzero()) for row in batch[0]]
        self.rows[self.global_step] += index
        return self.loss(batch)


def test_turns_of_a_smaller_gang_read_a_stream_in_order(fit: Fit) -> None:
    """Two ranks were wanted: a step has two of the rank's own batches."""
    model = Seen()
    fit(model, DataLoader(Stream(), 4), wanted=2)
    assert dict(model.rows) == {step: list(range(8 * step, 8 * step + 8)) for step in range(4)}
    model = Seen()
    fit(model, DataLoader(Stream(), 8), 2, wanted=2)
    assert dict(model.rows) == {step: list(range(16 * step, 16 * step + 16)) for step in range(2)}


@pytest.mark.parametrize("mode", ["max_size", "max_size_cycle", "min_size"])
@pytest.mark.parametrize("stream", [False, True])
def test_several_loaders_of_different_lengths(fit: Fit, mode: str, stream: bool) -> None:
    combined = flavours.module("utilities.combined_loader").CombinedLoader

    class Two(Model):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            losses = [self.loss(one) for one in batch.values() if one is not None]
            return torch.stack(losses).mean()

    def data() -> Any:
        long: Any = DataLoader(Stream() if stream else ROWS, 8)
        return combined({"a": long, "b": DataLoader(TensorDataset(X[:16] * 2, Y[:16]), 8)}, mode)

    same(fit, Two, data, 2, max_epochs=2)


class Dense(Model):
    def loss(self, batch: Any) -> torch.Tensor:
        return super().loss((batch[0].to_dense() if batch[0].is_sparse else batch[0], batch[1]))


class Every:
    """Collates rows, each second batch to something else; the fit's first one decides whether it can be cut."""

    def __init__(self, other: Callable[[Any, Any], Any]) -> None:
        self.calls, self.other = 0, other

    def __call__(self, rows: list[Any]) -> Any:
        x, y = torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])
        self.calls += 1
        return (x, y) if self.calls % 2 else self.other(x, y)


@pytest.mark.filterwarnings("ignore:.*yielded None")
@pytest.mark.parametrize("other", [lambda x, y: (x.to_sparse(), y), lambda x, y: None], ids=["sparse", "none"])
def test_a_batch_that_cannot_be_cut_is_trained_whole_or_skipped_as_ever(fit: Fit, other: Any) -> None:
    same(fit, Dense, lambda: DataLoader(ROWS, 8, collate_fn=Every(other)), 2)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_train_without_pieces(fit: Fit) -> None:
    def collate(rows: list[Any]) -> Any:
        lengths = [2 + number % 3 for number in range(len(rows))]
        nested = torch.nested.nested_tensor([row[0][:n] for row, n in zip(rows, lengths, strict=True)])
        return nested, torch.stack([row[1] for row in rows])

    class Padded(Model):
        def loss(self, batch: Any) -> torch.Tensor:
            return super().loss((torch.nested.to_padded_tensor(batch[0], 0.0, (len(batch[1]), 4)), batch[1]))

    model = Padded()
    _, one = fit(model, DataLoader(ROWS, 8, collate_fn=collate))
    assert weights(model) != weights(Padded())
    assert not one.halvable


# --- what is logged -----------------------------------------------------------------------------------------


class Heard(Callback):
    """What callbacks see after each batch."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.values: list[list[float]] = []

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        self.values.append([float(trainer.callback_metrics.get(name, -1)) for name in self.names])


@pytest.mark.filterwarnings("ignore:It is recommended to use .self.log")
@pytest.mark.parametrize("pieces", [2, 4, 8])
@pytest.mark.parametrize("sync", [False, True])
def test_the_loss_of_a_step_is_the_whole_batch_s(fit: Fit, pieces: int, sync: bool) -> None:
    class Logs(Model):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=sync)
            return loss

    whole, cut = Heard("loss_step"), Heard("loss_step")
    first, _ = fit(Logs(lr=0.0), DataLoader(ROWS, 9), callbacks=[whole])
    second, _ = fit(Logs(lr=0.0), DataLoader(ROWS, 9), pieces, callbacks=[cut])
    assert cut.values == [pytest.approx(each, rel=1e-5) for each in whole.values]
    assert float(second.callback_metrics["loss_epoch"]) == pytest.approx(float(first.callback_metrics["loss_epoch"]))


@pytest.mark.filterwarnings("ignore:It is recommended to use .self.log")
@pytest.mark.parametrize("pieces", [2, 4])
def test_hooks_that_log_see_the_gradients_of_the_step_and_leave_the_epoch_s_mean(fit: Fit, pieces: int) -> None:
    class Logs(Model):
        called = 0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            self.log("loss", loss, on_step=False, on_epoch=True)
            return loss

        def on_before_backward(self, loss: torch.Tensor) -> None:
            self.log("before", loss, on_step=False, on_epoch=True)

        def on_after_backward(self) -> None:
            self.called += 1
            norm = torch.cat([one.grad.flatten() for one in self.parameters() if one.grad is not None]).norm()
            self.log("norm", norm, on_step=False, on_epoch=True)

    models = Logs(), Logs()
    first, _ = fit(models[0], DataLoader(ROWS, 8))
    second, _ = fit(models[1], DataLoader(ROWS, 8), pieces)
    for name in ("loss", "norm"):
        assert float(second.callback_metrics[name]) == pytest.approx(float(first.callback_metrics[name]), rel=1e-4)
    assert models[0].called == models[1].called == 4


def test_gradients_that_a_hook_changes_are_changed_once(fit: Fit) -> None:
    class Scaled(Model):
        def on_after_backward(self) -> None:
            for one in self.parameters():
                assert one.grad is not None
                one.grad.mul_(0.5)

    same(fit, Scaled, lambda: DataLoader(ROWS, 8), 4)


def test_a_sum_that_is_logged_now_and_then_counts_once_for_each_turn_that_logs_it(fit: Fit) -> None:
    class Sums(Model):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            self.log("start", torch.tensor(1.0), on_step=True, on_epoch=False, reduce_fx="sum")

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx % 3 == 0:
                self.log("samples", torch.tensor(float(len(batch[0]))), on_step=True, on_epoch=False, reduce_fx="sum")
            return self.loss(batch)

    heard = Heard("start", "samples")
    fit(Sums(), DataLoader(ROWS, 8), 2, callbacks=[heard])
    assert heard.values == [[1.0, 8.0]] * 4


# --- what smaller batches would help ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "halvable"),
    [
        ("training_step", True),
        ("on_after_backward", True),
        ("optimizer", False),
        ("on_train_epoch_end", False),
        ("data", False),
    ],
)
def test_only_where_the_batch_is_in_use_would_a_half_of_it_help(fit: Fit, where: str, halvable: bool) -> None:
    class Full(Model):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if where == "training_step" and batch_idx == 1:
                raise MemoryError
            return self.loss(batch)

        def on_after_backward(self) -> None:
            if where == "on_after_backward":
                raise MemoryError

        def on_train_epoch_end(self) -> None:
            if where == "on_train_epoch_end":
                raise MemoryError

        def configure_optimizers(self) -> Any:
            return Adam(self.parameters()) if where == "optimizer" else super().configure_optimizers()

    class Adam(torch.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            closure()
            raise MemoryError

    def rows() -> Iterable[Any]:
        yield from DataLoader(ROWS, 8)
        if where == "data":
            raise MemoryError

    class Broken(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(rows())

    with pytest.raises(MemoryError):
        fit(Full(), DataLoader(Broken(), None))
    one = session.current()
    assert one is not None
    assert one.halvable is halvable


def test_torch_s_static_graph_takes_no_turns(fit: Fit) -> None:
    class Full(Model):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise MemoryError

    with pytest.raises(MemoryError):
        fit(Full(), DataLoader(ROWS, 8), ddp={"static_graph": True})
    one = session.current()
    assert one is not None
    assert not one.halvable


def test_a_piece_without_a_loss_is_left_out_in_a_gang_of_one(fit: Fit) -> None:
    class Skips(Model):
        calls = 0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.calls += 1
            return None if self.calls % 2 == 0 else self.loss(batch)

    model = Skips()
    fit(model, DataLoader(ROWS, 8), 2)
    assert model.calls == 8
    assert weights(model) != weights(Skips())

"""Batches cut into pieces: what can be cut, what each piece holds, and how much of the batch it is."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import InitVar, dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence

from tunelight.lightning.strategies.training import UncutError, can_be_cut, cut, cut_or_whole, rows_of

Pair = namedtuple("Pair", "x y")  # what data sets return


@dataclass
class Sample:
    x: torch.Tensor
    name: str


@given(st.integers(1, 40), st.integers(1, 16), st.integers(1, 3))
def test_pieces_make_up_the_batch_and_their_shares_add_up(rows: int, pieces: int, least: int) -> None:
    batch = torch.arange(rows)
    cuts, shares = cut(batch, pieces, least)
    assert len(cuts) == len(shares) == pieces
    assert torch.cat([one for one, share in zip(cuts, shares, strict=True) if share]).tolist() == batch.tolist()
    assert sum(shares) == pytest.approx(1)
    assert all(len(one) >= min(least, rows) for one in cuts)
    assert all(share in (0, len(one) / rows) for one, share in zip(cuts, shares, strict=True))


@given(st.integers(1, 64), st.integers(1, 2))
def test_a_batch_is_halved_a_limited_number_of_times(rows: int, least: int) -> None:
    pieces = 1
    while can_be_cut(torch.zeros(rows), pieces, least):
        pieces *= 2
    assert pieces <= 2 * rows


def test_every_kind_of_container_is_cut() -> None:
    x = torch.arange(8).reshape(4, 2)
    batch: dict[str, Any] = {
        "x": x,
        "pair": Pair(x, np.arange(4)),
        "list": [x, (x, None)],
        "texts": ["a", "b", "c", "d"],
        "ordered": OrderedDict(y=x),
        "made": Sample(x, "all"),
        "scale": torch.tensor(2.0),
        "number": 3,
    }
    assert rows_of(batch) == 4
    (first, second), shares = cut(batch, 2)
    assert shares == [0.5, 0.5]
    for piece, half in ((first, x[:2]), (second, x[2:])):
        found = [piece["x"], piece["pair"].x, piece["list"][0], piece["list"][1][0], piece["ordered"]["y"]]
        assert all(torch.equal(one, half) for one in [*found, piece["made"].x])
        assert isinstance(piece["pair"], Pair)
        assert isinstance(piece["ordered"], OrderedDict)
        assert (piece["made"].name, piece["number"], float(piece["scale"])) == ("all", 3, 2.0)
    assert (first["texts"], second["texts"], second["pair"].y.tolist()) == (["a", "b"], ["c", "d"], [2, 3])


@pytest.mark.parametrize(
    "batch",
    [
        (torch.zeros(4, 2), torch.zeros(3)),
        {"text": "a"},
        torch.tensor(1.0),
        [torch.zeros(4), object()],
        pack_sequence([torch.zeros(2), torch.zeros(1)]),
    ],
    ids=["lengths", "no tensor", "scalar", "object", "packed"],
)
def test_what_has_no_samples_that_can_be_told_apart_is_not_cut(batch: Any) -> None:
    assert not can_be_cut(batch)
    with pytest.raises(UncutError, match="the batch h"):
        cut(batch, 2)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_cannot_be_made_of_a_part_is_not_cut_either() -> None:
    @dataclass
    class Given:
        x: torch.Tensor
        start: InitVar[int]

    for batch in (
        Given(torch.zeros(4), 1),
        torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
        torch.eye(4).to_sparse(),
    ):
        assert not can_be_cut(batch)
        assert cut_or_whole(batch, 3)[1] == [1.0, 0.0, 0.0]
    assert not can_be_cut(torch.zeros(0, 3))
    assert cut_or_whole(torch.zeros(0, 3), 2)[1] == [1.0, 0.0]


def test_mappings_keep_what_they_have_beside_their_items() -> None:
    """default_collate keeps a defaultdict."""
    batch: Any = defaultdict(list, x=torch.arange(4))
    first, second = cut(batch, 2)[0]
    assert (first["x"].tolist(), second["x"].tolist(), first["y"]) == ([0, 1], [2, 3], [])
    assert batch["x"].tolist() == [0, 1, 2, 3]

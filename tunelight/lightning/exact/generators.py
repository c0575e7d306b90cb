"""The random generators of training code: Python's, NumPy's and torch's, as they are now and as they were."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

State = dict[str, Any]
"""What the generators hold, by name, in what ``torch.load(weights_only=True)`` reads."""


def capture(device: torch.device | None = None) -> State:
    """Return the state of this process's generators, and of ``device``'s if that is a GPU."""
    version, numbers, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002 - the global one is what code uses
    state: State = {
        "torch": torch.get_rng_state(),
        "numpy": (torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, cached),
        "python": (version, torch.tensor(numbers), gauss),
    }
    if device is not None and device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore(state: State, device: torch.device | None = None) -> None:
    """Put this process's generators, and ``device``'s, where they were."""
    torch.set_rng_state(state["torch"].cpu())
    keys, *rest = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002 - as above
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    if device is not None and device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)


def same(one: Any, other: Any) -> bool:
    """Tell whether two states, or parts of them, are equal."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, tuple | list):
        return all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


class Generators:
    """The generators of every part that this worker plays; the process's own are the first part's.

    A part's numbers are drawn inside ``play``. What is drawn outside (a loader's seed, say) every rank of a full gang
    draws for itself: parts whose generators stood where the first part's stood go on with it.
    """

    def __init__(self) -> None:
        self._device: torch.device | None = None
        self._others: dict[int, State] = {}
        self._seen: State | None = None
        self.parts: list[int] = [0]

    def begin(self, parts: Sequence[int], device: torch.device) -> None:
        """Give the parts the generators of this process and ``device``, as all ranks of a gang are seeded alike."""
        self.parts, self._device = list(parts), device
        now = capture(self._device)
        self._others = dict.fromkeys(self.parts[1:], now)
        self._seen = now

    def states(self) -> dict[int, State]:
        """Return the state of every part's generators."""
        now = self._follow()
        return {self.parts[0]: now, **self._others}

    def put(self, states: dict[int, State]) -> None:
        """Set the generators of every part; ``states`` may be those of other parts, which are then shared out."""
        numbers = sorted(states)
        mine = {part: states[numbers[part % len(numbers)]] for part in self.parts}
        restore(mine[self.parts[0]], self._device)
        self._seen = mine.pop(self.parts[0])
        self._others = mine

    def _follow(self) -> State:
        now = capture(self._device)
        before = self._seen or now
        for name, value in now.items():
            if same(value, before[name]):
                continue
            for part, state in self._others.items():
                if same(state[name], before[name]):
                    self._others[part] = {**state, name: value}
        self._seen = now
        return now

    @contextlib.contextmanager
    def play(self, part: int, keep: bool = True) -> Iterator[None]:
        """Let a part's generators be the process's inside; ``keep`` what was drawn from them."""
        if len(self.parts) == 1 and keep:
            yield  # there is nobody else's to keep apart
            return
        first = self._follow()
        if part != self.parts[0]:
            restore(self._others[part], self._device)
        try:
            yield
        finally:
            drawn = capture(self._device)
            if part == self.parts[0] and keep:
                self._seen = drawn
            else:
                if keep:
                    self._others[part] = drawn
                restore(first, self._device)
                self._seen = first

"""Random generators of training code: saves and restores the states of Python's, NumPy's and torch's."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

State = dict[str, Any]
"""States of the generators by name, of types that ``torch.load(weights_only=True)`` reads."""


def capture(device: torch.device | None = None) -> State:
    """Return the state of this process's generators, and of ``device``'s if that is a GPU."""
    version, numbers, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002 - training code uses the global one
    state: State = {
        "torch": torch.get_rng_state(),
        "numpy": (torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, cached),
        "python": (version, torch.tensor(numbers), gauss),
    }
    if device is not None and device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore(state: State, device: torch.device | None = None) -> None:
    """Restore the state of this process's generators, and of ``device``'s."""
    torch.set_rng_state(state["torch"].cpu())
    keys, *rest = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002 - as above
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    if device is not None and device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)


def same(state: Any, other: Any) -> bool:
    """Return whether two states, or parts of them, are equal."""
    if isinstance(state, torch.Tensor):
        return torch.equal(state, other)
    if isinstance(state, dict):
        return state.keys() == other.keys() and all(same(value, other[name]) for name, value in state.items())
    if isinstance(state, tuple | list):
        return all(same(a, b) for a, b in zip(state, other, strict=True))
    return bool(state == other)


def seed(*numbers: int, device: torch.device | None = None) -> None:
    """Seed this process's generators, and ``device``'s if that is a GPU."""
    seeds = np.random.SeedSequence(numbers).generate_state(3)
    random.seed(int(seeds[0]))
    np.random.seed(seeds[1])  # noqa: NPY002 - as above
    torch.default_generator.manual_seed(int(seeds[2]))
    if device is not None and device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(int(seeds[2]))


@contextlib.contextmanager
def seeded(*numbers: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed this process's generators, and ``device``'s if that is a GPU, in the block; restore them after it."""
    before = capture(device)
    seed(*numbers, device=device)
    try:
        yield
    finally:
        restore(before, device)


def draw_alike(sampler: Any) -> None:
    """Let the sampler in a DistributedSamplerWrapper draw one order on all ranks, of which each takes its share."""
    reset = sampler.dataset.reset
    if "reset" in vars(sampler.dataset):
        return  # it does so already

    def reset_alike() -> None:
        with seeded(sampler.seed, sampler.epoch):
            reset()

    sampler.dataset.reset = reset_alike


class Generators:
    """The generators of every part that this worker trains on; the process's own are the first part's.

    A part's numbers are drawn inside ``play``. Numbers drawn outside (such as a loader's seed) are drawn by every rank
    of a full gang for itself: generators of parts in the same state as the first part's advance with it.
    """

    def __init__(self) -> None:
        self._device: torch.device | None = None
        self._others: dict[int, State] = {}
        self._seen: State | None = None
        self.parts: list[int] = [0]
        self._common: int | None = None
        """A number that all ranks have drawn before they were set apart."""

    def begin(self, parts: Sequence[int], device: torch.device, *, apart: bool = False) -> None:
        """Begin with the generators of this process and ``device``, which are the same on all ranks of a gang.

        With ``apart`` each part but the first of the gang gets others, which follow from these and the part's number.
        """
        self.parts, self._device = list(parts), device
        now = capture(device)
        drawn = int(torch.randint(2**62, ()).item())
        if apart and self._common is None:
            self._common = drawn
        states = dict.fromkeys(self.parts, now)
        for part in self.parts if apart else ():
            if part:
                with seeded(drawn, part, device=device):
                    states[part] = capture(device)
        self._seen = states.pop(self.parts[0])
        self._others = states
        restore(self._seen, device)

    def end(self) -> None:
        """Let all ranks draw the same numbers again where `begin` has set them apart, as for the next fold's data."""
        if self._common is not None:
            seed(self._common, 0, device=self._device)
            self._common = None

    def states(self) -> dict[int, State]:
        """Return the state of every part's generators."""
        now = self._follow()
        return {self.parts[0]: now, **self._others}

    def put(self, states: dict[int, State]) -> None:
        """Set the generators of every part; ``states`` of other parts are divided among them."""
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
        """Use a part's generators as the process's in the block; without ``keep``, restore them afterwards."""
        if len(self.parts) == 1 and keep:
            yield  # there are no other generators to keep apart
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

"""The head's side of a gang: start N workers on their bundles, run one trial after another on them.

The one run protocol: ``start(task)``, then ``next_event()`` until every rank has ended; ``answer(decision)``
in between; ``finish()`` to bring a running trial to its end within a limit; ``heal()`` to meet anew after a
failure. Whatever waits here has a limit. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tunelight.errors import GangError
from tunelight.gang.placement import arrange, layout
from tunelight.gang.rendezvous import JOIN_LIMIT_S, Meeting
from tunelight.gang.worker import CONCURRENCY, GangWorker, Location
from tunelight.messages import Decision, Ended, Event, Report, Saved, Stop, Task, WorkerError

START_LIMIT_S = 600.0
"""How long the workers' processes and imports may take (a cold network file system is slow)."""
STOP_LIMIT_S = 30.0
"""How long a trial may take from a stop to its end: its next report may be an epoch away."""
FAIL_LIMIT_S = 4.0
"""How long the other ranks may take to end once one has failed; then they are killed."""
SILENCE_LIMIT_S = 300.0
"""How long a worker may leave a poll unanswered; a healthy one answers within 20 s, news or not."""
_POLL_S = 20.0
_CALL_LIMIT_S = 30.0


@dataclass(frozen=True)
class GangSpec:
    """What a gang is made of: its workers and what each holds.

    ``first_bundle`` is the index of worker 0's bundle (1 where the head has one of its own);
    ``backend`` is ``ddp``, ``sharded`` or ``horovod``.
    """

    workers: int
    cpus_per_worker: float = 1
    gpus_per_worker: float = 0
    resources_per_worker: dict[str, float] = field(default_factory=dict)
    runtime_env: dict[str, Any] | None = None
    backend: str = "ddp"
    first_bundle: int = 0
    workers_per_bundle: int = 1
    init_hook: bytes | None = None
    """Pickled; called without arguments on every worker before the gang first meets."""
    process_group: str | None = None
    """torch's backend, where it is not to be chosen by what workers hold."""
    timeout_s: float | None = None
    """How long a collective may take (None: torch's default, 30 minutes)."""
    environ: dict[str, str] = field(default_factory=dict)
    """Variables that every worker gets before it imports anything."""
    cwd: str = "."
    sys_path: tuple[str, ...] = ()

    @property
    def collectives(self) -> str:
        """How ranks reach one another: Horovod; or nccl where each rank has a GPU of its own, else gloo."""
        if self.backend == "horovod":
            return "horovod"
        if self.process_group is not None:
            return self.process_group
        return "nccl" if self.gpus_per_worker >= 1 else "gloo"


class Gang:
    """N workers that train as one. Runs on: trial (the head's process).

    Use it as a context manager, or call ``close``: workers also end with the process that started them.
    """

    def __init__(self, spec: GangSpec, group: PlacementGroup | None) -> None:
        self.spec = spec
        self.trials = 0
        """Trials started on this gang; from the second on it is warm."""
        self.unfit: str | None = None
        """Why no other trial may run here, once that is so."""
        self.late: list[Event] = []
        """What came while the last failed trial was brought to its end."""
        self._group = group
        self._workers: list[Any] = []
        self._locations: list[Location] = []
        self._polls: dict[Any, int] = {}
        self._buffer: deque[Event] = deque()
        self._asked: dict[int, float] = {}
        self._ended: dict[int, Ended] = {}
        self._met = False

    # -- life

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def form(cls, spec: GangSpec, group: PlacementGroup | None) -> Gang:
        """Start the workers, each on its own bundle, and let them meet. A partial start is undone.

        Raises: GangError when a worker does not start, or they do not meet, in time.
        """
        gang = cls(spec, group)
        try:
            gang._start_workers()
            gang._meet()
        except BaseException:
            gang.close()
            raise
        return gang

    def _start_workers(self) -> None:
        spec = self.spec
        actor = ray.remote(GangWorker)
        started: list[Any] = []
        for index in range(spec.workers):
            options: dict[str, Any] = {
                "num_cpus": spec.cpus_per_worker,
                "num_gpus": spec.gpus_per_worker,
                "resources": spec.resources_per_worker or None,
                "max_concurrency": CONCURRENCY,
                "max_restarts": 0,
                "runtime_env": spec.runtime_env,
            }
            if self._group is not None:
                options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=spec.first_bundle + index // spec.workers_per_bundle
                )
            started.append(actor.options(**options).remote(spec.sys_path, spec.cwd, spec.environ))
        self._workers = started
        locations = self._gather(
            [worker.locate.remote() for worker in started], START_LIMIT_S, "its workers to start and import"
        )
        head = ray.get_runtime_context().get_node_id()
        order = arrange(locations, head)
        self._workers = [started[index] for index, _ in order]
        self._locations = [locations[index] for index, _ in order]
        self._places = [place for _, place in order]
        if spec.init_hook is not None:
            self._gather(
                [worker.prepare.remote(spec.init_hook) for worker in self._workers], START_LIMIT_S, "its init_hook"
            )

    def _meet(self) -> None:
        interface, nodes = self._places[0].interface, layout(self._places)
        ((port, group_port),) = self._gather(
            [self._workers[0].host.remote(interface, self.spec.collectives, nodes)],
            _CALL_LIMIT_S,
            f"rank 0 to listen on {interface}",
        )
        meeting = Meeting(interface, port, self.spec.collectives, nodes, group_port, self.spec.timeout_s)
        self._gather(
            [worker.join.remote(meeting, place) for worker, place in zip(self._workers, self._places, strict=True)],
            JOIN_LIMIT_S,
            "its ranks to meet",
        )
        self._met = True

    def heal(self) -> None:
        """Make the gang fit for another trial: meet anew if the last one failed. It must have ended.

        Raises: GangError when it cannot be healed; close it then and form another.
        """
        if self.unfit is not None:
            raise GangError(f"The gang cannot be used again: {self.unfit}.")
        if not self._met:
            left = self._gather([w.leave.remote() for w in self._workers], _CALL_LIMIT_S, "its ranks to leave")
            if any(left):
                self.unfit = f"rank {[bool(one) for one in left].index(True)} left {'; '.join(sum(left, ()))}"
                raise GangError(f"The gang cannot be used again: {self.unfit}.")
            self._meet()

    def check_alive(self, limit_s: float) -> None:
        """Ask every worker for a sign of life. Raises: GangError."""
        self._gather([worker.locate.remote() for worker in self._workers], limit_s, "a sign of life")

    def close(self) -> None:
        """End the workers. Safe to call more than once, and on a gang that never got up."""
        for worker in self._workers:
            with contextlib.suppress(Exception):  # it may be dead, or Ray may be gone
                ray.kill(worker)
        self._workers = []
        self._polls = {}
        self._buffer.clear()
        self.unfit = self.unfit or "it was closed"

    # -- one trial

    @property
    def running(self) -> bool:
        """True while a trial has not ended on every rank, or has left events to read."""
        return bool(self._buffer) or (self.trials > 0 and len(self._ended) < len(self._workers))

    @property
    def locations(self) -> list[Location]:
        """Where the ranks run, in rank order."""
        return list(self._locations)

    def start(self, task: Task) -> None:
        """Start a trial on every rank."""
        self.trials += 1
        self._buffer.clear()
        self._ended = {}
        task = replace(task, serial=self.trials, backend=self.spec.backend)
        for worker in self._workers:
            worker.start.remote(task)  # a worker that died shows in its poll
        self._polls = {}
        for rank in range(len(self._workers)):
            self._ask(rank)

    def answer(self, decision: Decision) -> None:
        """Send a decision to rank 0, which passes it on at the boundary it is for."""
        if self._workers:
            self._workers[0].answer.remote(self.trials, decision)

    def next_event(self, timeout_s: float | None = None) -> Event | None:
        """Return the next event of the running trial; None when none came within ``timeout_s``.

        A worker that died gives an ``Ended`` with its error.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._buffer:
            left = _POLL_S if deadline is None else deadline - time.monotonic()
            if left <= 0 or not self._polls:
                return None
            ready, _ = ray.wait(list(self._polls), num_returns=1, timeout=min(left, _POLL_S))
            if not ready:
                self._drop_silent()
            for poll in ready:
                self._take(self._polls.pop(poll), poll)
        return self._buffer.popleft()

    def _drop_silent(self) -> None:
        """Give up a rank that has not even answered that it has no news: its process is stopped, or stuck."""
        for poll, rank in list(self._polls.items()):
            if time.monotonic() - self._asked[rank] > SILENCE_LIMIT_S:
                del self._polls[poll]
                self._buffer.append(self._give_up(rank, f"has answered nothing for {SILENCE_LIMIT_S:.0f} s"))

    def _ask(self, rank: int) -> None:
        self._asked[rank] = time.monotonic()
        self._polls[self._workers[rank].poll.remote(self.trials, _POLL_S)] = rank

    def _take(self, rank: int, poll: Any) -> None:
        try:
            events: Sequence[Event] = ray.get(poll)
        except RayError as error:
            self.unfit = f"rank {rank} died"
            events = [Ended(rank, error=self._death(rank, error))]
        for event in events:
            self._buffer.append(event)
            if isinstance(event, Ended):
                self._note_end(event)
        if rank not in self._ended:
            self._ask(rank)

    def _note_end(self, ended: Ended) -> None:
        self._ended[ended.rank] = ended
        if ended.error is not None:
            self._met = False
        if ended.left_behind and self.unfit is None:
            self.unfit = f"rank {ended.rank} left {'; '.join(ended.left_behind)}"

    def _give_up(self, rank: int, reason: str) -> Ended:
        """Kill a rank that does not answer or end; whatever it holds is free at once."""
        message = f"rank {rank} {reason}"
        self.unfit = self.unfit or message
        ray.kill(self._workers[rank])
        node = self._locations[rank].hostname
        ended = Ended(rank, error=WorkerError(rank, node, "GangError", message, "", cause="unresponsive"))
        self._note_end(ended)
        return ended

    def _death(self, rank: int, error: Exception) -> WorkerError:
        node = self._locations[rank].hostname
        died = "the worker's process died" if isinstance(error, RayActorError) else "the worker failed"
        detail = str(error).strip().splitlines()
        return WorkerError(
            rank,
            node,
            type(error).__name__,
            f"{died}: {detail[0] if detail else ''}",
            str(error),
            cause="died",
        )

    def save(self) -> Saved:
        """Have the waiting (or next) report write a checkpoint; return it, or an empty one if it ended.

        Reports that come meanwhile stay in order for ``next_event``.
        """
        from tunelight.messages import Save  # noqa: PLC0415

        self.answer(Save())
        kept: deque[Event] = deque()
        try:
            while self.running:
                event = self.next_event()
                if isinstance(event, Saved):
                    return event
                if event is not None:
                    kept.append(event)
                if isinstance(event, Ended) and event.rank == 0:
                    break
            return Saved(None)
        finally:
            self._buffer.extendleft(reversed(kept))

    def finish(self, limit_s: float = STOP_LIMIT_S, reason: str = "stopped") -> list[Report]:
        """Bring the running trial to its end; return the reports that came on the way.

        A rank that does not end within ``limit_s`` makes the gang unfit.
        """
        if not self.running:
            return []
        self.answer(Stop(reason))
        late = [event for event in self._until_ended(limit_s) if isinstance(event, Report)]
        self._kill_slow(f"did not stop within {limit_s:.0f} s")
        return late

    def fail(self, first: WorkerError) -> WorkerError:
        """End a trial in which a rank has failed, on all ranks; return the error that caused it.

        Ranks that do not end within ``FAIL_LIMIT_S`` are killed.
        """
        for rank, worker in enumerate(self._workers):
            if rank not in self._ended:
                worker.abort.remote(self.trials, f"rank {first.rank} failed")
        self.late = self._until_ended(FAIL_LIMIT_S)
        self._kill_slow(f"did not end within {FAIL_LIMIT_S:.0f} s of the failure of rank {first.rank}")
        errors = [ended.error for ended in self._ended.values() if ended.error is not None]
        return min([first, *errors], key=_blame)

    def _kill_slow(self, reason: str) -> None:
        """Give up the ranks that have not ended."""
        for rank in range(len(self._workers)):
            if rank not in self._ended:
                self._give_up(rank, reason)
        self._polls = {}

    def _until_ended(self, limit_s: float) -> list[Event]:
        deadline = time.monotonic() + limit_s
        events = list(self._buffer)
        self._buffer.clear()
        while self.running and (left := deadline - time.monotonic()) > 0:
            event = self.next_event(left)
            if event is not None:
                events.append(event)
        return events

    def _gather(self, calls: list[Any], limit_s: float, what: str) -> list[Any]:
        try:
            return ray.get(calls, timeout=limit_s)
        except GetTimeoutError as error:
            raise GangError(f"Waited {limit_s:.0f} s for {what}, in vain (a gang of {len(calls)}).") from error
        except RayError as error:
            raise GangError(f"A worker failed while the gang waited for {what}: {error}") from error


def _blame(error: WorkerError) -> tuple[bool, int, int]:
    """Order errors by how likely each is the cause: the first to fail, then a process that died, then the rest."""
    return (error.secondary, {"exception": 0, "died": 1, "unresponsive": 2}[error.cause], error.rank)


def driver_paths() -> tuple[str, ...]:
    """Return the folders that this process imports from, absolute, for its workers to import from too."""
    import sys  # noqa: PLC0415

    return tuple(dict.fromkeys(os.path.abspath(path or ".") for path in sys.path))  # noqa: PTH100

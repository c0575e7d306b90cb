"""One owner of time, processes and threads: all of the world runs on one thread, in an order that a seed draws.

A process is a name and whatever its threads know; a thread is a greenlet. A thread runs until it waits: by sleeping,
for a lock or an event, for an answer of an actor. Then the next event of the queue happens, at its virtual time; of
several at the same time, one that the seed draws. A process can be killed (its threads never run again, and nothing of
it is cleaned up), stopped and continued (its threads run later), as by SIGKILL, SIGSTOP and SIGCONT.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import queue
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import greenlet

_running: list[Kernel] = []


def running() -> Kernel:
    """Return the kernel whose world runs."""
    return _running[-1]


BEGAN = 1_750_000_000.0
"""What `time.time` says at the start."""
_TICK_S = 1e-6
"""The shortest sleep."""
_LOOKS = 100
"""After so many looks at the clock between two events its thread waits, so that no loop that looks is endless."""


class Killed(BaseException):
    """Raised in a thread of a process that has been killed, where it would go on; nobody catches it for long."""


class StuckError(AssertionError):
    """Nothing is left to happen, or too much has."""


class Process:
    """A process of the world: of the driver, a head, a worker. ``locals`` holds what Python keeps for each process."""

    def __init__(self, kernel: Kernel, name: str, node: Any) -> None:
        self.kernel, self.name, self.node = kernel, name, node
        self.pid = next(kernel.pids)
        self.alive = True
        self.stopped = False
        self.threads: list[Thread] = []
        self.locals: dict[Any, Any] = {}
        self.at_exit: list[Callable[[str], object]] = []
        self.handlers: dict[int, Any] = {}
        """What it does at a signal."""
        self.dies_in: int | None = None
        """At which of its next changes on a disk it is killed."""
        self.stops_in: tuple[int, float] | None = None
        """At which it is stopped, and for how long."""
        self._ready: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def kill(self, why: str = "killed") -> None:
        """End it at once, as SIGKILL does: nothing of it runs any more."""
        if not self.alive:
            return
        self.alive = False
        self.kernel.log("end", self.name, why)
        for call in self.at_exit:
            call(why)
        if self.kernel.current is not None and self.kernel.current.process is self:
            raise Killed

    def changes(self) -> None:
        """Be about to change something on a disk, or in a store."""
        if not self.alive:
            raise Killed  # on its way out of what it did
        if self.stops_in is not None:
            count, seconds = self.stops_in
            self.stops_in = (count - 1, seconds) if count > 1 else None
            if count <= 1:
                self.stop()
                self.kernel.after(seconds, self.go_on)
                self.kernel.sleep(0)
        if self.dies_in is not None:
            self.dies_in -= 1
            if self.dies_in <= 0:
                self.kill("SIGKILL, before it changes a file")

    def signal(self, number: int) -> None:
        """Send a signal: its handler runs, and what that raises is raised where the main thread waits."""
        main, handler = self.locals["main"], self.handlers.get(number)
        if not callable(handler):
            self.kill(f"signal {number}")
            return

        def handle() -> None:
            try:
                handler(number, None)
            except KeyboardInterrupt as error:
                main.interrupt(error)

        self.kernel.spawn(self, handle, name="signal")

    def stop(self) -> None:
        """Stop it, as SIGSTOP does."""
        self.stopped = True

    def go_on(self) -> None:
        """Let it go on, as SIGCONT does."""
        self.stopped = False
        ready, self._ready = self._ready, []
        for call in ready:
            self.kernel.soon(call)

    def resume(self, call: Callable[[], None]) -> None:
        """Call something of this process: now, once it is no longer stopped, or never."""
        if self.alive and self.stopped:
            self._ready.append(call)
        elif self.alive:
            call()


class Thread:
    """A thread of a process, with what Python's threads have of ``threading.Thread``."""

    def __init__(
        self, process: Process, target: Callable[..., Any], args: Any = (), kwargs: Any = None, name: str = ""
    ) -> None:
        self.process, self.name, self.daemon = process, name or "thread", True
        self.ident = next(process.kernel.idents)
        self.ended = False
        self.pending: BaseException | None = None
        self.wait: Wait | None = None
        self._waiters: list[Wait] = []
        self._greenlet = greenlet.greenlet(self._run, process.kernel.hub)
        self._call = (target, args, kwargs or {})

    def begin(self) -> None:
        self.process.threads.append(self)
        self.process.kernel.soon(lambda: self.process.resume(self.switch))

    def switch(self) -> None:
        """Run it until it next waits. Called by the kernel alone."""
        kernel = self.process.kernel
        if self.ended:
            return
        before, kernel.current = kernel.current, self
        try:
            self._greenlet.switch()
        finally:
            kernel.current = before

    def _run(self) -> None:
        target, args, kwargs = self._call
        try:
            target(*args, **kwargs)
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - as a thread's error, that ends it
            if self.process.alive:
                self.process.kernel.failed(self, error)
        self.ended = True
        if self in self.process.threads:
            self.process.threads.remove(self)
        for wait in self._waiters:
            wait.end()

    def end(self) -> None:
        """End it where it waits, with the world."""
        if self._greenlet and not self.ended:
            self._greenlet.throw(Killed)

    def interrupt(self, error: BaseException) -> None:
        """Raise an error where it waits, or next waits."""
        self.pending = error
        if self.wait is not None:
            self.wait.end()

    def is_alive(self) -> bool:
        return not self.ended

    def join(self, timeout: float | None = None) -> None:
        if not self.ended:
            wait = Wait(self.process.kernel)
            self._waiters.append(wait)
            wait.wait(timeout)


class Wait:
    """One wait of the thread that makes it; it ends by ``end`` or with the time."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._thread = kernel, kernel.current
        self.ended = self._over = False

    def end(self) -> None:
        """Let the thread go on, soon."""
        if not self.ended and not self._over:
            self.ended = True
            self._kernel.soon(self._wake)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait; return whether it was ended, in time."""
        if self._thread is None:
            raise StuckError("what is no thread of the world cannot wait")
        timer = None
        if not self.ended and timeout is not None:
            if timeout <= 0:
                return False
            timer = self._kernel.after(timeout, self._wake)
        self._thread.wait = self
        try:
            self._kernel.switch(self._thread)
        finally:
            self._over, self._thread.wait = True, None
            if timer is not None:
                timer.cancel()
        return self.ended

    def _wake(self) -> None:
        if not self._over and self._thread is not None:
            self._thread.process.resume(self._go)

    def _go(self) -> None:
        if not self._over and self._thread is not None:
            self._over = True
            self._thread.switch()


class Timer:
    """A call to come."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        self.call = None


class Kernel:
    """Virtual time and all that is to happen in it. ``current``: the thread that runs."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.current: Thread | None = None
        self.hub = greenlet.getcurrent()
        self.pids, self.idents = itertools.count(1000), itertools.count(1)
        self.happened = self._looks = 0
        self.logged: deque[tuple[float, str]] = deque(maxlen=20_000)
        self._queue: list[tuple[float, float, int, Timer]] = []
        self._serial = itertools.count()
        self.processes: list[Process] = []
        self.bucket: Any = None
        self.disk: Any = None
        self.saves = True
        self.locks: dict[str, Lock] = {}
        """Those of files."""
        self.ports: dict[int, Any] = {}
        """What listens."""
        self.broken: dict[str, list[tuple[str, str]]] = {}
        """By trial: how its training code broke (the state it ends in), and what it said."""

    @property
    def here(self) -> Process:
        """The process that runs."""
        if self.current is None:
            raise StuckError("no process runs")
        return self.current.process

    def log(self, *words: object) -> None:
        """Note what happens."""
        self.logged.append((self.now, " ".join(map(str, words))))

    def failed(self, thread: Thread, error: BaseException) -> None:
        """Note an error that has ended a thread."""
        self.log("error", thread.process.name, thread.name, f"{type(error).__name__}: {error}")

    def after(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """Call something in so many seconds."""
        timer = Timer(call)
        heapq.heappush(self._queue, (self.now + max(0.0, delay_s), self.rng.random(), next(self._serial), timer))
        return timer

    def soon(self, call: Callable[[], object]) -> Timer:
        """Call something at this time, in an order that the seed draws."""
        return self.after(0.0, call)

    def spawn(self, process: Process, target: Callable[..., Any], *args: Any, name: str = "") -> Thread:
        """Start a thread of a process."""
        thread = Thread(process, target, args, name=name)
        thread.begin()
        return thread

    def process(self, name: str, node: Any) -> Process:
        """Make a process, which has no threads yet."""
        self.processes.append(process := Process(self, name, node))
        return process

    def switch(self, thread: Thread) -> None:
        """Let others run until this thread is woken. Called by a thread."""
        if not thread.process.alive:
            raise Killed  # what is in the way of its end
        self.hub.switch()
        if not thread.process.alive:
            raise Killed
        if thread.pending is not None:
            error, thread.pending = thread.pending, None
            raise error

    def cut_s(self, *processes: Process | None) -> float:
        """Return for how long nothing passes between processes, because the node of one is cut off."""
        return max([0.0, *(float(one.node.cut_until) - self.now for one in processes if one is not None)])

    def sleep(self, seconds: float) -> None:
        """Wait so many seconds."""
        Wait(self).wait(max(seconds, _TICK_S))

    def run(self, until: Callable[[], bool], most_s: float, most: int = 2_000_000) -> None:
        """Let things happen until it is so. Raises: StuckError where it never is, or takes too long."""
        while not until():
            if not self._queue:
                raise StuckError(f"nothing is left to happen after {self.now:.1f} s")
            if self._queue[0][0] > most_s:
                raise StuckError(f"it is not over after {most_s:.0f} s")
            if self.happened > most:
                raise StuckError(f"it is not over after {most} events, at {self.now:.1f} s")
            self._next()

    def _next(self) -> None:
        """Let the next event happen."""
        at, _, _, timer = heapq.heappop(self._queue)
        if timer.call is not None:
            self.now, self._looks = max(self.now, at), 0
            self.happened += 1
            timer.call()

    def close(self) -> None:
        """End all that has not ended, so that nothing of this world runs later."""
        for process in self.processes:
            process.alive = False
            for thread in list(process.threads):
                thread.end()

    def settle(self, seconds: float) -> None:
        """Let happen what happens within so many seconds."""
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self._next()

    def threads_text(self, nodes: Any) -> str:
        """Return where each thread waits."""
        import traceback

        lines = []
        for node in nodes:
            for process in node.processes:
                for thread in process.threads:
                    frame = thread._greenlet.gr_frame
                    where = "" if frame is None else "".join(traceback.format_stack(frame)[-9:-2])
                    lines.append(f"== {process} {'alive' if process.alive else 'dead'} {thread.name}\n{where}")
        return "\n".join(lines)

    # -- what modules get in place of Python's own

    def _look(self) -> Any:
        """Return the node where somebody looks at the clock, if any."""
        if self.current is None:
            return None
        self._looks += 1
        if self._looks > _LOOKS:
            self._looks = 0
            self.sleep(0.5)
        return self.current.process.node

    def monotonic(self) -> float:
        """As ``time.monotonic``: with the clock of the node where it is asked."""
        node = self._look()
        return self.now if node is None else self.now + float(node.booted_s)

    def time(self) -> float:
        """As ``time.time``: with the clock of the node where it is asked (``ahead_s``)."""
        node = self._look()
        return BEGAN + self.now + (0.0 if node is None else float(node.ahead_s))


class Lock:
    """As ``threading.Lock`` and ``RLock``."""

    def __init__(self, kernel: Kernel, *, again: bool) -> None:
        self._kernel, self._again = kernel, again
        self._owner: Any = None
        self._depth = 0
        self._waits: deque[Wait] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._kernel.current or self._kernel
        if self._again and self._owner is me:
            self._depth += 1
            return True
        while self._owner is not None:
            if self._owner is not me and isinstance(self._owner, Thread) and not self._owner.process.alive:
                break  # of a process that is gone
            if not blocking:
                return False
            self._waits.append(wait := Wait(self._kernel))
            if not wait.wait(None if timeout < 0 else timeout):
                return False
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth <= 0:
            self._owner = None
            if self._waits:
                self._waits.popleft().end()

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    """As ``threading.Condition``."""

    def __init__(self, kernel: Kernel, lock: Lock | None = None) -> None:
        self._kernel, self._lock = kernel, lock or Lock(kernel, again=True)
        self._waits: list[Wait] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        self._waits.append(wait := Wait(self._kernel))
        self._lock.release()
        try:
            return wait.wait(timeout)
        finally:
            if wait in self._waits:
                self._waits.remove(wait)
            self._lock.acquire()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None else self._kernel.now + timeout
        while not (found := predicate()):
            left = None if end is None else end - self._kernel.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify(self, n: int = 1) -> None:
        waits, self._waits = self._waits[:n], self._waits[n:]
        for wait in waits:
            wait.end()

    def notify_all(self) -> None:
        self.notify(len(self._waits))


class Event:
    """As ``threading.Event``."""

    def __init__(self, kernel: Kernel) -> None:
        self._condition = Condition(kernel)
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._condition.notify_all()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        with self._condition:
            return bool(self._condition.wait_for(lambda: self._set, timeout))


class Queue:
    """As ``queue.SimpleQueue``."""

    def __init__(self, kernel: Kernel, empty: type[Exception]) -> None:
        self._condition = Condition(kernel)
        self._items: deque[Any] = deque()
        self._empty = empty

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._condition.notify()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        with self._condition:
            self._condition.wait_for(lambda: self._items, timeout if block else 0)
            if not self._items:
                raise self._empty
            return self._items.popleft()


def modules_of(kernel: Kernel) -> dict[str, Any]:
    """Return what stands for the modules ``time``, ``threading``, ``queue`` and ``signal``, by their names."""

    class OwnThread(Thread):
        def __init__(
            self,
            group: Any = None,
            target: Any = None,
            name: str | None = None,
            args: Any = (),
            kwargs: Any = None,
            *,
            daemon: bool | None = None,
        ) -> None:
            super().__init__(kernel.here, target or self.run, args, kwargs, name or "thread")

        def run(self) -> None:
            """Do nothing."""

        def start(self) -> None:
            self.begin()

    main = SimpleNamespace(name="MainThread", ident=0, daemon=False, is_alive=lambda: True)
    times = SimpleNamespace(**{
        **vars(time),
        "time": kernel.time, "monotonic": kernel.monotonic, "perf_counter": kernel.monotonic, "sleep": kernel.sleep,
        "time_ns": lambda: int(kernel.time() * 1e9), "monotonic_ns": lambda: int(kernel.monotonic() * 1e9),
        "clock_gettime": lambda _: kernel.monotonic(),
    })  # fmt: skip
    threads = SimpleNamespace(
        Thread=OwnThread, Lock=lambda: Lock(kernel, again=False), RLock=lambda: Lock(kernel, again=True),
        Condition=lambda lock=None: Condition(kernel, lock), Event=lambda: Event(kernel),
        current_thread=lambda: kernel.current or main, main_thread=lambda: kernel.here.locals.get("main", main),
        enumerate=lambda: list(kernel.here.threads),
    )  # fmt: skip

    def set_handler(number: int, handler: Any) -> Any:
        before = kernel.here.handlers.get(number, signal.SIG_DFL)
        kernel.here.handlers[number] = handler
        return before

    signals = SimpleNamespace(
        signal=set_handler, getsignal=lambda number: kernel.here.handlers.get(number, signal.SIG_DFL),
        raise_signal=lambda number: kernel.here.handlers[number](number, None),
        **{name: getattr(signal, name) for name in dir(signal) if name.startswith("SIG") or name == "Signals"},
    )  # fmt: skip
    queues = SimpleNamespace(
        SimpleQueue=lambda: Queue(kernel, queue.Empty), Queue=lambda maxsize=0: Queue(kernel, queue.Empty),
        Empty=queue.Empty, Full=queue.Full,
    )  # fmt: skip
    return {"time": times, "threading": threads, "queue": queues, "signal": signals}


@contextmanager
def virtual(kernel: Kernel, modules: Iterable[Any]) -> Iterator[None]:
    """Give modules the world's time, threads and queues while the block runs."""
    stand_ins = modules_of(kernel)
    functions = {getattr(time, name): getattr(stand_ins["time"], name) for name in _FUNCTIONS}

    def other(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(other, value))
        if isinstance(value, dict):
            return {name: other(one) for name, one in value.items()}
        if isinstance(value, BuiltinFunctionType):
            return functions.get(value, value)
        return stand_ins[value.__name__] if isinstance(value, ModuleType) else value

    places = _places(tuple(modules))
    _running.append(kernel)
    try:
        for where, name, value in places:
            setattr(where, name, staticmethod(other(value)) if isinstance(where, type) else other(value))
        yield
    finally:
        _running.pop()
        for where, name, value in places:
            setattr(where, name, value)


_MODULES = {"time": time, "threading": threading, "queue": queue, "signal": signal}
_FUNCTIONS = ("time", "monotonic", "perf_counter", "sleep")


@functools.lru_cache(maxsize=1)
def _places(modules: tuple[Any, ...]) -> list[tuple[Any, str, Any]]:
    """Return where modules keep time, threads and queues: whose attribute, its name and its value."""
    functions = {getattr(time, name) for name in _FUNCTIONS}

    def of_time(value: Any) -> bool:
        return isinstance(value, BuiltinFunctionType) and value in functions

    places: list[tuple[Any, str, Any]] = []
    for module in modules:
        places += [(module, name, real) for name, real in _MODULES.items() if module.__dict__.get(name) is real]
        for one in _functions_of(module):
            if isinstance(one, type):
                places += [(one, name, value) for name, value in vars(one).items() if of_time(value)]
                continue
            if any(map(of_time, one.__defaults__ or ())):
                places.append((one, "__defaults__", one.__defaults__))
            if any(map(of_time, (one.__kwdefaults__ or {}).values())):
                places.append((one, "__kwdefaults__", one.__kwdefaults__))
            for cell in one.__closure__ or ():
                with suppress(ValueError):  # an empty one
                    if of_time(cell.cell_contents):
                        places.append((cell, "cell_contents", cell.cell_contents))
    return places


def _functions_of(module: Any) -> Iterator[Any]:
    """Yield the functions of a module and of its classes."""
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, type):
            yield value
            yield from (one for one in map(_function, vars(value).values()) if one is not None)
        elif (one := _function(value)) is not None:
            yield one


def _function(value: Any) -> Any:
    value = getattr(value, "fget", None) or getattr(value, "__func__", value)
    return value if isinstance(value, FunctionType) else None

"""Shared fixtures: one Ray for a session, and a watch for what a test leaves behind."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings

from tests.flavours import PACKAGES
from tests.gpu.device import gpus, on_cpus
from tests.kit.programs import PROGRAM_S
from tunelight.compat.lightning import FABRIC, VARIABLE, flavour
from tunelight.extras.forks.ready import ForkServer, possible

# Before anything imports Ray. A local start turns token authentication on and keeps its token in the home
# folder, from where a later start takes it: with both set here, the order of tests decides nothing and
# nothing is written to the home folder. Tests never attach to a Ray that somebody else runs.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.pop("RAY_ADDRESS", None)
os.environ["TUNELIGHT_KEEP"] = "0"  # each command starts a Ray of its own, and leaves none

# A shell's background job ignores Ctrl-C, and so would the programs that tests interrupt: ignoring is inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a session run with either package of Lightning; without the option it is found out, as for a user."""
    parser.addoption(
        "--lightning", choices=PACKAGES, help="the package of Lightning to run with (else it is pytorch_lightning)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose before a test or a plugin imports Lightning."""
    os.environ.pop(VARIABLE, None)
    if chosen := config.getoption("--lightning"):
        os.environ[VARIABLE] = chosen


# Their asserts then say what was compared, as those in test files do.
pytest.register_assert_rewrite("tests.kit.contract", "tests.kit.fakes")

# The cores are shared with whatever else a test started: a deadline would measure that.
settings.register_profile("tunelight", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("tunelight")

SETTLE_S = 3.0
"""How long threads and processes may take to end after a test."""
APART_S = PROGRAM_S + 40
"""How long a test marked `apart` may take: it starts programs with Rays of their own."""
CLUSTER_SETTLE_S = 10.0
"""How long actors and placement groups may take: Ray learns of an end by message."""

ENVIRONMENT_BY_IMPORTS = {
    "CUDA_MODULE_LOADING": "older versions of torch set it when they initialise CUDA",
    "PYTEST_CURRENT_TEST": "pytest's own, of each phase of a test",
    "CRC32C_SW_MODE": "tensorboardX sets it when it is imported",
    "KMP_DUPLICATE_LIB_OK": "scikit-learn sets it when it is imported",
    "KMP_INIT_AT_FORK": "scikit-learn sets it when it is imported",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "Lightning sets it when it is imported",
    "RAY_CLIENT_MODE": "Ray sets it when it is imported",
    "TORCHINDUCTOR_CACHE_DIR": "torch sets it when its compiler is imported",
}
"""Variables that may change within a test, since a library sets them once for the whole process."""

shared_processes: set[int] = set()
"""Process ids of what the session shares, Ray's own first of all."""
shared_holdings: set[str] = set()
"""Ids of actors and placement groups that several tests share; see `share_holdings`."""


def _fail_a_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"CI skips nothing, for a part that is missing must be seen: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Turn a skipped test into a failed one where CI is set."""
    report = yield
    if os.environ.get("CI") and item.get_closest_marker("gpu") is None:
        _fail_a_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    """Turn a skipped module into a failed one where CI is set."""
    report = yield
    if os.environ.get("CI"):
        _fail_a_skip(report)
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the folder they lie in, so that `-m integration` finds them, and give those apart their time."""
    for item in items:
        if item.get_closest_marker("apart") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(APART_S))
        for folder in ("integration", "chaos", "browser", "cluster"):
            if folder in Path(item.path).parts:
                item.add_marker(folder)


_following = pytest.StashKey[pytest.Item | None]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Note which test this process runs next: with several processes it is not the next one collected."""
    item.session.stash[_following] = nextitem


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a CUDA device, or several, where there are not so many."""
    tried_on_cpus = on_cpus() and "tests/gpu" in Path(item.path).as_posix()
    if item.get_closest_marker("gpu") is not None and not tried_on_cpus:
        wanted = 2 if item.get_closest_marker("multi") else 1
        if (found := gpus()) < wanted:
            pytest.skip(f"needs {wanted} CUDA devices, and there are {found}" if found else "needs a CUDA device")


@pytest.fixture(scope="session")
def ray4() -> Iterator[Any]:
    """Start the session's Ray, on 4 logical CPUs, and return the `ray` module."""
    import ray

    from tunelight.compat.ray import setup_worker

    server = ForkServer((flavour(), FABRIC[flavour()]))
    env = {"py_executable": server.py_executable} if possible() else None  # heads are forked, too
    before = _children()
    if env is not None:
        server.start({})
    with setup_worker(server.setup_worker) if env is not None else contextlib.nullcontext():
        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env=env)
    shared_processes.update(_children() - before)
    yield ray
    ray.shutdown()
    server.remove()


def _children() -> set[int]:
    """Return the ids of this process's direct children; a raylet's workers are the raylet's."""
    # A hundred times faster than looking through all processes, and this runs around every test.
    children: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended since
            children.update(int(pid) for pid in (thread / "children").read_text().split())
    return children


def _alive(pid: int) -> bool:
    """Tell whether a process still runs and is not Python's own bookkeeping."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        # Started once by the first user of multiprocessing's semaphores, and ends with this process.
        return "multiprocessing.resource_tracker" not in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def _new_threads(before: set[threading.Thread]) -> list[str]:
    return [
        f"the thread {thread.name!r}, which is no daemon"
        for thread in threading.enumerate()
        if thread not in before and thread.is_alive() and not thread.daemon
    ]


def _new_processes(before: set[int]) -> list[psutil.Process]:
    fresh = _children() - before - shared_processes
    return [psutil.Process(pid) for pid in sorted(fresh) if _alive(pid)]


def _changed_environment(before: dict[str, str]) -> list[str]:
    now = dict(os.environ)
    names = sorted(
        name
        for name in before.keys() | now.keys()
        if before.get(name) != now.get(name) and name not in ENVIRONMENT_BY_IMPORTS
    )
    return [f"the environment variable {name}: {before.get(name)!r} -> {now.get(name)!r}" for name in names]


def _cluster_holdings() -> dict[str, str]:
    """Return actors and placement groups that Ray still holds, by id, each with a line on what it is."""
    import ray
    from ray._private import state
    from ray.util import placement_group_table

    if not ray.is_initialized():
        return {}
    warm = _warm_gangs()
    held = {
        actor_id: f"the actor {actor['ActorClassName']} ({actor['State']})"
        for actor_id, actor in state.actors().items()
        if actor["State"] != "DEAD" and actor_id not in warm
    }
    for group_id, group in placement_group_table().items():
        if group["state"] != "REMOVED" and group_id not in warm:
            held[group_id] = f"the placement group {group['name']!r} of {group['bundles']} ({group['state']})"
    return held


def _warm_gangs() -> set[str]:
    """Return the ids of what the process's own pool keeps warm, as it is meant to; see `warm_gangs`."""
    module = sys.modules.get("tunelight.extras.standalone.pool")
    if module is None:
        return set()
    return {
        one
        for held in module.pool._idle
        for one in [
            *(seat.worker._actor_id.hex() for seat in held.gang._seats if seat.worker is not None),
            held.owned and held.owned.id.hex(),
        ]
    }


@pytest.fixture(scope="module")
def warm_gangs(request: pytest.FixtureRequest, ray4: Any) -> Iterator[Any]:
    """Keep the gangs of strategies on this driver warm from test to test; return their pool.

    They are closed at the module's end, unless the next module's first test uses them too.
    """
    from tunelight.extras.standalone.pool import pool

    yield pool
    if "warm_gangs" not in getattr(request.session.stash[_following], "fixturenames", ()):
        pool.close()


def share_holdings() -> None:
    """Declare what Ray holds now as shared by several tests: its owner, a wider fixture, gives it back."""
    shared_holdings.update(_cluster_holdings())


def _release(holding: str) -> None:
    """Give back an actor or a placement group, for the next test's sake."""
    import ray
    from ray._raylet import PlacementGroupID
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    if holding in ray.util.placement_group_table():
        remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(holding))))
    else:
        worker: Any = ray._private.worker.global_worker
        no_restart = True
        worker.core_worker.kill_actor(ray.ActorID.from_hex(holding), no_restart)


def _wait_until_empty(look: Callable[[], list[Any]], seconds: float) -> list[Any]:
    """Look until nothing is left or the time is over, and return what is left then."""
    end = time.monotonic() + seconds
    while (left := look()) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def _end(process: psutil.Process) -> str:
    """End what a test left behind, for the next test's sake, and say what it was."""
    try:
        words = f"the process {process.pid}: {' '.join(process.cmdline())[:200]}"
        process.kill()
        process.wait(SETTLE_S)
    except psutil.Error as error:
        return f"the process {process.pid} ({error})"
    return words


def _ray_started() -> bool:
    ray = sys.modules.get("ray")
    return bool(ray and hasattr(ray, "is_initialized") and ray.is_initialized())


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread, a process, a changed environment, an actor or a placement group."""
    # The session's Ray first: what it starts belongs to no test.
    uses_ray = "ray4" in request.fixturenames
    if uses_ray:
        request.getfixturevalue("ray4")
    had_ray = _ray_started()
    threads, processes, environment = set(threading.enumerate()), _children(), dict(os.environ)
    holdings = _cluster_holdings() if uses_ray else {}

    yield

    left: list[str] = []
    if uses_ray:
        held = _wait_until_empty(
            lambda: [
                (key, line)
                for key, line in _cluster_holdings().items()
                if key not in holdings and key not in shared_holdings
            ],
            CLUSTER_SETTLE_S,
        )
        for key, line in held:
            left.append(line)
            _release(key)
    left += _wait_until_empty(lambda: _new_threads(threads), SETTLE_S)
    if _ray_started() and not had_ray:
        sys.modules["ray"].shutdown()
        left.append("a Ray that it started (a unit test starts none; others use the fixture ray4)")
    left += [_end(process) for process in _wait_until_empty(lambda: _new_processes(processes), SETTLE_S)]
    left += _changed_environment(environment)
    if left:
        for name in os.environ.keys() - environment.keys() - ENVIRONMENT_BY_IMPORTS.keys():
            del os.environ[name]
        os.environ.update(environment)
        pytest.fail("the test left behind:\n" + "\n".join(f"- {line}" for line in left), pytrace=False)

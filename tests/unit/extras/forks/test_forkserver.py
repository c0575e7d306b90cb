"""Workers forked by a server: real processes, without Ray."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.kit.waiting import until
from tunelight.cluster.local import fork_server
from tunelight.extras.forks import setup_worker
from tunelight.extras.forks.ready import VARIABLE, ForkServer, possible

WORKER = """
import json, os, resource, sys, time
print("to standard output")
if "json.tool" in sys.modules:
    import mark
found = {
    "pid": os.getpid(), "parent": os.getppid(), "argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd(),
    "path": sys.path, "umask": os.umask(0), "niceness": os.nice(0), "session": os.getsid(0), "name": __name__,
    "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0], "cores": sorted(os.sched_getaffinity(0)),
    "imported": sorted({"json.tool", "mark"} & sys.modules.keys()),
}
with open(sys.argv[1] + ".part", "w") as file:
    json.dump(found, file)
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[3]))
"""
THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ForkServer]:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "mark.py").write_text("import os\nmade_by = os.getpid()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    monkeypatch.setenv("RAY_RAYLET_PID", str(os.getpid()))
    monkeypatch.setattr("tunelight.extras.forks.ready._FIRST", ("json.tool",))
    monkeypatch.setattr("tunelight.extras.forks.ready._LATER", ("mark",))
    folder = Path(tempfile.mkdtemp(prefix="tl-", dir="/tmp"))
    yield ForkServer((), 3, str(folder))
    for process in servers(folder):
        with contextlib.suppress(psutil.NoSuchProcess):  # one that ends by itself just now
            process.kill()
    shutil.rmtree(folder, ignore_errors=True)


def servers(folder: str | Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if str(folder) in (process.info["cmdline"] or ()) and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def launched(
    server: ForkServer, tmp_path: Path, name: str = "one", *, before: str = "", options: str = "", sleeps: float = 0,
    worker: str = WORKER, launcher: str = "",
) -> Any:  # fmt: skip
    """Start a worker as Ray would, after other commands of a shell, and return what it found."""
    script, result = tmp_path / "worker.py", tmp_path / f"{name}.json"
    if not script.exists() or script.read_text() != worker:
        script.write_text(worker)
    command = (
        f"{before} exec {launcher or server.py_executable} {options} {script} {result} {sleeps} 0 > {result}.out 2>&1"
    )
    subprocess.run(["bash", "-c", command], timeout=30, check=False, cwd=tmp_path)
    until(result.exists, 10)
    return json.loads(result.read_text()) | {"output": Path(f"{result}.out").read_text()}


def test_a_worker_is_forked_with_all_that_its_parent_gave_it_as_one_that_python_starts(server, tmp_path, monkeypatch):
    monkeypatch.setenv("TUNELIGHT_LIGHTNING", "x")
    forked = launched(server, tmp_path)
    assert forked["parent"] in {process.pid for process in servers(server.folder)}
    assert forked["imported"] == ["json.tool", "mark"]
    assert forked["argv"] == [str(tmp_path / "worker.py"), str(tmp_path / "one.json"), "0", "0"]
    assert (forked["cwd"], forked["name"], forked["session"]) == (str(tmp_path), "__main__", forked["pid"])
    assert "OMP_NUM_THREADS" not in forked["env"]  # Ray sets it
    assert "to standard output" in forked["output"]
    core = forked["cores"][0]
    limited = launched(server, tmp_path, "limited", before=f"ulimit -n 300; taskset -p {1 << core:x} $$;")
    assert limited["imported"] == ["json.tool", "mark"]
    assert (limited["files"], limited["cores"]) == (300, [core])
    assert forked["files"] != 300
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # not what the server imported with
    plain = launched(server, tmp_path, "two")
    assert plain["imported"] == []
    assert [plain[what] for what in ("path", "umask", "niceness")] == [
        forked[what] for what in ("path", "umask", "niceness")
    ]
    assert plain["env"].pop("OMP_NUM_THREADS") == "7"
    assert {**plain["env"], "_": ""} == {**forked["env"], "_": ""}
    assert "differs in OMP_NUM_THREADS" in Path(server.folder, "log").read_text()


def test_many_at_once_are_all_started_by_one_server_and_another_job_has_its_own(server, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_JOB_ID", "01000000")
    (tmp_path / "worker.py").write_text(WORKER)
    with ThreadPoolExecutor(8) as threads:
        workers = list(threads.map(lambda number: launched(server, tmp_path, str(number)), range(8)))
    assert len({worker["parent"] for worker in workers}) == 1
    assert len({worker["pid"] for worker in workers}) == 8
    monkeypatch.setenv("RAY_JOB_ID", "02000000")
    other = launched(server, tmp_path, "other")
    assert other["parent"] != workers[0]["parent"]
    assert psutil.Process(workers[0]["parent"]).ppid() == psutil.Process(other["parent"]).ppid()


@pytest.mark.parametrize("stopped", ["killed", "stuck"])
def test_a_server_that_is_lost_costs_only_time(server, tmp_path, stopped, monkeypatch):
    first = launched(server, tmp_path)
    until(lambda: len(servers(server.folder)) == 2, 10)  # this machine's and the job's: the worker has ended
    for process in servers(server.folder):
        process.send_signal(signal.SIGKILL if stopped == "killed" else signal.SIGSTOP)
    if stopped == "killed":
        second = launched(server, tmp_path, "two")
        assert second["imported"] == ["json.tool", "mark"]  # by a new server
        assert second["parent"] != first["parent"]
        return
    script = Path(setup_worker.__file__).read_text().replace("TAKE_S = 40.0", "TAKE_S = 0.5")
    assert "TAKE_S = 0.5" in script
    impatient = tmp_path / "impatient.py"
    impatient.write_text(script)
    launcher = server.py_executable.replace(setup_worker.__file__, str(impatient))
    assert str(impatient) in launcher
    assert launched(server, tmp_path, "two", launcher=launcher)["imported"] == []
    result = tmp_path / "two.json"
    result.unlink()
    for process in servers(server.folder):
        process.send_signal(signal.SIGCONT)
    time.sleep(1.0)
    assert not result.exists(), "the fork must not begin: its launcher has started the worker itself"


def test_a_folder_that_others_may_write_to_is_not_used_and_a_python_with_options_of_its_own_not_forked(
    server, tmp_path
):
    assert launched(server, tmp_path, options="-S")["imported"] == []
    Path(server.folder).chmod(0o777)
    found = launched(server, tmp_path, "two")
    assert found["imported"] == []
    assert not servers(server.folder)


@pytest.mark.parametrize(
    ("code", "name", "forked", "said"),
    [
        (THREAD, "first", False, "no forks: threads"),
        ("raise ImportError('not here')", "first", True, "first: ImportError: not here"),
        ("def go(rest):\n    rest()", "first:go", True, ""),
        ("def go(rest):\n    rest()\n    return 'it cannot be'", "first:go", False, "no forks: it cannot be"),
    ],
    ids=["threads", "fails", "a function", "a function that says why not"],
)
def test_what_libraries_do_at_their_import_decides_whether_workers_are_forked(  # noqa: PLR0917 - a row each
    server, tmp_path, monkeypatch, code, name, forked, said
):
    (tmp_path / "modules" / "first.py").write_text(code)
    monkeypatch.setattr("tunelight.extras.forks.ready._LATER", (name, "mark"))
    assert launched(server, tmp_path)["imported"] == (["json.tool", "mark"] if forked else [])
    log = Path(server.folder, "log").read_text()
    assert said in log
    assert ("no forks" in log) is not forked


@pytest.mark.parametrize(
    "context",
    [
        {"language": "JAVA"},
        {"command_prefix": ["numactl"]},
        {"override_worker_entrypoint": "other.py"},
        {"env_vars": {"PATH": "${PATH}:/x"}},
        {"py_executable": sys.executable},
        {"py_executable": "uv run"},
        {"py_executable": None},
    ],
    ids=str,
)
def test_whatever_else_is_set_up_goes_to_rays_script(server, tmp_path, context):
    folder = tmp_path / "ray"
    folder.mkdir()
    (folder / "default_worker.py").write_text(WORKER)
    (folder / "setup_worker.py").write_text(f"open({str(tmp_path / 'rays')!r}, 'w').write('')\n")
    given = {"py_executable": server.py_executable, "env_vars": {}, "command_prefix": [], **context}
    options = [f"--language={given.pop('language', 'PYTHON')}", f"--serialized-runtime-env-context={json.dumps(given)}"]
    worker = [str(folder / "default_worker.py"), str(tmp_path / "one.json"), "0", "0"]
    command = [sys.executable, str(ForkServer.setup_worker), *worker, *options]
    subprocess.run(command, timeout=30, check=True, cwd=tmp_path)
    assert (tmp_path / "rays").exists()


def test_a_server_that_finds_no_room_is_not_waited_for(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    began = time.monotonic()
    no_room = [sys.executable, "-S", "-c", f"raise SystemExit({setup_worker.NO_ROOM})"]
    assert not setup_worker.forked(str(folder), no_room, ["worker.py"])
    assert time.monotonic() - began < setup_worker.LISTEN_S / 2


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("initialised", [True, False])
def test_who_has_initialised_cuda_does_not_fork_and_who_has_loaded_its_driver_does(
    server, tmp_path, monkeypatch, initialised
):
    driver, source = tmp_path / "libcuda.so.1", tmp_path / "driver.c"
    source.write_text(f"int cuDeviceGetCount(int *count) {{ return {0 if initialised else 3}; }}")
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", driver, source], check=True)
    (tmp_path / "modules" / "loads.py").write_text(f"import ctypes\nctypes.CDLL({str(driver)!r})\n")
    monkeypatch.setattr("tunelight.extras.forks.ready._FIRST", ("json.tool", "loads"))
    assert bool(launched(server, tmp_path)["imported"]) is not initialised
    assert ("no forks: a library has met a GPU" in Path(server.folder, "log").read_text()) is initialised


def test_servers_end_where_memory_gets_short_and_workers_stay(server, tmp_path, monkeypatch):
    (tmp_path / "modules" / "pressure.py").write_text(
        "import sys; from pathlib import Path; main = sys.modules['__main__']\n"
        "main.memory_is_short = lambda: Path(__file__).with_name('short').exists()\n"
    )
    monkeypatch.setattr("tunelight.extras.forks.ready._FIRST", ("pressure",))
    worker = psutil.Process(launched(server, tmp_path, sleeps=30)["pid"])
    both = servers(server.folder)
    (tmp_path / "modules" / "short").touch()
    until(lambda: not any(process.is_running() and process != worker for process in both), 10)
    assert worker.is_running()
    worker.kill()


def test_a_server_that_is_started_ahead_serves_the_first_worker(server, tmp_path, monkeypatch):
    monkeypatch.setenv("PS1", "(.venv) $ ")  # as an activated virtual environment exports it; bash drops it
    server.start({})
    until(Path(server.folder, setup_worker.BASE).exists, 10)
    (first,) = servers(server.folder)
    found = launched(server, tmp_path)
    assert psutil.Process(found["parent"]).ppid() == first.pid


def test_workers_of_another_python_are_not_forked_and_forking_can_be_turned_off(monkeypatch):
    assert fork_server({"env_vars": {"X": "1"}, "working_dir": "."}, 1) is not None
    for field in ("pip", "conda", "py_executable", "container", "uv"):
        assert fork_server({field: "x"}, 1) is None
    monkeypatch.setenv(VARIABLE, "0")
    assert not possible()
    assert fork_server(None, 1) is None


BESIDE = """
import json, os, sys
from tunelight.extras.forks import setup_worker
child, result = sys.argv[1], sys.argv[2]
said = os.open(result + ".said", os.O_WRONLY | os.O_CREAT)
more = "with-calendar", ("calendar", "unfit")
for number in (1, 2):
    assert setup_worker.fork_beside([child, f"{result}.{number}"], [0, 1, 2, said], *more)
assert setup_worker.fork_beside([child, f"{result}.3"], [0, 1, 2, said])
open(result + ".part", "w").write(json.dumps({}))
os.rename(result + ".part", result)
"""
CHILD = """
import json, os, sys
os.write(int(sys.argv[2]), b"x")
found = {"parent": os.getppid(), "imported": "calendar" in sys.modules, "session": os.getsid(0) == os.getpid()}
open(sys.argv[1] + ".part", "w").write(json.dumps(found))
os.rename(sys.argv[1] + ".part", sys.argv[1])
"""


@pytest.mark.parametrize("unfit", [False, True])
def test_a_process_has_others_forked_beside_it_with_the_modules_that_it_names(server, tmp_path, unfit):
    (tmp_path / "modules" / "unfit.py").write_text(THREAD if unfit else "")
    (tmp_path / "child.py").write_text(CHILD)
    worker = BESIDE.replace("sys.argv[1], sys.argv[2]", f"{str(tmp_path / 'child.py')!r}, sys.argv[1]")
    launched(server, tmp_path, worker=worker)
    results = [tmp_path / f"one.json.{number}" for number in (1, 2, 3)]
    until(lambda: all(result.exists() for result in results), 10)
    first, second, third = (json.loads(result.read_text()) for result in results)
    assert first == second
    assert all(one["session"] for one in (first, second, third))
    assert [one["imported"] for one in (first, third)] == [not unfit, False]
    assert (first["parent"] == third["parent"]) is unfit  # what has started a thread is not forked
    assert (tmp_path / "one.json.said").read_bytes() == b"xxx"

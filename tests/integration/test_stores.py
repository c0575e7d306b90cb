"""A sweep in an object store: its driver is killed, and another machine, which has nothing but the store, goes on."""

from __future__ import annotations

import functools
import http.client
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
import s3fs
from moto.server import ThreadedMotoServer
from typer.testing import CliRunner

import tunelight as tl
from tests.integration.stored import EPOCHS
from tests.kit.programs import ROOT, held
from tests.kit.training import Line
from tests.kit.waiting import until
from tests.world.kernel import Kernel, virtual
from tests.world.stores import Bucket, stored
from tunelight import stores
from tunelight.checkpoints import files as checkpoints
from tunelight.cli.app import app
from tunelight.record import record_number, record_of

URL = "s3://bucket/sweeps"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Serve S3 on this machine, with one bucket, and have this process and its children use it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        told = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "x",
                "AWS_DEFAULT_REGION": "us-east-1"}  # fmt: skip
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_CACHE_HOME", "/nowhere")  # each machine has its own
        reset = http.client.HTTPConnection(host, port, timeout=10)
        reset.request("POST", "/moto-api/reset")  # servers of one process have the same buckets
        assert reset.getresponse().status == 200
        made = boto3.client("s3")
        made.create_bucket(Bucket="bucket")
        yield made
    finally:
        server.stop()
        stores.store._store.cache_clear()
        s3fs.S3FileSystem.clear_instance_cache()  # which would ask this server again


def driver(folder: Path, samples: int, machine: str, *words: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Run the sweep's driver on a machine of its own, as far as files and processes go; its output is beside."""
    return held(
        sys.executable, "-m", "tests.integration.stored", URL, str(samples), machine, *words,
        log=folder / f"{machine}.txt", env={"XDG_CACHE_HOME": str(folder / machine), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def driven(folder: Path, samples: int, machine: str, *words: str, code: int) -> None:
    """Run the sweep's driver to its end."""
    with driver(folder, samples, machine, *words) as process:
        assert process.wait(130) == code, (folder / f"{machine}.txt").read_text()


def asleep(process: subprocess.Popen[str]) -> bool:
    """Tell whether a process is stopped."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.apart
@pytest.mark.parametrize("lost", [pytest.param("KILL", marks=pytest.mark.slow), "STOP"])
def test_another_machine_goes_on_from_the_store_alone(bucket, tmp_path, monkeypatch, lost):
    if lost == "KILL":
        driven(tmp_path, 2, "first", "KILL", code=-signal.SIGKILL)
        driven(tmp_path, 3, "second", code=0)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "fourth"))
        with driver(tmp_path, 2, "first", "STOP") as first:
            until(lambda: asleep(first), 130)
            driven(tmp_path, 3, "second", code=0)
            before = [trial.history for trial in tl.SweepResults.load(f"{URL}/s").trials]
            os.killpg(first.pid, signal.SIGCONT)  # it wakes up beside its successor: it ends, and writes nothing
            assert first.wait(60) == 1, (tmp_path / "first.txt").read_text()
        assert "was taken over by process" in (tmp_path / "first.txt").read_text()
        assert [trial.history for trial in tl.SweepResults.load(f"{URL}/s").trials] == before
        assert record_of(stores.working(URL) / "s").name == "record.2.jsonl"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "third"))
    results = tl.SweepResults.load(f"{URL}/s")
    assert [trial.state for trial in results.trials] == ["FINISHED"] * 3
    assert [[report["training_iteration"] for report in trial.history] for trial in results.trials] == [
        list(range(1, EPOCHS + 1))
    ] * 3
    names = {one["Key"] for one in bucket.list_objects_v2(Bucket="bucket")["Contents"]}
    cut_off = f"sweeps/s/{results.trials[1].path.name}"
    went_on = bucket.get_object(Bucket="bucket", Key=f"{cut_off}/rank-0.txt")["Body"].read()
    assert int(went_on) >= 1, "it goes on from its checkpoint in the store"
    log = bucket.get_object(Bucket="bucket", Key=f"{cut_off}/log.txt")["Body"].read().decode()
    assert f"[1] rank 1 starts after report {int(went_on)}" in log
    owner = record_number(record_of(stores.working(URL) / "s").name)  # gangs of the first one may still write
    last = Path(checkpoints.file_name(EPOCHS, owner=owner))
    assert {name.rpartition("/")[2] for name in names if "/checkpoints/" in name and name.startswith(cut_off)} >= {
        last.name, last.with_suffix(".json").name,
    }  # fmt: skip
    assert not any(name.endswith(".tmp") for name in names)

    assert isinstance(results.best.load_model(Line), Line)
    best = tmp_path / "best.yaml"
    results.export_best(best)
    assert f"{results.best.config['lr']}" in best.read_text()
    listed = CliRunner().invoke(app, ["ls", URL])
    assert listed.exit_code == 0, listed.output
    assert "finished" in listed.output
    shown = CliRunner().invoke(app, ["show", f"{URL}/s"])
    assert shown.exit_code == 0, shown.output
    assert "00002" in shown.output


def scene(store: stores.Store, folder: Path, cache: Path) -> dict[str, object]:
    """Return what comes of one request after the other; ``folder`` is in the store, and ``cache`` what it is here."""
    one, log = folder / "owners" / "1.json", folder / "log.txt"
    found: dict[str, object] = {
        "nothing is there": (store.stat(one), store.has_any(folder), store.listed(folder, "*/*.json")),
        "one creates it": [store.create(one, b"first"), store.create(one, b"second"), store.create(one, b"first")],
        "as it was created": store.read(one),
    }
    with pytest.raises(FileNotFoundError):
        store.read(log)
    store.delete(log)  # what is not there
    store.write(log, b"a\n")
    store.write(log, b"a\nb\n")
    found["the newest"] = (store.read(log), store.stat(log)[0])  # type: ignore[index]
    found["times grow"] = store.stat(one)[1] <= store.stat(log)[1]  # type: ignore[index]
    found["a growing file"] = (store.update(log), log.read_bytes())
    made = folder / "trial" / "report.ckpt"
    made.mkdir(parents=True)
    for rank in range(2):
        (made / f"{rank}.json").write_text(str(rank))
    store.push(made)
    found["a folder"] = (store.stat(made)[0], store.has_any(folder / "trial"))  # type: ignore[index]
    found["in order"] = [str(path.relative_to(folder)) for path in store.listed(folder, "*/report.ckpt/*.json")]
    found["not below"] = store.listed(folder, "*.json")
    shutil.rmtree(cache)
    store.fetch(made, lambda path: (path / "1.json").exists())
    store.bring(folder, "owners/*.json")
    found["brought back"] = ((made / "1.json").read_text(), one.read_bytes())
    store.delete(folder / "trial")
    found["deleted"] = (store.stat(made), store.has_any(folder / "trial"), store.has_any(folder))
    return found


def test_the_worlds_store_does_what_s3_and_a_folder_do(bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The scene is the same in all three; the world's runs on virtual time."""
    found = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for protocol, name in (("s3", "bucket"), ("local", str(tmp_path / "stored").lstrip("/"))):
        folder = stores.paths._cache() / stores.FOLDER / protocol / name / "s"
        found.append(scene(stores.Store(protocol), folder, tmp_path / "cache"))
    kernel = Kernel(1)
    kernel.bucket = Bucket(kernel)
    with virtual(kernel, iter([stores.store])), stored(kernel, tmp_path / "world"):
        folder = stores.paths._cache() / stores.FOLDER / "world" / "bucket" / "s"
        process = kernel.process("driver", SimpleNamespace(cut_until=0.0, booted_s=0.0, ahead_s=0.0))
        call = functools.partial(scene, stores.Store("world"), folder, tmp_path / "world")
        kernel.spawn(process, lambda: found.append(call()), name="main")
        kernel.run(lambda: len(found) == 3, 120)
    kernel.close()
    assert found[0] == found[1] == found[2]

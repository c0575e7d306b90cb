"""The processes of `test_client`: a head with a Ray Client server, and a driver that is connected through it.

python -m tests.integration.client head PORT FOLDER
python -m tests.integration.client drive PORT FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil


def head(port: str, _folder: str) -> None:
    """Serve Ray Client on this machine's loopback interface alone, until standard input ends."""
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    node: Any = ray._private.worker._global_node
    # 30 s are too few on a loaded machine; and the server forks while gRPC runs, so that its fork handlers are off.
    os.environ.update(RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S="60", GRPC_ENABLE_FORK_SUPPORT="0")
    server = subprocess.Popen(  # what `ray start --head --ray-client-server-port` starts, but on 127.0.0.1 only
        [
            *(sys.executable, "-m", "ray.util.client.server", "--host=127.0.0.1", f"--port={port}"),
            *(f"--address={node.address}", f"--node-id={node.node_id}"),
            f"--runtime-env-agent-address={node.runtime_env_agent_address}",
        ],
        start_new_session=True,
    )
    try:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # with the server that each client has of its own
        server.wait(10)
        ray.shutdown()


def drive(port: str, folder: str) -> None:
    """Do with the client what a driver of the cluster's own does, and print what came of it as JSON."""
    import ray
    import torch

    import tunelight as tl
    from tunelight import errors
    from tunelight.compat.lightning import pl
    from tunelight.extras.digits import DigitsClassifier, DigitsData
    from tunelight.extras.standalone.pool import pool

    connect(f"ray://127.0.0.1:{port}")
    found: dict[str, Any] = {"connected": ray.util.client.ray.is_connected()}
    data = DigitsData()
    data.setup()
    images, labels = data.test.tensors

    def trainer(strategy: Any, **settings: Any) -> pl.Trainer:
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
        return pl.Trainer(
            max_epochs=4, accelerator="cpu", strategy=strategy, default_root_dir=folder, **{**quiet, **settings}
        )

    for kind in (tl.HorovodRayStrategy, tl.RayShardedStrategy, tl.RayStrategy):
        model = DigitsClassifier(lr=0.02)
        best = pl.callbacks.ModelCheckpoint(dirpath=Path(folder, kind.backend), monitor="val_loss")
        strategy = kind(num_workers=2)
        one = trainer(strategy, callbacks=[best])
        one.fit(model, datamodule=data)
        (states,) = strategy.optimizer_states()
        (tested,) = one.test(model, datamodule=data, verbose=False)
        predicted = torch.cat(one.predict(model, datamodule=data))  # type: ignore[arg-type]  # a list of tensors
        with torch.no_grad():
            here = model(images).argmax(dim=-1)
        workers = [psutil.Process(location.pid) for location in strategy._driver._held.gang.locations]  # type: ignore[union-attr]  # it has run
        if kind is tl.RayStrategy:
            found["interrupted"] = interrupt(trainer, strategy, data)
        strategy.shutdown()
        _, alive = psutil.wait_procs(workers, timeout=10)
        found[kind.backend] = {
            "right": float((here == labels).double().mean()),
            "tested": tested["test_acc"],
            "predictions equal the driver's": torch.equal(predicted, here),
            "states": len(states["state"]),
            "checkpoint": Path(best.best_model_path).is_file(),
            "workers": len(workers),
            "alive": len(alive),
            "idle": len(pool._idle),
        }
    groups = [group for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"]
    found["placement groups"] = len(groups)
    try:
        trainer(tl.RayStrategy(num_workers=9)).fit(DigitsClassifier(), datamodule=data)
    except errors.ResourceError as error:
        found["too many"] = str(error)
    try:
        tl.run({"model.lr": tl.loguniform(1e-4, 1e-1)}, model=DigitsClassifier, data=DigitsData, metric="val_loss")
    except errors.SettingsError as error:
        found["sweep"] = str(error)
    ray.shutdown()
    sys.stdout.write(json.dumps(found) + "\n")


def connect(address: str) -> None:
    """Connect to a head; Ray's own server for this client may die as it starts, and then says so."""
    import ray

    for left in (2, 1, 0):
        try:
            ray.init(address)
        except (ConnectionError, RuntimeError):
            if not left:
                raise
            ray.shutdown()
        else:
            return


def interrupt(trainer: Any, strategy: Any, data: Any) -> dict[str, Any]:
    """Press Ctrl-C in a fit that would take minutes; return what came, after how many seconds."""
    from tunelight.extras.digits import DigitsClassifier

    one = trainer(strategy)
    one.fit_loop.max_epochs = 10_000
    timer = threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    try:
        one.fit(DigitsClassifier(), datamodule=data)
    except BaseException as error:  # noqa: BLE001 - which it is, is the question
        return {"error": type(error).__name__, "seconds": time.monotonic() - began}
    return {"error": None, "seconds": time.monotonic() - began}


if __name__ == "__main__":
    {"head": head, "drive": drive}[sys.argv[1]](*sys.argv[2:])

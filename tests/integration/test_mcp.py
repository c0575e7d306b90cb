"""A program drives a live sweep through `tunelight mcp`, with the SDK's client over standard input and output."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import jsonschema  # type: ignore[import-untyped] # its stubs are a package of their own
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests import docs
from tunelight.machine.processes import is_running

pytestmark = [pytest.mark.integration, pytest.mark.apart]

TRAIN = """
import time
import tunelight as tl
print("a print of the user's code")
def train(config):
    path = tl.get_checkpoint_path()
    for epoch in range(int(open(path).read()) if path else 0, 200):
        time.sleep(0.2)
        tl.report({"loss": config["lr"] + 1 / (epoch + 1)}, lambda path: print(epoch + 1, file=open(path, "w")))
"""
SPACE = """
space: {lr: {uniform: [0, 1]}}
train: slow:train
metric: loss
num_samples: 2
max_epochs: 200
scheduler: fifo
workers: 1
cpus_per_worker: 0.5
"""


@pytest.mark.timeout(240)
def test_a_program_checks_plans_runs_watches_stops_and_exports(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(TRAIN)
    (tmp_path / "space.yaml").write_text(SPACE)
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "tunelight", "mcp", str(tmp_path)], env=dict(os.environ)
    )
    pids: list[int] = []

    async def drive() -> None:
        async with Client(stdio_client(server)) as client:

            async def ask(tool: str, /, *, refused: bool = False, **arguments: Any) -> Any:
                with anyio.fail_after(90):
                    answer = await client.call_tool(tool, arguments)
                text = answer.content[0].text  # type: ignore[union-attr]  # all answers are text
                assert bool(answer.is_error) is refused, text
                return text if refused else json.loads(text)

            assert (await ask("check", space="space.yaml"))["num_samples"] == 2
            assert await ask("plan", space="space.yaml", cluster="1x2", seconds_per_epoch=1)
            pids.append((await ask("run", space="space.yaml", name="first"))["pid"])
            seen = await ask("show", sweep="first")
            with anyio.fail_after(90):
                while not seen.get("best"):
                    await anyio.sleep(0.5)
                    changed = await ask("show", sweep="first", since=seen["since"])
                    assert changed["since"] >= seen["since"]
                    seen = changed
            assert seen["state"] == "running"
            assert (await ask("enqueue", sweep="first", config={"lr": 0.5}))["answer"]
            trial = seen["best_trial"]
            branched = (await ask("branch", sweep="first", trial=trial, config={"lr": 0.25}))["answer"]
            assert f"begins with the state of trial {trial} after report" in branched
            assert (await ask("stop", sweep="first", trial=trial))["answer"]
            assert (await ask("stop", sweep="first"))["answer"]
            with anyio.fail_after(90):
                while (await ask("show", sweep="first"))["state"] != "stopped":
                    await anyio.sleep(0.5)
            said = await ask("stop", refused=True, sweep="first")  # its driver has ended, or is about to
            assert "No process runs" in said or "ended before it was told to stop" in said
            assert (await ask("best", sweep="first", export="best.yaml"))["wrote"] == "best.yaml"
            pids.append((await ask("run", space="space.yaml", name="second", settings={"max_epochs": 2}))["pid"])
            with anyio.fail_after(90):
                while (await ask("show", sweep="second"))["state"] != "finished":
                    await anyio.sleep(0.5)
            with anyio.fail_after(60):
                while any(is_running(pid) for pid in pids):
                    await anyio.sleep(0.2)

    anyio.run(drive)
    assert (tmp_path / "best.yaml").exists()
    output = (tmp_path / ".tunelight-logs" / "second.log").read_text()
    schema = json.loads(docs.read("docs/output.schema.json"))
    printed = json.loads(output[output.rindex('{\n  "sweep"') :])
    jsonschema.validate(printed, {"$defs": schema["$defs"], **schema["properties"]["run"]})

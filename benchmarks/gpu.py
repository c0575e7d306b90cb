"""Trials on one GPU: how fast they train, how fast one follows another, and many gangs at once on the machine's CPUs.

  throughput  images a second of a vision transformer at full size (examples/vit_cifar10.py) in bf16: in a trial, in the
              same loop without Ray, and in that without DDP
  eager       seconds from one trial's last step to the next one's first: in a sweep, with a new process each
              (Lightning's ddp_spawn), and with Ray Train (needs ray[default] and pyarrow; not in a short run)
  compiled    the same with torch.compile
  gangs       trials a minute of gangs of two ranks on CPUs: one gang, and as many as there are pairs of cores, up to 8

The parts are measured one after another, tunelight and its peers in turn.

    python benchmarks/gpu.py                          # about 12 minutes on one GPU and 16 cores
    python benchmarks/gpu.py --only throughput,gangs
    python benchmarks/gpu.py --short                  # small, once, and without a GPU: does it all still run?
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from figures import headline, median, show, table
from gpu_vit import Vit
from measure import Peer, options, run_peer, said
from vit_cifar10 import SIZES

PARTS = ("throughput", "eager", "compiled", "gangs")
LIMIT_S = 500
NOT_LESS, TIMES_FASTER, MOST_GANGS = 0.98, 20, 8


def describe() -> str:
    """Return what is measured on: the GPU with its driver, and torch."""
    import torch

    here = f"{os.cpu_count()} cores, torch {torch.__version__}"
    if not torch.cuda.device_count():
        return f"no GPU, {here}: these figures say nothing about GPUs"
    # Not by torch, which would make a CUDA context in this process.
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "-i", "0"]
    name = ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        name = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60).stdout.strip()
    return f"{name.replace(', ', ', driver ') or 'a GPU of unknown name'}, {here}"


class PeerError(Exception):
    """A peer failed, or took too long."""


def build_job(folder: Path, *, short: bool, gpu: bool) -> Vit:
    """Return what is trained for the throughput."""
    size = SIZES["tiny" if short else "full"]
    steps, warmup, batch = (6, 2, 32) if short else (350, 50, size.batch)
    device = "cuda" if gpu else "cpu"
    return Vit(folder=str(folder), model=size.model, batch=batch, steps=steps, warmup=warmup, device=device)


def in_process(kind: str, job: Vit) -> list[dict[str, Any]]:
    """Run a peer that is no sweep, in a process of its own. Raises: PeerError with the end of its output."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "0" if job.device == "cuda" else "")
    run = run_peer(Peer(kind, "gpu_vit.py", kind, environment={"CUDA_VISIBLE_DEVICES": seen}), job, LIMIT_S)
    if run.error:
        raise PeerError(run.error)
    return run.trials


def in_sweep(job: Vit, workers: int = 1, at_once: int = 1) -> list[dict[str, Any]]:
    """Run the fits as the trials of a sweep."""
    import tunelight as tl

    def train(config: dict[str, Any]) -> None:
        from gpu_vit import fit

        fit(job, config["number"], strategy=tl.RayStrategy())
        tl.report({"loss": 1.0})

    results = tl.run(
        {"number": tl.grid_search(list(range(job.fits)))}, train, metric="loss", searcher="grid", scheduler="fifo",
        workers=workers, gpus_per_worker=int(job.device == "cuda"), max_concurrent=at_once,
        storage=Path(job.folder, "runs"), name="sweep", progress=False,
    )  # fmt: skip
    if failed := [trial for trial in results.trials if trial.state != "FINISHED"]:
        raise SystemExit(f"{len(failed)} trials failed, the first one: {failed[0].error}")
    return job.collect()


def throughput(job: Vit, repeats: int, *, short: bool) -> None:
    """Print images a second."""
    kinds = {"the same loop without Ray": "ddp", "that without DDP": "alone", "a trial": "trial"}
    if short:
        del kinds["that without DDP"]
    speeds: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(repeats):
        for name, kind in kinds.items():
            one = below(job, f"{kind}{number}")
            with said(f"throughput, {name}, run {number + 1}"):
                ended = in_sweep(one) if kind == "trial" else in_process(kind, one)
            speeds[name].append(ended[0]["speed"])
    base = median(speeds["the same loop without Ray"])
    lines = [[name, show(median(found), 0), show(median(found) / base, 3)] for name, found in speeds.items()]
    print(f"\nthroughput: ViT {job.model}, bf16-mixed, batch {job.batch}; medians of {repeats}.\n")
    print(table(["", "images/s", "ratio"], lines))
    if job.device == "cuda":
        ratio = median(speeds["a trial"]) / base
        headline("images a second, a trial / the same loop without Ray", ratio, of=f"n = {repeats}", least=NOT_LESS)


def turnaround(mode: str, job: Vit, *, short: bool) -> None:
    """Print the seconds from fit to fit."""
    peers = {"ddp_spawn": "spawn"}
    if not short and importlib.util.find_spec("opencensus") and importlib.util.find_spec("pyarrow"):
        peers["Ray Train"] = "ray_train"
    found: dict[str, float] = {}
    lines = []
    for name in ("tunelight", *peers):
        fits = 2 if short else 5 if name == "tunelight" else 3
        one = replace(below(job, f"{mode}-{name}".replace(" ", "-")), fits=fits)
        try:
            with said(f"{mode}, {name}"):
                ended = in_sweep(one) if name == "tunelight" else in_process(peers[name], one)
            if job.compiler and not ended[0]["graphs"]:
                raise PeerError("it compiled nothing")
        except PeerError as error:
            print(error, file=sys.stderr)
            lines.append([name, "failed", "-"])
            continue
        found[name] = median(later["first"] - earlier["last"] for earlier, later in pairwise(ended))
        if job.device == "cuda":
            what = f"{mode}: last step of a fit to the end of the next one's first, {name}"
            headline(what, found[name], "s", of=f"n = {len(ended) - 1}")
        lines.append([name, show(found[name], 3), show(found[name] / found["tunelight"], 1)])
    print(f"\n{mode}: from the last step of a fit to the end of the next one's first; medians.\n")
    print(table(["", "seconds", "times tunelight's"], lines))
    if "Ray Train" not in peers:
        print("Ray Train is left out: it needs ray[default] and pyarrow, and is not in a short run.")
    if job.device == "cuda" and job.compiler:
        others = [value for name, value in found.items() if name != "tunelight"]
        ratio = min(others, default=math.nan) / found["tunelight"]
        headline("compiled: the faster peer / tunelight", ratio, least=TIMES_FASTER, digits=1)


def gangs(job: Vit, each: int, *, short: bool) -> None:
    """Print trials a minute of one gang and of several."""
    many = max(2, min(MOST_GANGS, (os.cpu_count() or 1) // 2))
    rates = {}
    for count in (many,) if short else (1, many):
        with said(f"{count} gang(s) of two ranks"):
            ended = in_sweep(replace(below(job, f"gangs{count}"), fits=count * each), workers=2, at_once=count)
        seconds = ended[-1]["last"] - ended[count - 1]["last"]  # without the gangs' starts
        rates[count] = 60 * (len(ended) - count) / seconds
    headline(f"trials a minute of {many} gangs / of one, on CPUs", rates[many] / rates.get(1, math.nan))
    lines = [[str(count), show(rate, 1), show(rate / rates.get(1, math.nan), 2)] for count, rate in rates.items()]
    print(f"\ngangs of two ranks on CPUs, {os.cpu_count()} cores: trials of {job.steps} steps.\n")
    print(table(["gangs", "trials/min", "ratio"], lines))


def below(job: Vit, name: str) -> Vit:
    """Return a job in a folder of its own."""
    folder = Path(job.folder, name)
    folder.mkdir()
    return replace(job, folder=str(folder))


def main() -> int:
    """Measure what is asked for, and print tables."""
    few = tuple(part for part in PARTS if part != "eager")
    args = options(__doc__, "small, once, and on CPUs where there is no GPU", rows=PARTS, few=few, repeats=3)
    import torch

    gpu = torch.cuda.device_count() > 0  # makes no CUDA context in this process
    if not gpu and not args.short:
        raise SystemExit("torch sees no GPU here; with --short everything runs on CPUs, and says nothing about GPUs")
    import ray

    cpus = max(4, os.cpu_count() or 1)
    ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    print(describe())
    with tempfile.TemporaryDirectory(prefix="gpu-") as parent:
        job = build_job(Path(parent), short=args.short, gpu=gpu)
        if "throughput" in args.only:
            throughput(job, args.repeats, short=args.short)
        brief = replace(job, steps=3, warmup=2)
        if "eager" in args.only:
            turnaround("eager", brief, short=args.short)
        if "compiled" in args.only:
            compiler = "aot_eager" if args.short else "inductor"
            turnaround("compiled", replace(brief, compiler=compiler), short=args.short)
        if "gangs" in args.only:
            small = replace(job, model=SIZES["tiny"].model, batch=16, steps=6 if args.short else 100, device="cpu")
            gangs(small, 2 if args.short else 6, short=args.short)
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A Horovod gang without Ray: ``python -m tests.cluster.late LATE_S LAYOUT``, its last rank coming so late.

Prints what an all-reduce of the ranks' numbers gives each, and how the processes ended.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from typing import Any

from tunelight.gang.meeting.group import Meeting
from tunelight.gang.meeting.rendezvous import Rendezvous
from tunelight.machine.network import addresses
from tunelight.messages import Place

HOROVODS_PATIENCE_S = 4


def own_address() -> str:
    """Return an address of this machine that is not the loopback interface's, where it has one."""
    found = [address for name, held in addresses().items() if name != "lo" for address in held if ":" not in address]
    return found[0] if found else "127.0.0.1"


def places(layout: tuple[int, ...], address: str) -> list[Place]:
    """Return the ranks' places, by node."""
    found: list[Place] = []
    for node, ranks in enumerate(layout):
        found += [Place(len(found) + local, sum(layout), local, ranks, node, address) for local in range(ranks)]
    return found


def be(place: Place, late_s: float, layout: tuple[int, ...], ports: Any, done: Any) -> None:
    """Be one rank."""
    meetings = Rendezvous()
    if place.rank == 0:
        found = meetings.host(place.interface, "horovod", layout)
        for _ in range(place.world_size - 1):
            ports.put(found)
    else:
        found = ports.get()
    if place.rank == place.world_size - 1:
        time.sleep(late_s)
    meetings.join(Meeting(place.interface, found[0], "horovod", layout, found[1]), place)
    import horovod.torch as hvd
    import torch

    total = hvd.allreduce(torch.full((3,), float(place.rank)), op=hvd.Sum)
    print(f"rank {place.rank}: {total[0]:g}", flush=True)  # noqa: T201 - read by a test
    done.wait()
    meetings.close()


def main(late_s: float, layout: tuple[int, ...]) -> None:
    os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(HOROVODS_PATIENCE_S)
    spawn = multiprocessing.get_context("spawn")
    ports, done = spawn.Queue(), spawn.Barrier(sum(layout))
    ranks = [
        spawn.Process(target=be, args=(place, late_s, layout, ports, done)) for place in places(layout, own_address())
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
        rank.kill()
        rank.join()
    print("ended with", [rank.exitcode for rank in ranks])  # noqa: T201 - as above


if __name__ == "__main__":
    main(float(sys.argv[1]), tuple(int(ranks) for ranks in sys.argv[2].split(",")))

"""The world's Ray does what Ray does: one scene with actors, tasks, references and placement groups, in both."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ray.exceptions import GetTimeoutError, RayActorError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tests.world.kernel import Kernel, virtual
from tests.world.rays import Rays, forget


class Counter:
    def __init__(self, start: int = 0) -> None:
        if start < 0:
            raise ValueError("too small")
        self.number = start

    def add(self, more: int = 1) -> int:
        self.number += more
        return self.number

    def extend(self, given: list[int]) -> list[int]:
        given.append(self.number)
        return given

    def fail(self) -> None:
        raise KeyError("no such key")

    def rest(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds


def error_of(call: Callable[[], object]) -> str:
    """Return the kind of error that a call raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
        kinds = (GetTimeoutError, RayActorError, KeyError, ValueError)
        return next((kind.__name__ for kind in kinds if isinstance(error, kind)), repr(error))
    return "none"


def scene(ray: Any) -> dict[str, object]:
    """Return what comes of one call after the other."""
    cls = ray.remote(num_cpus=0)(Counter)
    one, group = cls.remote(5), ray.placement_group([{"CPU": 1}, {"CPU": 1}])
    too_large = ray.placement_group([{"CPU": 1}] * 9)
    mine, found = [1], dict[str, object]()
    found["in order"] = ray.get([one.add.remote() for _ in range(3)])
    found["a copy"] = (ray.get(one.extend.remote(mine)), mine)
    found["a reference"] = ray.get(one.add.remote(ray.put(10)))
    found["its own error"] = error_of(lambda: ray.get(one.fail.remote()))
    found["after an error"] = ray.get(one.add.remote())
    late = one.rest.remote(3.0)
    found["out of time"] = error_of(lambda: ray.get(late, timeout=0.2))
    found["not ready"] = len(ray.wait([late], timeout=0.2)[0])
    both = cls.options(max_concurrency=2).remote()
    ray.get(both.add.remote())
    long, short = both.rest.remote(8.0), both.rest.remote(0.1)
    found["side by side"] = ray.wait([long, short], timeout=6)[0] == [short]
    ray.kill(both)
    found["killed while it answers"] = error_of(lambda: ray.get(long))
    found["killed before"] = error_of(lambda: ray.get(both.add.remote()))
    found["cannot be made"] = error_of(lambda: ray.get(cls.remote(-1).add.remote()))
    found["all or nothing"] = (group.wait(20), too_large.wait(1))
    place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=1)
    inside = ray.remote(num_cpus=1)(Counter).options(scheduling_strategy=place).remote()
    found["in its bundle"] = ray.get(inside.add.remote())
    ray.remove_placement_group(group)
    ray.remove_placement_group(too_large)
    time.sleep(2.0)
    found["its reservation is gone"] = error_of(lambda: ray.get(inside.add.remote()))
    for actor in (one, both):
        ray.kill(actor)
    return found


def test_a_scene_is_the_same_in_ray_and_in_the_world(ray4: Any) -> None:
    names = ("placement_group", "remove_placement_group")
    of_ray = SimpleNamespace(
        **{name: getattr(ray4, name) for name in ("remote", "get", "put", "wait", "kill")},
        **{name: getattr(ray4.util, name) for name in names},
    )
    kernel, found = Kernel(1), list[dict[str, object]]()
    forget()
    world = Rays(kernel, [4.0])
    driver = kernel.process("driver", world.nodes_alive()[0])
    kernel.spawn(driver, lambda: found.append(scene(world)), name="main")
    with virtual(kernel, iter([sys.modules[__name__]])):
        kernel.run(lambda: bool(found), 120)
    kernel.close()
    assert found == [scene(of_ray)]

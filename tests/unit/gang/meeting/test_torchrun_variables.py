"""What a gang's ranks tell libraries that are used to torchrun."""

from __future__ import annotations

import dataclasses
from typing import Any

from tunelight.gang.meeting.group import Meeting
from tunelight.gang.meeting.rendezvous import torchrun_variables
from tunelight.messages import Place

MEETING = Meeting("10.1.0.4", 4321, "gloo", layout=(2, 1))
LAST = Place(rank=2, world_size=3, local_rank=0, local_world_size=1, node_rank=1, interface="10.1.0.4")


def test_a_rank_is_told_its_place_and_the_gangs_store_as_by_torchrun():
    told = torchrun_variables(MEETING, LAST, {"RANK": "5", "WORLD_SIZE": "8"})  # a driver's own launcher
    assert told == {
        "RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "ROLE_RANK": "2", "ROLE_WORLD_SIZE": "3",
        "MASTER_ADDR": "10.1.0.4", "MASTER_PORT": "4321",
        "TORCHELASTIC_RUN_ID": "tunelight", "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
        "ACCELERATE_USE_CPU": "true",
    }  # fmt: skip


def test_a_gang_of_one_does_not_claim_that_its_group_is_made_from_outside():
    told = torchrun_variables(MEETING, Place(0, 1, 0, 1, 0, "10.1.0.4"), {})
    assert (told["RANK"], told["WORLD_SIZE"], told["MASTER_PORT"]) == ("0", "1", "4321")
    assert not [name for name in told if name.startswith("TORCHELASTIC")]


def test_accelerate_is_told_of_cpus_where_it_would_train_each_rank_alone():
    def told(**changes: Any) -> str:
        return torchrun_variables(MEETING, dataclasses.replace(LAST, **changes), {})["ACCELERATE_USE_CPU"]

    assert (told(gpu=0), told(world_size=1), told()) == ("false", "false", "true")
    assert torchrun_variables(MEETING, LAST, {"ACCELERATE_USE_CPU": "0"})["ACCELERATE_USE_CPU"] == "0"

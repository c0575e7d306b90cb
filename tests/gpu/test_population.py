"""GangPBT hands weights from GPU to GPU."""

from __future__ import annotations

import tunelight as tl
from tests.gpu.training import member
from tests.kit.training import notes
from tunelight.record import read_record


def test_a_member_adopts_a_gigabyte_from_another_on_the_same_gpu(sweep, device, figure):
    width = device.number(2**14, 2**9)
    space = {"lr": tl.loguniform(1e-6, 10), "width": tl.choice([width]), "device": tl.choice([device.kind])}
    pbt = tl.GangPBT(perturbation_interval=2, resample_probability=0.0, max_t=6, max_lead=1)
    configs = [{"lr": rate, "width": width, "device": device.kind} for rate in (1e-4, 1.0)]  # its loss
    results = sweep(space, member, configs, scheduler=pbt, max_concurrent=2, **device.each(0.5))
    assert [trial.state for trial in results.trials] == ["FINISHED"] * 2, results.trials[1].error
    assert results.trials[1].changes
    assert "starts anew" not in str(read_record(results.folder).notes)
    seconds = [one["seconds"] for one in notes(results.trials[1], "adopted")[0]]
    assert seconds
    figure(f"GangPBT: {4 * width**2 / 2**30:.3f} GB adopted from another process in {min(seconds):.3f} s")

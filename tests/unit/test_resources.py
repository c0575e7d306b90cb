"""Reservations: two spellings, one meaning; and whether a cluster could ever hold one."""

from __future__ import annotations

from typing import Any

import pytest

from tunelight.errors import ResourceError, SettingsError
from tunelight.extras.plain_tune import get_tune_resources
from tunelight.resources import check_fits, fitted, reserve


def test_the_two_spellings_are_one_reservation_in_which_the_head_holds_nothing_unless_asked() -> None:
    assert reserve(workers=4) == reserve(resources_per_trial={"extra_cpu": 4})
    assert reserve(workers=4, gpus_per_worker=1) == reserve(
        gpus_per_worker=1, resources_per_trial={"extra_cpu": 4, "extra_gpu": 4}
    )
    assert reserve().workers == 1
    assert reserve(workers=2).bundles == [{"CPU": 1.0}, {"CPU": 1.0}]
    assert reserve(workers=2, cpus_per_worker=0.5).bundles == [{"CPU": 0.5}] * 2
    old = reserve(workers=2, resources_per_trial={"cpu": 1, "extra_cpu": 2})
    assert old.bundles == [{"CPU": 1.0}] * 3
    assert (reserve(workers=2).first_bundle, old.first_bundle) == (0, 1)


def test_tune_resources_for_plain_tune() -> None:
    factory = get_tune_resources(2, 3, use_gpu=True, resources_per_worker={"tpu_slice": 1})
    assert factory.bundles == [{"CPU": 3.0, "GPU": 1.0, "tpu_slice": 1.0}] * 2
    with pytest.raises(SettingsError, match="1 or more"):
        get_tune_resources(0)
    with pytest.raises(SettingsError, match=r"resources_per_worker\['GPU'\] must be 0, 1 or a part of one, not 2"):
        get_tune_resources(resources_per_worker={"GPU": 2})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cpus_per_worker": 2, "resources_per_trial": {"extra_cpu": 5}}, "no multiple"),
        (
            {"resources_per_trial": {"extra_custom_resources": {"HPU": 2}}, "workers": 2},
            r"cannot train on HPU, of which 1 .*NVIDIA's GPUs \(CUDA\)",
        ),
        ({"resources_per_trial": {"extra_custom_resources": {"GPU": 2}}}, "say gpus_per_worker=1, or extra_gpu"),
    ],
)
def test_what_contradicts_itself_or_cannot_train_is_not_reserved(given: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        reserve(**given)


def test_a_gang_that_can_never_fit_says_the_numbers_also_where_only_the_sum_would() -> None:
    check_fits(reserve(workers=4, cpus_per_worker=2), [{"CPU": 4}, {"CPU": 5}])
    with pytest.raises(ResourceError, match=r"5 CPU \(there are 4\)"):
        check_fits(reserve(workers=5), [{"CPU": 4}])
    with pytest.raises(ResourceError, match="largest has 2 CPU"):
        check_fits(reserve(workers=1, cpus_per_worker=3), [{"CPU": 2}, {"CPU": 2}])


def test_an_elastic_gang_is_as_large_as_the_cluster_holds_and_a_resized_one_reserves_what_it_starts_with() -> None:
    elastic = reserve(workers=(1, 4))
    assert (elastic.least, elastic.workers) == (1, 4)
    assert fitted(elastic, [{"CPU": 8}]) == elastic
    smaller = fitted(elastic, [{"CPU": 2}, {"CPU": 1}])
    assert (smaller.workers, smaller.most, len(smaller.bundles)) == (3, 4, 3)
    with pytest.raises(ResourceError, match="needs 2 workers"):
        fitted(reserve(workers=(2, 4)), [{"CPU": 1}])
    with pytest.raises(ResourceError, match="needs 4 workers"):
        fitted(reserve(workers=4), [{"CPU": 3}])
    first = reserve(workers=(2, 8)).starting(2)
    assert (first.workers, first.least, first.most) == (2, 2, 8)
    assert len(first.bundles) == 2
    assert fitted(first, [{"CPU": 3}]) == first


@pytest.mark.parametrize(("workers", "start"), [((2, 8), 1), ((2, 8), 9), (4, 2)])
def test_a_start_that_the_gang_cannot_have_is_refused(workers: Any, start: int) -> None:
    with pytest.raises(SettingsError, match=r"cannot start with \d\. Give workers=\(least, most\)"):
        reserve(workers=workers).starting(start)

"""What ASHA's rungs are counted by: epochs, samples or seconds."""

from __future__ import annotations

import pytest

from tests.unit.schedulers.test_asha import CONTINUE, STOP, TUNE, add, make_asha
from tunelight.errors import SettingsError
from tunelight.messages import Continue


@pytest.mark.parametrize(
    ("unit", "name"), [("epochs", "training_iteration"), ("samples", "samples"), ("seconds", "time_total_s")]
)
def test_a_unit_says_what_progress_is_counted_by(unit, name):
    asha = make_asha(unit=unit, max_t=100, grace_period=10)
    first, second = add(asha, "a"), add(asha, "b")
    assert asha.on_trial_result(TUNE, first, {name: 10, "loss": 0.1}) == CONTINUE
    assert asha.on_trial_result(TUNE, second, {name: 9.9, "loss": 0.9}) == CONTINUE
    assert asha.on_trial_result(TUNE, second, {name: 12, "loss": 0.9}) == STOP


def test_a_unit_and_another_time_attr_contradict():
    assert make_asha(unit="seconds", time_attr="time_total_s").initial_decision() == Continue(until=1)
    with pytest.raises(SettingsError, match="unit='samples', which counts 'samples', and time_attr='steps'"):
        make_asha(unit="samples", time_attr="steps")
    with pytest.raises(SettingsError, match=r"is 'sample'. Did you mean 'samples'"):
        make_asha(unit="sample")

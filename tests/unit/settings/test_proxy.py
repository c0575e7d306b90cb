"""The setting ``proxy``."""

from __future__ import annotations

from typing import Any

import pytest

from tunelight.errors import SettingsError
from tunelight.settings import Settings
from tunelight.settings.checks import plain_setting
from tunelight.settings.proxy import Proxy


def settled(proxy: Any) -> Proxy | None:
    return Settings(proxy=proxy).proxy


def test_a_proxy_is_values_and_how_many_of_the_best_are_trained_in_full():
    given = settled({"model.width": 64, "top": 3, "workers": [1, 2]})
    assert given == Proxy({"model.width": 64}, 3, (1, 2))
    assert plain_setting(given) == {"model.width": 64, "top": 3, "workers": [1, 2]}
    assert settled(plain_setting(given)) == given
    assert settled({"data.share": 0.1}) == Proxy({"data.share": 0.1})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (64, "proxy must be a dict"),
        ({"top": 3}, "proxy says nothing of what makes its trials cheaper"),
        ({"model.width": 64, "top": 0}, "proxy: top must be a whole number of 1 or more"),
        ({"model.width": 64, "workers": "all"}, "proxy: workers must be a whole number"),
        ({"model.width": [32, 64]}, r"proxy holds 'model.width': \[32, 64\]"),
    ],
)
def test_what_is_no_proxy_is_refused(wrong: Any, said: str):
    with pytest.raises(SettingsError, match=said):
        settled(wrong)

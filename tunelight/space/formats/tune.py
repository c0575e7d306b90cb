"""Ray Tune's param_space: a dict of its domains, lists under grid_search, and constants, nested as it likes.

https://docs.ray.io/en/latest/tune/api/search_space.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def read(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the domains of a param_space; its constants, of whatever kind, are fixed."""
    return _read(given), {}


def _read(given: Mapping[str, Any]) -> dict[str, Any]:
    from ray.tune.search.sample import Domain  # a second, and reading the other formats needs none

    domains: dict[str, Any] = {}
    for key, value in given.items():
        if isinstance(value, Domain) or (isinstance(value, Mapping) and value.keys() == {"grid_search"}):
            domains[key] = value
        elif isinstance(value, Mapping) and value:
            domains[key] = _read(value)
        else:
            domains[key] = {"fixed": value}
    return domains

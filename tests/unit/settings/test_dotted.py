"""Configurations by dotted key."""

from __future__ import annotations

from tunelight.settings.checks import flatten, holder_of


def test_values_by_dotted_key() -> None:
    assert flatten({"a": {"b": {"c": 1}}, "d.e": 2, "f": {}}) == {"a.b.c": 1, "d.e": 2, "f": {}}
    assert flatten({"a": 1}, "config.") == {"config.a": 1}


def test_the_dict_that_holds_a_key() -> None:
    config = {"a": {"b": 1}, "c.d": 2}
    assert holder_of(config, "a.b") == (config["a"], "b")
    assert holder_of(config, "c.d") == (config, "c.d")
    assert holder_of(config, "x.y") == (config, "x.y")

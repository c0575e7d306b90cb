"""From a sweep's settings to a searcher object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunelight.errors import SettingsError, guess

if TYPE_CHECKING:
    from ray.tune.search import Searcher

    from tunelight.settings import Settings
    from tunelight.space import SearchSpace


def build_searcher(space: SearchSpace, settings: Settings) -> Searcher:
    """Return the searcher that the settings name. Raises: SettingsError for an unknown one."""
    from ray.tune.search import Searcher  # noqa: PLC0415

    from tunelight.searchers import RandomSearcher  # noqa: PLC0415

    given = settings.searcher
    if given == "random":
        return RandomSearcher(space, settings.seed or 0, settings.metric, settings.mode)
    if isinstance(given, Searcher):
        if space.when or space.require:
            raise SettingsError(
                f"The searcher {type(given).__name__} knows neither conditions nor constraints, and the search space "
                f"has {'`when` of ' + ', '.join(space.when) if space.when else '`require`'}. Use one of tunelight's "
                "own, searcher='random', or leave them out."
            )
        given.set_search_properties(settings.metric, settings.mode, dict(space.domains))
        return given
    raise SettingsError(
        f"There is no searcher {given!r}.{guess(given, ['random'])} There is 'random', or pass a Ray Tune Searcher."
    )

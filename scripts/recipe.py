"""Write conda-forge's recipe of what pyproject.toml says: recipe/recipe.yaml, which builds from this checkout.

Run it after a change of pyproject.toml; a test compares. With the path of an sdist it prints the recipe for a
feedstock, whose source is PyPI's copy of that sdist.
"""

from __future__ import annotations

import hashlib
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipe" / "recipe.yaml"
PACKAGES: Final[dict[str, tuple[Sequence[str], Sequence[str]]]] = {
    "jsonargparse[signatures]": (["jsonargparse"], ["docstring_parser", "typeshed-client"]),
    "ray[client,tune]": (["ray-client", "ray-tune"], []),
    "torch": (["pytorch"], []),
}
"""What conda-forge has in place of a package of PyPI: packages of its version, and others."""
_TEXT = """\
# Written by scripts/recipe.py from pyproject.toml. A feedstock adds its maintainers: extra/recipe-maintainers.
schema_version: 1

context:
  version: "{version}"
  python_min: "{python}"

package:
  name: {name}
  version: ${{{{ version }}}}

source:
{source}

build:
  number: 0
  noarch: python
  script: ${{{{ PYTHON }}}} -m pip install . -vv --no-deps --no-build-isolation
  python:
    entry_points:
{scripts}

requirements:
  host:
    - python ${{{{ python_min }}}}.*
    - pip
{build}
  run:
    - __linux
    - python >=${{{{ python_min }}}}
{run}

tests:
  - python:
      imports:
        - {name}
      pip_check: true
      python_version: ${{{{ python_min }}}}.*
  - script:
      - {name} --version

about:
  homepage: https://pypi.org/project/{name}/
  summary: {summary}
  license: {license}
  license_file: {license_file}
"""


def recipe(pyproject: dict[str, Any], sdist: Path | None = None) -> str:
    """Return the recipe of a project, whose source is the checkout, or PyPI's copy of the ``sdist``."""
    project = pyproject["project"]
    source = "path: .."
    if sdist is not None:
        where = f"https://pypi.org/packages/source/{project['name'][0]}/{project['name']}"
        url = f"{where}/{project['name']}-${{{{ version }}}}.tar.gz"
        source = f"url: {url}\n  sha256: {hashlib.sha256(sdist.read_bytes()).hexdigest()}"
    return _TEXT.format(
        **{key: project[key] for key in ("name", "version", "license")},
        python=project["requires-python"].removeprefix(">="),
        summary=project["description"],
        license_file=project["license-files"][0],
        source=f"  {source}",
        scripts=_listed((f"{name} = {target}" for name, target in project["scripts"].items()), 6),
        build=_listed(packages(pyproject["build-system"]["requires"]), 4),
        run=_listed(packages(project["dependencies"]), 4),
    )


def packages(requirements: Sequence[str]) -> list[str]:
    """Return conda-forge's names of requirements, with their versions, by the alphabet.

    Raises: ValueError for a requirement with extras or a marker of which `PACKAGES` knows nothing.
    """
    found = []
    for requirement in map(Requirement, requirements):
        wanted = f"{requirement.name}[{','.join(sorted(requirement.extras))}]".removesuffix("[]")
        if wanted not in PACKAGES and (requirement.extras or requirement.marker):
            raise ValueError(f"scripts/recipe.py lacks conda-forge's packages for {requirement}: add them to PACKAGES")
        version = ",".join(sorted(map(str, requirement.specifier), key=_order))
        names, others = PACKAGES.get(wanted, ([requirement.name.lower()], []))
        found += [*(f"{name} {version}".strip() for name in names), *others]
    return sorted(found)


def _order(clause: str) -> tuple[int, str]:
    """Sort a version's clauses: from the lowest to the highest, then those that are left out."""
    return "><~=!".index(clause[0]), clause


def _listed(entries: Any, indent: int) -> str:
    return "\n".join(f"{' ' * indent}- {entry}" for entry in entries)


def main(arguments: Sequence[str]) -> None:
    """Write the recipe, or print that of an sdist."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    if arguments:
        print(recipe(pyproject, Path(arguments[0])), end="")
    else:
        RECIPE.write_text(recipe(pyproject))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Test tunelight with other versions of what it stands on, each set of them in an environment of its own.

    python scripts/matrix.py                        # every row but "pre-releases"
    python scripts/matrix.py --short                # the row "lowest", with fewer unit tests
    python scripts/matrix.py --rows ray-2.43,py3.13

A row runs unit tests, the demo with a few trials, and four live tests: one of a warm gang, of a fault, of a plain
Tuner and of a Trainer outside a sweep. Environments are kept in build/matrix by the hash of what they were asked for.
They are built as `make setup` builds .venv (scripts/install.py), so that a CPU build of torch is taken where pip is
offered one. A row of another Python is left out where there is no such Python.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from install import PIP, install, read_config

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "matrix"
NAME_ENDS = r"[<>=!\[]"
"""Where the name of a package ends in a requirement."""
LIMIT_S = 1800
"""How long a row's unit tests, demo or live tests may take."""

TEST_PACKAGES = ("pytest", "hypothesis", "pytest-timeout", "pytest-xdist", "jsonschema", "lightning")
"""What the tests import beside tunelight, the second package of Lightning too; with the ranges of the extra `dev`."""
UNIT = ("compat", "searchers", "lightning", "trial", "schedulers", "world", "gang", "results", "sweep", "session")
"""Folders of tests/unit, by how near they are to other libraries; a short run takes the first of them."""
SHORT_UNIT = 4
LIVE = {
    "warm": "tests/integration/test_warm.py::test_a_plain_trial_after_a_messy_stopped_one_is_as_on_a_fresh_gang",
    "fault": "tests/chaos/test_faults.py::test_a_rank_is_replaced_and_the_trial_is_the_undisturbed_one[ddp-faults0]",
    "tune": "tests/integration/test_plain_tune.py::test_a_tuner_with_rays_own_asha_runs_to_its_end",
    "alone": "tests/integration/test_strategies.py::test_what_a_run_leaves_is_as_in_one_process[RayStrategy]",
}
PARALLEL = ("-n", "2", "--dist", "loadfile")
"""How unit tests run: on two cores, those of a file in one process."""
SHOWN = ("torch", "ray", "pytorch-lightning", "optuna", "numpy", "pandas")
"""Packages whose versions the table gives."""


@dataclass(frozen=True)
class Row:
    """A set of versions: pins beside the ranges of pyproject.toml, and how uv chooses within them."""

    pins: Sequence[str] = ()
    python: str = "3.11"
    lowest: bool = False
    lightning: str = "pytorch_lightning"
    """Which package of Lightning the tests and the demo train with."""
    ahead: Sequence[str] = ()
    """Requirements that replace those of all packages and admit pre-releases."""


def _lightning(minor: str) -> list[str]:
    return [f"{name}=={minor}.*,!=2.6.2,!=2.6.3" for name in ("pytorch-lightning", "lightning")]


ROWS: Mapping[str, Row] = {
    # tensorboard's server imports pkg_resources before 2.21. With the package that no other test of a short run takes.
    "lowest": Row(["setuptools>=75,<82"], lowest=True, lightning="lightning"),
    "newest": Row(),
    "ray-2.43": Row(["ray==2.43.*"]),
    "ray-2.49": Row(["ray==2.49.*"]),
    "ray-2.54": Row(["ray==2.54.*"]),
    **{
        f"{package.replace('_', '-')}-{minor}": Row(_lightning(minor), lightning=package)
        for minor in ("2.5", "2.6")
        for package in ("pytorch_lightning", "lightning")
    },
    "optuna-4": Row(["optuna==4.*"]),
    "py3.12": Row(python="3.12"),
    "py3.13": Row(python="3.13"),
    # What users will have next, without the upper bounds of pyproject.toml. pip is to be told where torch and Ray have
    # their nightly builds, as nightly.yml does; PyPI has neither.
    "pre-releases": Row(
        ahead=[
            "ray[client,data,tune]",
            *(f"{name}!=2.6.2,!=2.6.3" for name in ("pytorch-lightning", "lightning")),
            "torch",
            "optuna",
        ]
    ),
}

REQUIRED = tuple(name for name, row in ROWS.items() if not row.ahead)
"""Rows that must pass, and run where none are named."""
WITH_TORCH_OF_THEIR_OWN = ("lowest", "newest", "pre-releases")
"""Rows that take torch as the index has it, with CUDA's libraries, where a CPU build would be another version."""


@dataclass
class Outcome:
    """What came of a row: versions, tests, the demo, seconds and size."""

    row: str
    versions: dict[str, str] = field(default_factory=dict)
    unit: tuple[int, int] = (0, 0)
    """Tests that passed, and that failed."""
    live: dict[str, str] = field(default_factory=dict)
    built_s: float = 0.0
    seconds: float = 0.0
    mb: int = 0
    error: str = ""

    @property
    def good(self) -> bool:
        """Tell whether everything ran and passed."""
        ran = self.unit[0] > 0 and {"demo", *LIVE} <= self.live.keys()
        return ran and not self.unit[1] and not self.error and set(self.live.values()) == {"ok"}


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as a table in Markdown."""
    heads = ["row", "python", *SHOWN, "unit", "demo", *LIVE, "build s", "tests s", "MB"]
    lines = [heads, ["---"] * len(heads)]
    for one in outcomes:
        passed, failed = one.unit
        unit = f"{passed} passed" + (f", {failed} failed" if failed else "")
        cells = [one.row, *(one.versions.get(name, "-") for name in ("python", *SHOWN)), unit]
        cells += [one.live.get(name, "-") for name in ("demo", *LIVE)]
        lines.append([*cells, f"{one.built_s:.0f}", f"{one.seconds:.0f}", str(one.mb)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# --- environments -----------------------------------------------------------------------------------------


def requirements(row: Row, cpu_torch: str | None = None) -> list[str]:
    """Return what an environment is asked for, beside tunelight itself."""
    dev = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    tests = [entry for entry in dev if re.split(NAME_ENDS, entry)[0] in TEST_PACKAGES]
    return [*tests, *row.pins, *([f"torch=={cpu_torch}"] if cpu_torch else [])]


def environment_key(row: Row, wanted: Sequence[str]) -> str:
    """Return a hash of all that decides what an environment holds, but for what is published since."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [project["dependencies"], project["optional-dependencies"], list(wanted), row.python, row.lowest]
    asked += row.ahead
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


def interpreter(version: str) -> str | None:
    """Return a Python of that minor version: this one, one on PATH, or one of pyenv's; None where there is none."""
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)]
    for place in filter(None, (shutil.which(f"python{version}"), *places)):
        # pyenv puts a program on PATH for every version, which fails where another is chosen.
        if subprocess.run([place, "-c", ""], capture_output=True, check=False).returncode == 0:
            return place
    return None


def cpu_torch(python: str) -> str | None:
    """Return the version of the newest CPU build of torch for a Python in the folders that pip is told of, if any."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True).stdout
    folders = [Path(place) for place in read_config(listed).get("find-links", "").split() if "://" not in place]
    tag = f"cp{python.replace('.', '')}"
    wheels = [path.name for folder in folders for path in folder.glob(f"torch-*+cpu-{tag}-*.whl")]
    found = [wheel.split("-")[1] for wheel in wheels]
    return max(found, key=lambda version: [int(part) for part in version.split("+")[0].split(".")], default=None)


def build(name: str, row: Row, *, cpu: bool, fresh: bool) -> Path:
    """Return the row's environment, made unless one of the same requirements is there; RuntimeError if uv fails."""
    wanted = requirements(row, cpu_torch(row.python) if cpu else None)
    folder = BUILD / (f"{name}-cpu" if cpu and name in WITH_TORCH_OF_THEIR_OWN else name)
    key = environment_key(row, wanted)
    mark = folder / "requirements.key"
    if not fresh and mark.exists() and mark.read_text() == key:
        return folder
    python = interpreter(row.python)
    assert python is not None  # the caller left such rows out
    subprocess.run([python, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    arguments = ["--quiet", *wanted, *(["--resolution", "lowest-direct"] if row.lowest else []), *ahead(row, folder)]
    if install(folder / "bin" / "python", [*arguments, "--editable", f"{ROOT}[data,demo]"]) != 0:
        raise RuntimeError(f"uv did not install into {folder}")
    mark.write_text(key)
    return folder


def ahead(row: Row, folder: Path) -> list[str]:
    """Return uv's options for what a row takes ahead of pyproject.toml's ranges, written into a file in a folder."""
    if not row.ahead:
        return []
    overrides = folder / "overrides.txt"
    overrides.write_text("".join(f"{requirement}\n" for requirement in row.ahead))
    names = [re.split(NAME_ENDS, requirement)[0] for requirement in row.ahead]
    return ["--overrides", str(overrides), *(f"--prerelease-package={name}=allow" for name in names)]


def size_mb(folder: Path) -> int:
    """Return what an environment takes on disk, in MB."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) // 1_000_000


# --- running ----------------------------------------------------------------------------------------------


def pytest(
    row: Row, python: Path, env: Mapping[str, str], tests: Sequence[str], report: Path, *options: str
) -> ET.Element | None:
    """Run tests with a row's Lightning, and return pytest's report of them; None where pytest itself failed.

    Warnings are no errors here: older libraries warn of one another.
    """
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-q", "-W", "default", "-p", "no:cacheprovider", "-m", "not slow", "-k"]
    command += ["not horovod and not Horovod", f"--junitxml={report}", "--timeout=300", *options]
    command += ["--lightning", row.lightning, *tests]
    with report.with_suffix(".log").open("w") as log:
        subprocess.run(command, cwd=ROOT, env=env, stdout=log, stderr=log, check=False, timeout=LIMIT_S)
    return ET.parse(report).getroot() if report.exists() else None  # noqa: S314 - pytest's own


def run(name: str, row: Row, *, short: bool, fresh: bool) -> Outcome:
    """Build a row's environment, and run its tests."""
    one, began = Outcome(name), time.monotonic()
    try:
        folder = build(name, row, cpu=short or name not in WITH_TORCH_OF_THEIR_OWN, fresh=fresh)
    except (RuntimeError, subprocess.CalledProcessError) as error:
        one.error = f"no environment: {error}"
        return one
    one.built_s, began = time.monotonic() - began, time.monotonic()
    one.mb, python = size_mb(folder), folder / "bin" / "python"
    one.versions = versions(python)
    logs = BUILD / f"{name}-logs"
    logs.mkdir(exist_ok=True)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    env.pop("CI", None)  # with it a skipped test is a failed one, and tests of extras are skipped here
    try:
        parallel = () if short else PARALLEL
        unit = pytest(row, python, env, unit_tests(row, short=short), logs / "unit.xml", *parallel)
        live = pytest(row, python, env, list(LIVE.values()), logs / "live.xml")
        one.live["demo"] = "ok" if demo(row, python, env, logs) else "FAILED"
    except subprocess.TimeoutExpired as error:
        one.error = f"{error.cmd[:3]} took longer than {LIMIT_S} s"
        return one
    if unit is None or live is None:
        one.error = f"pytest did not run: see {logs}"
        return one
    states = [_failed(case) for case in unit.iter("testcase") if case.find("skipped") is None]
    one.unit = (states.count(False), states.count(True))
    ended = {str(case.get("name")): _failed(case) for case in live.iter("testcase")}
    for title, test in LIVE.items():
        failed = ended.get(test.rpartition("::")[2])
        one.live[title] = "missing" if failed is None else "FAILED" if failed else "ok"
    one.seconds = time.monotonic() - began
    return one


def unit_tests(row: Row, *, short: bool) -> list[str]:
    """Return the unit tests of a row: those of Lightning alone where nothing but its package differs from another."""
    if row.lightning != "pytorch_lightning" and not row.lowest:
        return ["tests/unit/lightning"]
    return [f"tests/unit/{folder}" for folder in (UNIT[:SHORT_UNIT] if short else UNIT)]


def demo(row: Row, python: Path, env: Mapping[str, str], logs: Path) -> bool:
    """Tell whether the demo, with the row's Lightning, finds a configuration."""
    text = (ROOT / "examples" / "digits_asha.py").read_text()
    if row.lightning != "pytorch_lightning":
        text = text.replace("import pytorch_lightning as pl", f"import {row.lightning}.pytorch as pl")
    (logs / "demo.py").write_text(text)
    command = [str(python), "demo.py", "--num-samples", "4"]
    with (logs / "demo.log").open("w") as log:
        ended = subprocess.run(command, cwd=logs, env=env, stdout=log, stderr=log, check=False, timeout=LIMIT_S)
    return ended.returncode == 0 and "Best configuration" in (logs / "demo.log").read_text()


def versions(python: Path) -> dict[str, str]:
    """Return the versions in an environment of Python and of what the table gives."""
    code = "import json, platform, sys\nfrom importlib.metadata import version\n"
    code += "print(json.dumps({'python': platform.python_version(), **{name: version(name) for name in sys.argv[1:]}}))"
    found = subprocess.run([python, "-c", code, *SHOWN], capture_output=True, text=True, check=True).stdout
    return dict(json.loads(found))


def _failed(case: ET.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


def main() -> int:
    """Run the rows that were asked for, print their table, and return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help=f"rows, by commas: {', '.join(ROWS)}")
    parser.add_argument(
        "--short", action="store_true", help="the lowest versions only, fewer unit tests, a CPU build of torch"
    )
    parser.add_argument("--fresh", action="store_true", help="build the environments anew, for what is published since")
    args = parser.parse_args()
    names = args.rows.split(",") if args.rows else ["lowest"] if args.short else list(REQUIRED)
    if unknown := [name for name in names if name not in ROWS]:
        parser.error(f"there is no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    BUILD.mkdir(parents=True, exist_ok=True)
    for name in [name for name in names if interpreter(ROWS[name].python) is None]:
        sys.stdout.write(f"{name}: left out, as there is no Python {ROWS[name].python}\n")
        names.remove(name)

    def outcome(name: str) -> Outcome:
        one = run(name, ROWS[name], short=args.short, fresh=args.fresh)
        sys.stdout.write(f"{name}: {'passed' if one.good else 'FAILED'} {one.error}\n")
        sys.stdout.flush()
        return one

    outcomes = [outcome(name) for name in names]
    sys.stdout.write(f"\n{table(outcomes)}\n")
    return 0 if outcomes and all(one.good for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())

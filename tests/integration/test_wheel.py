"""The wheel and the sdist: what they hold, and that the wheel alone runs all that a first reader types.

The wheel is installed into a new environment. Its programs run in empty folders without PYTHONPATH, with no source in
reach.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests import docs, flavours
from tests.kit import programs
from tests.kit.programs import python
from tests.unit.extras.web.serving import serving

install = runpy.run_path(str(docs.ROOT / "scripts" / "install.py"))["install"]
pytestmark = pytest.mark.apart

SMOKE = ("pytest", "pytest-timeout", "hypothesis")
"""What the tests that CONTRIBUTING.md names for an sdist need beside the wheel."""
WHERE = """
import importlib.metadata, json, sys
import tunelight as tl
from tunelight.space import files as shipped
installed = json.loads(importlib.metadata.distribution("tunelight").read_text("direct_url.json"))
print(json.dumps({"package": tl.__file__, "path": sys.path, "installed": installed, "spaces": shipped.names()}))
"""


@dataclass(frozen=True)
class Installed:
    """The new environment."""

    folder: Path

    @property
    def env(self) -> dict[str, str]:
        """A user's variables: the environment's programs first, and no other Python's packages."""
        hidden = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "CI"}
        kept = {name: value for name, value in flavours.as_a_user().items() if name not in hidden}
        return kept | {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

    def run(self, line: str, cwd: Path) -> str:
        """Carry out a command line in a folder, and return what it printed."""
        return programs.run(*shlex.split(line), cwd=cwd, env=self.env).stdout


def build(target: Path, *what: str) -> Path:
    """Build as `make dist` does, but into another folder."""
    python("-m", "build", "--no-isolation", "--outdir", target, *what)
    return target


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist: those of `make wheel-test`, else new ones."""
    given = os.environ.get("TUNELIGHT_DIST")
    return docs.ROOT / given if given else build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def sdist(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, unpacked."""
    (found,) = dist.glob("*.tar.gz")
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(found) as archive:
        archive.extractall(folder, filter="data")
    return folder / found.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with the extras of the README's first command, and `web` for the live page."""
    first = next(block for block in docs.blocks("README.md") if block.language == "console")
    asked = re.fullmatch(r"pip install 'tunelight\[(\w+)\]'\n", first.text)
    assert asked is not None, f"the README begins with {first.text}"
    environment = Installed(tmp_path_factory.mktemp("user"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment.folder], check=True, timeout=60)
    # What is not imported needs no bytecode, and constraints.txt names what uv has in its cache.
    arguments = ["--quiet", "--no-compile-bytecode", "-c", str(docs.ROOT / "constraints.txt"), *SMOKE]
    arguments.append(f"tunelight[{asked[1]},web] @ {wheel.as_uri()}")
    assert install(environment.folder / "bin" / "python", arguments) == 0
    return environment


def repository() -> set[str]:
    """Return the paths of the repository's files, those that are new and not ignored included."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=docs.ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    return {path for path in listed.split("\0") if (docs.ROOT / path).is_file()}


def test_the_wheel_holds_the_package_and_the_spaces_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    about = {name.partition(".dist-info/")[2] for name in names if ".dist-info/" in name}
    assert about == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    package = {path for path in repository() if path.startswith("tunelight/")}
    spaces = {f"tunelight/{path}" for path in repository() if path.startswith("searchspaces/")}
    assert {name for name in names if ".dist-info/" not in name} == package | spaces


def test_the_sdist_holds_whole_folders_of_the_repository_and_nothing_else(sdist):
    held = {path.relative_to(sdist).as_posix() for path in sdist.rglob("*") if path.is_file()} - {"PKG-INFO"}
    tops = {path.partition("/")[0] for path in held}
    assert {"LICENSE", "pyproject.toml", "tests", "tunelight"} <= tops
    assert held == {path for path in repository() if path.partition("/")[0] in tops}


def test_the_wheel_of_the_repository_is_that_of_the_sdist_byte_for_byte(wheel, tmp_path):
    (again,) = build(tmp_path, "--wheel").glob("*.whl")
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


def test_no_source_is_in_reach_and_the_spaces_are_found(installed, tmp_path):
    (tmp_path / "where.py").write_text(WHERE)
    found = json.loads(installed.run("python where.py", tmp_path))
    assert Path(found["package"]).is_relative_to(installed.folder)
    assert not [place for place in found["path"] if Path(place).is_relative_to(docs.ROOT)]
    assert "dir_info" not in found["installed"], "installed from a folder"
    assert set(found["spaces"]) == {path.stem for path in (docs.ROOT / "searchspaces").glob("*.yaml")}


def test_a_first_sweep_by_commands(installed, tmp_path):
    assert "Next: cd my-sweep" in installed.run("tunelight init my-sweep", tmp_path)
    sweep = tmp_path / "my-sweep"
    assert "judged by val_loss" in installed.run("tunelight check space.yaml", sweep)
    ran = installed.run("tunelight run space.yaml --name first --num-samples 2 --max-epochs 2 --scheduler fifo", sweep)
    assert "Sweep first ended" in ran
    assert "val_loss=" in installed.run("tunelight best first", sweep)
    shown = json.loads(installed.run("tunelight show first --json", sweep))
    assert [trial["state"] for trial in shown["trials"]] == ["FINISHED"] * 2

    installed.run("tunelight report first --out report.html", sweep)
    page = (sweep / "report.html").read_text()
    assets = docs.ROOT / "tunelight" / "extras" / "report" / "assets"
    assert all((assets / name).read_text() in page for name in ("open.js", "page.css", "page.js", "sweep.js"))
    packed = page.partition('id="run-plotly">')[2].partition("</script>")[0]
    assert b"plotly.js v" in gzip.decompress(base64.b64decode(packed))

    alone = ("env", "-i", "PYTHONUNBUFFERED=1", *(f"{name}={value}" for name, value in installed.env.items()))
    with serving(sweep / "tunelight_runs", program=(*alone, str(installed.folder / "bin" / "tunelight"))) as served:
        page = served.ask("/sweep/first").text
        fetched = {path.rpartition("/")[2]: served.ask(path).text for path in re.findall(r'"(/static/[^"]+)"', page)}
    assert {"page.css", "page.js", "sweep.js"} <= fetched.keys()
    assert all(text == (assets / name).read_text() for name, text in fetched.items() if (assets / name).exists())
    assert served.process.returncode == 0


def test_the_program_of_the_readme_and_the_smallest_example(installed, sdist, tmp_path):
    readme, example = tmp_path / "readme", tmp_path / "example"
    readme.mkdir()
    example.mkdir()
    program = next(block.text for block in docs.blocks("README.md") if block.language == "python")
    (readme / "program.py").write_text(program)
    shutil.copy(sdist / "examples" / "digits_asha.py", example)
    with ThreadPoolExecutor() as pool:  # each waits most of its time
        first = pool.submit(installed.run, "python program.py", readme)
        second = pool.submit(installed.run, "python digits_asha.py --num-samples 2", example)
    assert "8/8 done" in first.result()
    assert "{'model.lr': " in first.result()
    assert yaml.safe_load((readme / "best.yaml").read_text())
    assert "Best configuration:" in second.result()


def test_the_tests_that_contributing_names_pass_from_the_sdist(installed, sdist):
    (command,) = [code for code in docs.inline("CONTRIBUTING.md") if code.startswith("python -m pytest ")]
    shutil.rmtree(sdist / "tunelight")  # as the page says: the folder would stand before the wheel
    printed = installed.run(f"{command} -p no:cacheprovider", sdist)
    assert re.search(r"= \d{2,} passed in ", printed), printed


def test_the_release_notes_say_what_the_wheel_brings(wheel):
    constraints = str(docs.ROOT / "constraints.txt")  # versions that uv has in its cache
    done = python("scripts/release_notes.py", wheel, PIP_CONSTRAINT=constraints)
    project = tomllib.loads((docs.ROOT / "pyproject.toml").read_text())["project"]
    size, direct = wheel.stat().st_size / 1e6, len(project["dependencies"])
    assert f"The wheel has {size:.1f} MB and {direct} direct dependencies" in done.stdout
    counted = re.search(r"(\d+) packages are installed", done.stdout)
    assert counted is not None
    assert int(counted[1]) > direct
    assert re.search(r"`import tunelight` takes \d+\.\d\d s", done.stdout)

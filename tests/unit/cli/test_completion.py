"""What a shell gets when the Tab key is pressed, and what that imports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.cli.test_command import call
from tests.unit.results.test_results import ERROR, Writer
from tunelight.cli import app, complete
from tunelight.cli.app import BAD_INPUT
from tunelight.record import Notes


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Work in an empty folder, in whose tunelight_runs a sweep of two trials is recorded; return that."""
    monkeypatch.chdir(tmp_path)
    Path("tunelight_runs").mkdir()
    written = Writer(tmp_path / "tunelight_runs")
    for _ in range(2):
        written.checkpoint(written.trial(0.9, state="ERROR", error=ERROR), 1, 0.9)
    return written.load().folder


def completed(line: str) -> list[str]:
    """Return what bash is offered for the last word of a command line, which may be empty."""
    words = line.split(" ")
    env = {"_TUNELIGHT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = CliRunner().invoke(app, [], prog_name="tunelight", env=env)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return str(done.output).split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tunelight show d", ["digits"]),
        ("tunelight show ", ["last", "digits"]),
        ("tunelight rm last dig", ["digits"]),
        ("tunelight show --storage other ", ["last", "elsewhere"]),
        ("tunelight show last ", ["best", "00000", "00001"]),
        ("tunelight show digits 00001", ["00001"]),
        ("tunelight show tunelight_runs/digits b", ["best"]),
        ("tunelight reproduce digits ", ["best", "00000", "00001"]),
        ("tunelight export digits a.yaml --trial 00000", ["00000"]),
        ("tunelight note dig", ["digits"]),
        ("tunelight note digits/0", ["digits/00000", "digits/00001"]),
        ("tunelight tag last/b", ["last/best"]),
        ("tunelight ls --tag g", ["good", "great"]),
        ("tunelight ls --sort t", ["time", "trials"]),
        ("tunelight ls --state c", ["cut-off"]),
        ("tunelight run --mode m", ["min", "max"]),
        ("tunelight run --scheduler a", ["asha"]),
        ("tunelight run --searcher ns", ["nsgaii", "nsgaiii"]),
        ("tunelight run --set backend=s", ["backend=sharded"]),
        ("tunelight run --set num", ["num_samples="]),
        ("tunelight run sp", ["space.yaml"]),
        ("tunelight run digits_g", ["digits_gan"]),
        ("tunelight export last a.yaml --format h", ["hydra"]),
        ("tunelight completion z", ["zsh"]),
        ("tunelight comp", ["completion"]),
    ],
)
def test_what_can_stand_there_is_offered(runs, tmp_path, line, offered):
    (tmp_path / "other").mkdir()
    shutil.copytree(runs, tmp_path / "other" / "elsewhere")
    Path("space.yaml").touch()
    Notes(runs).tag(["good"])
    Notes(runs).tag(["great", "keep"], trial="00001")
    assert completed(line) == offered


@pytest.mark.parametrize(
    "line",
    [
        "tunelight show nothing ", "tunelight show --storage gone d", "tunelight note a/b/c/d", "tunelight ls --tag x",
        "tunelight show --storage nix://x d", "tunelight note s3://bucket/x/", f"tunelight show {'x' * 5000} 0",
        f"tunelight show --storage {'x' * 5000} 0", "tunelight run ~nobody/[", "tunelight show --storage ~nobody/x d",
    ],
)  # fmt: skip
def test_what_cannot_be_read_offers_nothing(runs, line):
    (runs / "notes.jsonl").mkdir()
    assert completed(line) == []


@pytest.mark.parametrize("line", ["show ", "show last ", "note last/", "run --searcher ", "run --set ba", "ls --tag "])
def test_completing_imports_nothing_heavy_and_takes_no_time(runs, line):
    """The limit is on the processor's time, of which a busy machine gives less than the clock shows."""
    look = (
        "import atexit, resource, sys\n"
        "heavy = 'ray torch pytorch_lightning lightning numpy pandas rich plotly optuna tensorboard fsspec'\n"
        "def tell():\n"
        "    spent = resource.getrusage(resource.RUSAGE_SELF)\n"
        "    found = sorted(set(heavy.split()) & sys.modules.keys())\n"
        "    print(spent.ru_utime + spent.ru_stime, *found, file=sys.stderr)\n"
        "atexit.register(tell)\n"
        "from tunelight.cli import app\n"
        "app(prog_name='tunelight')\n"
    )
    env = {
        **os.environ, "_TUNELIGHT_COMPLETE": "complete_bash", "COMP_WORDS": f"tunelight {line}",
        "COMP_CWORD": str(len(line.split(" "))),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, env=env, check=True, timeout=60)
    seconds, *heavy = done.stderr.split()
    assert heavy == []
    assert float(seconds) < 1.0  # 0.3 on the machine of 2026; Ray alone takes more than one


def test_the_choices_that_are_listed_for_speed_are_those_that_there_are():
    from tunelight.schedulers import choose as schedulers
    from tunelight.searchers import choose as searchers
    from tunelight.searchers.samplers import KINDS

    assert complete.SCHEDULERS == schedulers._SCHEDULERS
    assert (*searchers._OWN, *KINDS) == complete.SEARCHERS


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_tunelight(shell):
    script = call("completion", shell).output
    assert f"_TUNELIGHT_COMPLETE=complete_{shell}" in script.replace("=complete-", "=complete_")
    assert "Did you mean 'zsh'?" in call("completion", "zhs", code=BAD_INPUT).stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_with_the_script(runs, tmp_path):
    """Through the shell itself: the function of the script fills COMPREPLY."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "tunelight"
    program.write_text(f"#!{sys.executable}\nfrom tunelight.cli import main\nmain()\n")
    program.chmod(0o755)
    script = call("completion", "bash").output
    typed = script + (
        "COMP_WORDS=(tunelight show d); COMP_CWORD=2\n"
        "$(complete -p tunelight | sed 's/.*-F \\([^ ]*\\).*/\\1/') tunelight d show\n"  # as bash calls it
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(["bash", "-c", typed], capture_output=True, text=True, env=env, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("digits\n", "")

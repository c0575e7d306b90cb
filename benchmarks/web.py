"""How soon the live page shows a sweep and its reports, and what its server takes.

A sweep of 1,000 trials of 81 reports (of more trials: of 31) is recorded as Tune's callbacks would. `tunelight serve`
then shows it in headless Chromium, the page is opened several times, and further trials make 20 reports a second, each
of which is looked for in the page. At last a real sweep runs with a page that listens and without, by turns. The exit
status is 1 where a limit is passed: first paint 1 s, interactive (all rows there, and a filter answered) 2 s, a filter
0.3 s, an update 1 s, server 150 MB, and of 1,000 trials 2 % of a core and 0.99 of the sweep's speed; of more trials it
is the first paint, a filter and the server's memory.

    python benchmarks/web.py            # about 4 minutes on 2 cores; needs Chromium (scripts/chromium.sh)
    python benchmarks/web.py --trials 10000
    python benchmarks/web.py --short    # 60 trials of 9 reports, no real sweep: does it still run? Judges no time.
"""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from figures import NAN, headline, median, spread
from measure import options
from reporting import AT_ONCE, RATE, Driver

from tunelight.extras.attach import RecordFollower
from tunelight.record import leased

ROOT = Path(__file__).parents[1]
# What the page does with a report is seen from inside: when a row first shows it.
LOOK = """
    window.seen = {};
    const begun = setInterval(() => {
        const count = document.getElementById("count");
        if (!count || !count.textContent.startsWith(WANTED)) return;
        clearInterval(begun);
        const filter = document.getElementById("filter");
        const asked = performance.now();
        filter.value = "trial = 7";
        filter.dispatchEvent(new Event("input"));
        const answered = () => {
            if (document.querySelectorAll("#list tbody tr").length !== 1) return requestAnimationFrame(answered);
            window.interactive = performance.now();
            window.filtered = window.interactive - asked;
            filter.value = "";
            filter.dispatchEvent(new Event("input"));
        };
        requestAnimationFrame(answered);
        const heads = [...document.querySelectorAll("#list th")];
        const epochs = heads.findIndex((head) => head.textContent === "epochs");
        new MutationObserver((changes) => {
            for (const { target } of changes) {
                const cells = target.tagName === "TR" ? target.cells : [];
                if (cells.length <= epochs) continue;
                const key = cells[0].textContent + "/" + cells[epochs].textContent;
                if (!(key in window.seen)) window.seen[key] = Date.now() / 1000;
            }
        }).observe(document.querySelector("#list tbody"), { childList: true, subtree: true });
    }, 5);
"""
SWEEP = """
import sys, time
import tunelight as tl
def train(config):
    for number in range(60):
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass
        tl.report({"loss": config["lr"] + number})
tl.run(
    {"lr": tl.uniform(0, 1)}, train=train, metric="loss", num_samples=6, scheduler="fifo", workers=1, max_concurrent=1,
    storage=sys.argv[1], name="real", progress=False, web="web" in sys.argv[2:], seed=1,
)
"""


class LiveDriver(Driver):
    """A driver whose first trials are over, and whose next ones report at the wall's time."""

    def __init__(self, folder: Path, trials: int, reports: int) -> None:
        super().__init__(folder, trials, reports)
        self.callbacks = {"record": self.callbacks["record"]}  # a live table would take what is printed here

    def history(self, reports: int) -> None:
        """Record that all trials but the last few have ended."""
        wanted, self._wanted = self._wanted, self._wanted - AT_ONCE
        self.now = time.time() - wanted * reports / RATE
        self.run()
        self._wanted = wanted

    def _tell(self, name: str, **about: Any) -> None:
        if name != "on_experiment_end":  # for it goes on
            super()._tell(name, **about)

    def live(self, seconds: float) -> dict[str, float]:
        """Make 20 reports a second; return when each was written, by trial and epoch."""
        written = {}
        self.now = time.time()
        running = [self._start() for _ in range(AT_ONCE)]
        begin = time.monotonic()
        for number in range(int(seconds * RATE)):
            time.sleep(max(0.0, begin + number / RATE - time.monotonic()))
            place = number % AT_ONCE
            trial = running[place]
            self.now = time.time()
            trial.number += 1
            self._tell("on_trial_result", trial=trial, result=self._result(trial))
            self._tell("on_step_end")
            written[f"{int(trial.trial_id)}/{trial.number}"] = time.time()
            if trial.number >= self._reports:
                trial.last_result = {"done": True}
                self._tell("on_trial_complete", trial=trial)
                trial.status = "TERMINATED"
                running[place] = self._start()
        return written


@contextlib.contextmanager
def serve(storage: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Run the server; give the address that it prints and its process."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "tunelight", "serve", str(storage)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def listen(address: str, name: str, until: threading.Event) -> None:
    """Read a sweep's stream, as a page does."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
    headers = {"Authorization": f"Bearer {parts.query.removeprefix('token=')}"}
    connection.request("GET", f"/api/sweep/{name}/events", headers=headers)
    answer = connection.getresponse()
    while not until.is_set():
        with contextlib.suppress(TimeoutError):
            if not answer.readline():
                break
    connection.close()


def pages(browser: Any, address: str, trials: int, repeats: int) -> tuple[list[list[float]], Any]:
    """Open the page several times; return seconds (to its first paint, until it answers, of a filter), and the last."""
    found: list[list[float]] = [[], [], []]
    for _ in range(repeats):
        page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
        page.add_init_script(LOOK.replace("WANTED", f'"{trials} trials"'))
        page.goto(address.replace("/?", "/sweep/sweep?"))
        page.wait_for_function("window.interactive", timeout=60_000)
        paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
        for times, what in zip(found, (paint, "window.interactive / 1000", "window.filtered / 1000"), strict=True):
            times.append(page.evaluate(what))
        if len(found[0]) < repeats:
            page.context.close()
    return found, page


def watched(driver: LiveDriver, page: Any, server: psutil.Process, seconds: float) -> tuple[list[float], float, float]:
    """Let reports come; return how long each took to the page, the server's share of a core, and its memory in MB."""
    for _ in range(2):
        page.click("#list th button:text-is('trial')")  # the latest first
    page.wait_for_timeout(500)
    before, begin = server.cpu_times(), time.monotonic()
    written: dict[str, float] = {}
    thread = threading.Thread(target=lambda: written.update(driver.live(seconds)))
    thread.start()
    memory = 0.0
    while thread.is_alive():
        page.wait_for_timeout(250)
        memory = max(memory, server.memory_info().rss / 1e6)
    page.wait_for_function("key => key in window.seen", arg=list(written)[-1], timeout=60_000)
    after, took = server.cpu_times(), time.monotonic() - begin
    seen = page.evaluate("window.seen")
    # Of reports that came between two looks of the page only the last is shown.
    waits = [seen[key] - at for key, at in written.items() if key in seen]
    return waits, (after.user + after.system - before.user - before.system) / took, memory


def real(storage: Path, *, web: bool) -> float:
    """Run a real sweep, with a page that listens or without; return the seconds between its first and last report."""
    folder, until = storage / "real", threading.Event()
    words = [sys.executable, "-c", SWEEP, str(storage), *(["web"] if web else [])]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    reader = None
    for line in process.stderr:
        if line.startswith("Live page: "):
            address = line.split()[-1].replace("/sweep/real?", "/?")
            reader = threading.Thread(target=listen, args=(address, "real", until))
            reader.start()
    process.wait()
    until.set()
    if reader is not None:
        reader.join()
    follower = RecordFollower(folder)
    times = [line["time"] for line in follower.look() if line["kind"] == "report"]
    return float(times[-1] - times[0])


def main() -> int:
    """Measure, print, and return the exit status."""
    args = options(__doc__, "60 trials of 9 reports, no real sweep; judges no time", trials=(1000, "of the sweep"))
    short, many = args.short, args.trials > 1000
    reports = 31 if many else 81
    trials, reports, repeats, seconds = (60, 9, 1, 3.0) if short else (args.trials, reports, 5, 30.0)
    found = subprocess.run([str(ROOT / "scripts" / "chromium.sh")], capture_output=True, text=True, check=False)
    if found.returncode:
        print(found.stderr)
        return 0 if short else 1
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        storage = Path(scratch, "runs")
        (storage / "sweep").mkdir(parents=True)
        driver = LiveDriver(storage / "sweep", trials, reports)
        stack.enter_context(leased(storage / "sweep"))
        driver.history(reports)
        api = stack.enter_context(sync_playwright())
        browser = api.chromium.launch(executable_path=found.stdout.strip(), args=["--no-sandbox"])
        with serve(storage) as (address, server):
            (paints, answers, filters), page = pages(browser, address, trials - AT_ONCE, repeats)
            waits, share, memory = watched(driver, page, server, seconds)
            if not short and len(waits) < RATE * seconds / 4:
                raise SystemExit(f"only {len(waits)} of {RATE * seconds:.0f} reports were shown")
        browser.close()
        speeds = []
        for number in range(0 if short or many else 3):
            plain, seen = (real(Path(scratch, f"{number}{word}"), web=word == "web") for word in ("plain", "web"))
            speeds.append(plain / seen)
    print(f"\nThe live page of {trials:,} trials of {reports} reports\n")
    interactive, kept = "all rows there, and a filter answered", []
    of_page, most_share = (f"{trials:,} trials: ", NAN) if many else ("", 0.02)
    for what, times, most in (
        ("first paint of the sweep's page", paints, 1.0),
        (interactive, answers[1:] or answers, NAN if many else 2.0),
        ("a filter", filters, 0.3),
        (f"a report in the page, at {RATE:.0f} a second", waits, NAN if many else 1.0),
    ):
        of = f"n = {len(times)}, median {median(times):.2f}"
        kept.append(headline(f"{of_page}{what}, at most", max(times), "s", of=of, most=most))
    headline(f"{of_page}{interactive}, in the moment when the server starts", answers[0], "s")
    kept.append(headline(f"{of_page}the server's memory, at most", memory, "MB", most=150.0, digits=0))
    kept.append(headline(f"{of_page}the server's processor time meanwhile", share, "cores", most=most_share, digits=3))
    what, speed = "speed of a real sweep with a page / without", median(speeds) if speeds else NAN
    kept.append(headline(what, speed, of=spread(speeds, 3), least=0.99, digits=3))
    return 0 if short or all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())

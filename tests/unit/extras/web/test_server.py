"""The live page's server as programs, other pages and attackers meet it; what it hears of sweeps, when it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.server
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.kit.recording import Sweep
from tests.kit.sweeps import record
from tests.kit.waiting import until
from tests.unit.extras.web.serving import Served, serving
from tunelight.errors import ReportError, SettingsError
from tunelight.extras.report import page
from tunelight.extras.web import server
from tunelight.extras.web.app import log_part, trial_details
from tunelight.extras.web.server import LivePage, _file, _token, check_installed, running
from tunelight.extras.web.watch import SweepList, SweepWatch
from tunelight.record import Record, leased, list_sweeps, mirrored, write_sweep_file

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    record(folder / "digits", trials=12)
    record(folder / "other", trials=6)
    evil = Sweep(folder / EVIL.replace("/", "_"))
    trial = evil.run(0.5, **{EVIL: EVIL, "long": "x" * 1_000_000})
    evil.callback.note(EVIL, trial.trial_id)
    evil.fail(trial, message=EVIL)
    log = folder / "digits" / "trial_00000" / "log.txt"
    log.parent.mkdir()
    log.write_text("".join(f"line {number}\n" for number in range(20_000)) + "postgres://me:hidden@host/x\n")
    (folder / "secret.txt").write_text("secret")
    record(folder / "a#b%20c?", trials=1)
    outside = tmp_path_factory.mktemp("outside")
    (outside / "log.txt").write_text("secret")
    (folder / "digits" / "trial_00001").symlink_to(outside)
    return folder


@pytest.fixture(scope="module")
def served(runs: Path) -> Iterator[Served]:
    with serving(runs) as found:
        yield found


def test_it_listens_on_this_machine_alone_and_its_token_is_for_its_user(served: Served, runs: Path) -> None:
    (listener,) = [one for one in psutil.Process(served.process.pid).net_connections() if one.status == "LISTEN"]
    assert listener.laddr.ip == "127.0.0.1"
    assert _file(runs).stat().st_mode & 0o777 == 0o600
    assert running(runs).address == served.address  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "path",
    ["/", "/sweep/digits", "/api/sweeps", "/api/sweep/digits/events", "/static/x/page.js", "/nowhere", "/api/act"],
)
@pytest.mark.parametrize("token", [None, "wrong", "x" * 5000])
def test_nothing_is_said_without_the_token(served: Served, path: str, token: str | None) -> None:
    found = served.ask(path, token=token)
    assert found.status == 401
    assert "needs the whole address that tunelight printed" in found.text
    assert served.ask(f"{path}?token=wrong", token=None).status == 401


def test_a_browser_keeps_the_token_as_a_cookie_and_drops_it_from_the_address(served: Served) -> None:
    found = served.ask(f"/sweep/digits?token={served.token}&x=1", token=None)
    assert found.status == 303
    assert found.headers["location"] == "/sweep/digits?x=1"
    cookie = found.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert served.ask("/sweep/digits", token=None, Cookie=cookie.partition(";")[0]).status == 200
    signs = served.ask(f"/sweep/a%23b%2520c%3F?token={served.token}", token=None).headers["location"]
    assert signs == "/sweep/a%23b%2520c%3F"
    assert served.ask(signs).status == 200
    assert served.ask(f"//evil.example/?token={served.token}", token=None).headers.get("location", "/")[:2] != "//"


def test_this_machine_answers_to_its_own_names_or_behind_a_tunnel_and_not_to_somebody_else_s(served: Served) -> None:
    for host in ("evil.example", "evil.example:8642", "127.0.0.1.evil.example", "", "[::1"):
        assert served.ask("/", Host=host).status in (400, 421), host
    for host in ("localhost", "127.0.0.1:9999", "[::1]:80", "192.0.2.7"):
        assert served.ask("/", Host=host).status == 200, host


def act(served: Served, **headers: Any) -> Any:
    """Send a command as a browser does that has the page's cookie."""
    cookie = f"tunelight_{hashlib.sha256(served.token.encode()).hexdigest()[:12]}={served.token}"
    sent = {"Origin": f"http://127.0.0.1:{served.port}", "Content_Type": "application/json", **headers}
    given: dict[str, Any] = {name: value for name, value in sent.items() if value is not None}
    body = json.dumps({"sweep": "digits", "do": "stop"}).encode()
    return served.ask("/api/act", method="POST", body=body, token=None, Cookie=cookie, **given)


def test_a_page_of_another_site_a_form_or_a_link_cannot_act_and_the_server_s_own_is_told_why(served: Served) -> None:
    evil = f"http://127.0.0.1:{served.port}.evil.example"
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", evil, None):
        assert act(served, Origin=origin).status == 403, origin
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert act(served, Content_Type=kind).status == 415
    assert served.ask("/api/act?sweep=digits&do=stop").status == 405
    assert served.ask("/api/act", method="DELETE").status == 405
    said = "No process runs the sweep digits, so it cannot be told to stop."
    assert json.loads(act(served).text) == {"ok": False, "said": said}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b"[" * 60_000, 400),
        (b'{"sweep": "digits", "do": "explode"}', 400),
        (b'{"sweep": "digits", "do": "stop", "trial": "../1"}', 400),
        (b'{"sweep": "digits", "do": "stop", "trial": 99}', 404),
        (b'{"sweep": "../digits", "do": "stop"}', 404),
        (b'{"sweep": "digits", "do": "stop", "arguments": {"x": 1}}', 400),
        (b'{"sweep": "digits", "do": "enqueue", "arguments": {"config": "lr"}}', 400),
        (b'{"sweep": "digits", "do": "enqueue", "arguments": {"config": "lr=\'1"}}', 400),
        (b'{"sweep": "digits", "do": "enqueue", "arguments": {"config": "' + b"x" * 70_000 + b'"}}', 413),
    ],
)
def test_a_command_that_makes_no_sense_is_refused(served: Served, body: bytes, status: int) -> None:
    assert served.ask("/api/act", method="POST", body=body, Content_Type="application/json").status == status


def test_a_server_that_only_shows_takes_none(runs: Path) -> None:
    with serving(runs, "--read-only") as found:
        answer = found.act("digits", "stop")
        assert (answer.status, "--read-only" in answer.text) == (403, True)
        assert '"readOnly": true' in found.ask("/sweep/digits").text.replace("&quot;", '"')


@pytest.mark.parametrize(
    "name", ["..%2fsecret.txt", "%2e%2e", "..%2f..%2fetc", "digits%2f..%2fdigits", "%00", "a%2e", "~"]
)
def test_no_parameter_leads_out_of_the_folder(served: Served, name: str) -> None:
    for path in (
        f"/sweep/{name}",
        f"/sweep/digits/trial/{name}",
        f"/api/sweep/{name}/events",
        f"/api/sweep/{name}/trial/0/log",
        f"/api/sweep/digits/part/{name}",
        f"/api/sweep/digits/trial/0/log?from={name}",
        f"/static/x/{name}",
        f"/static/{name}/..%2fserver.py",
    ):
        found = served.ask(path)
        assert found.status in (400, 404), path
        assert "root:" not in found.text
        assert "secret" not in found.text.replace("secret.txt", "")
    text = served.ask("/api/sweep/digits/trial/1/log").text  # of a folder that is a link
    assert "secret" not in text
    assert "outside of the sweep's" in text


def test_what_others_wrote_is_text_and_no_script_runs_but_the_pages_own(served: Served) -> None:
    name = EVIL.replace("/", "_").replace("<", "%3C").replace(">", "%3E")
    for path in ("/", f"/sweep/{name}", f"/sweep/{name}/trial/0", f"/api/sweep/{name}/trial/0"):
        found = served.ask(path)
        assert found.status == 200, path
        if path.startswith("/api"):
            assert found.headers["content-type"] == "application/json"  # which the page shows as text
        else:
            assert "<script>alert" not in found.text
        policy = found.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self' 'unsafe-eval';" in policy
        assert "frame-ancestors 'none'" in policy
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["cache-control"] == "no-store"
    assert len(served.ask(f"/api/sweep/{name}/trial/0").text) < 50_000  # of a value of a megabyte


def test_a_long_log_comes_in_parts_and_without_passwords(served: Served) -> None:
    end = json.loads(served.ask("/api/sweep/digits/trial/0/log").text)
    assert end["to"] == end["size"] > 200_000
    assert len(end["text"]) < 70_000
    assert end["from"] > 100_000
    assert "hidden" not in end["text"]
    assert end["text"].endswith("@host/x\n")
    assert json.loads(served.ask(f"/api/sweep/digits/trial/0/log?from={end['to']}").text)["text"] == ""
    skipped = json.loads(served.ask("/api/sweep/digits/trial/0/log?from=5").text)
    assert skipped["from"] == end["from"]  # and not a part of the middle, for ever behind


def test_streams_tell_of_the_sweep_and_of_all_sweeps(served: Served) -> None:
    anew, first = served.messages("/api/sweep/digits/events", 2)
    assert anew == {"anew": True}  # whoever comes back may have rows of another record
    assert first["head"]["state"] == "finished"
    assert len(first["rows"]) == 12
    assert first["curves"]["0"][0] == list(range(1, 17))
    _, one = served.messages("/api/sweep/digits/events?trial=3", 2)
    assert [row["i"] for row in one["rows"]] == [3]
    assert served.messages("/api/sweep/digits/events?trial=99", 2)[1] == {"error": "digits has no trial 99."}
    (all_of_them,) = served.messages("/api/sweeps")
    assert {row["name"] for row in all_of_them["rows"]} == {"digits", "other", "a#b%20c?", EVIL.replace("/", "_")}


def test_figures_are_drawn_by_a_process_of_their_own(served: Served) -> None:
    # The process that draws gives way to others, and here both cores are busy with other tests.
    part = json.loads(served.ask("/api/sweep/digits/part/history", limit_s=50).text)
    assert part["figure"]["data"]
    assert json.loads(served.ask("/api/sweep/digits/part/learning_curves", limit_s=50).text) is None
    children = psutil.Process(served.process.pid).children()
    assert children == []


def test_as_many_pages_are_open_as_it_says_and_no_more(served: Served) -> None:
    open_ones = []
    path, key = "/api/sweep/digits/events", f"Authorization: Bearer {served.token}"
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{key}\r\n\r\n"
    try:
        statuses = []
        for _ in range(36):
            one = socket.create_connection(("127.0.0.1", served.port), timeout=10)
            one.sendall(request.encode())
            statuses.append(int(one.recv(12)[9:12]))
            open_ones.append(one)
        assert statuses == [200] * 32 + [503] * 4
    finally:
        for one in open_ones:
            one.close()
    end = time.monotonic() + 10
    while served.ask("/api/sweep/digits/events?trial=x", method="HEAD").status == 503 and time.monotonic() < end:
        time.sleep(0.2)  # until it has seen that they are closed
    assert served.messages("/api/sweep/digits/events")


def test_a_record_that_ends_within_a_line_or_is_damaged_is_shown_up_to_there_and_takes_no_time(tmp_path: Path) -> None:
    for name in ("torn", "damaged"):
        record(tmp_path / name, trials=6)
    with (tmp_path / "torn" / "record.jsonl").open("ab") as stream:
        stream.write(b'{"kind":"report","trial":"00001","tim')
    with (tmp_path / "damaged" / "record.jsonl").open("ab") as stream:
        stream.write(b'{"kind":"note"}\n')
    with serving(tmp_path) as found:
        assert len(found.messages("/api/sweep/torn/events", 2)[1]["rows"]) == 6
        _, rows, wrong = found.messages("/api/sweep/damaged/events", 3)
        assert len(rows["rows"]) == 6
        assert "corrupt" in wrong["error"]
        for name in ("torn", "damaged"):
            assert found.ask(f"/api/sweep/{name}/trial/3/log").status == 200
            assert "configuration" in found.ask(f"/api/sweep/{name}/trial/3").text
        process = psutil.Process(found.process.pid)
        before = process.cpu_times().user
        time.sleep(1)
        assert process.cpu_times().user - before < 0.5


def test_a_figure_says_whether_it_is_current(tmp_path: Path) -> None:
    record(tmp_path / "digits", trials=6)
    with serving(tmp_path) as found:
        assert found.ask("/api/sweep/digits/part/history", limit_s=100).headers["x-current"] == "yes"
        sweep = Sweep(tmp_path / "digits")
        sweep.add(lr=1)
        sweep.step()
        found.messages("/api/sweep/digits/events", 2)
        assert found.ask("/api/sweep/digits/part/history").headers["x-current"] == "no"  # drawn a moment ago


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_cleans_up_however_it_is_told_to_end_while_a_page_is_open(tmp_path: Path, number: signal.Signals) -> None:
    record(tmp_path / "digits", trials=3)
    with serving(tmp_path) as found, socket.create_connection(("127.0.0.1", found.port)) as page:
        key = f"Authorization: Bearer {found.token}"
        page.sendall(f"GET /api/sweep/digits/events HTTP/1.1\r\nHost: localhost\r\n{key}\r\n\r\n".encode())
        assert page.recv(12)[9:12] == b"200"
        found.process.send_signal(number)
        assert found.process.wait(10) == 0
        assert json.loads(_file(tmp_path).read_text())["pid"] == 0


def test_a_token_outlives_its_server_and_is_not_taken_from_a_file_that_others_can_read(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        token = first.token
    assert running(tmp_path) is None
    assert _token(tmp_path) == token
    _file(tmp_path).chmod(0o644)
    assert _token(tmp_path) != token


def test_an_address_in_a_file_that_others_can_write_is_not_found(tmp_path: Path) -> None:
    asked: list[Any] = []

    class Attacker(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers)
            self.send_response(200)
            self.end_headers()

    with http.server.HTTPServer(("127.0.0.1", 0), Attacker) as attacker:
        threading.Thread(target=attacker.serve_forever, daemon=True).start()
        where = {"host": "127.0.0.1", "port": attacker.server_port, "pid": os.getpid(), "machine": socket.gethostname()}
        _file(tmp_path).write_text(json.dumps({**where, "token": "x" * 32}))
        _file(tmp_path).chmod(0o600)
        assert running(tmp_path) is not None  # as one of this user's own would be
        asked.clear()
        _file(tmp_path).chmod(0o666)
        assert running(tmp_path) is None
        assert not asked
        attacker.shutdown()


def watched(folder: Path) -> SweepWatch:
    found = SweepWatch(folder)
    found.look()
    while not found.whole:
        found.look()
    return found


def again(watch: SweepWatch) -> None:
    watch._looked = -1e9  # without the quarter of a second
    watch.look()


def test_only_what_changed_comes_again(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, num_samples=4)
    trials = [sweep.run(1.0, lr=0.1 * number) for number in range(3)]
    watch = watched(tmp_path)
    assert [row["i"] for row in watch.rows(0)] == [0, 1, 2]
    seen, sent = watch.version, dict[int, int]()
    assert watch.curves(sent)["curves"].keys() == {0, 1, 2}
    sweep.report(trials[1], 2, 0.5)
    again(watch)
    (row,) = watch.rows(seen)
    assert (row["i"], row["value"], row["last"], row["at"]) == (1, 0.5, 0.5, 2)
    assert watch.curves(sent)["curves"] == {1: ([1, 2], [1.0, 0.5])}
    assert watch.rows(watch.version) == []
    head = watch.head()
    assert (head["best"]["trial"], head["best"]["value"]) == (1, 0.5)
    assert head["state"] == "cut off"  # no process holds its lock
    assert head["total"] == 4


def test_of_many_trials_the_best_curves_and_those_that_run_are_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "_MOST_BEST", 2)
    sweep = Sweep(tmp_path)
    trials = [sweep.run(float(number), lr=number) for number in range(6)]
    for trial in trials[:5]:
        sweep.complete(trial)
    watch, sent = watched(tmp_path), dict[int, int]()
    found = watch.curves(sent)
    assert found["curves"].keys() == {0, 1, 5}
    assert found["of"] == 6
    sweep.report(trials[5], 2, -1.0)
    again(watch)
    assert watch.curves(sent) == {"curves": {5: ([1, 2], [5.0, -1.0])}, "gone": [1], "of": 6}


def test_rows_are_those_of_the_latest_trials_and_the_head_says_how_many_are_left_out(tmp_path, monkeypatch):
    for module in ("report.page", "web.watch"):
        monkeypatch.setattr(f"tunelight.extras.{module}.MOST_ROWS", 3)
    record(tmp_path, trials=8)
    watch = watched(tmp_path)
    assert {row["i"] for row in watch.rows(0)} == {5, 6, 7}
    assert watch.head()["more"] == 5


def test_the_head_says_how_keys_were_searched_and_how_long_all_runs_took(tmp_path: Path) -> None:
    space = {"lr": {"loguniform": [1e-4, 1]}, "model": {"width": {"qrandint": [1, 999, 2]}}, "opt": {"choice": ["a"]}}
    write_sweep_file(tmp_path, {"space": space})
    clock = iter((1000.0, 1050.0, 9000.0, 9050.0))
    record = Record(tmp_path, lambda: next(clock))
    for _ in range(2):  # it was killed, and resumed
        record.append("sweep", sweep={"metric": "loss", "mode": "min"})
        record.append("note", trial=None, text="")
    record.close()
    head = watched(tmp_path).head()
    assert head["even"] == {"lr": False, "model.width": True}
    assert head["seconds"] == 100.0


def test_a_record_that_is_written_anew_in_place_begins_anew(tmp_path: Path) -> None:
    record(tmp_path / "a", trials=2)
    record(tmp_path / "b", trials=6)
    watch = watched(tmp_path / "a")
    with (tmp_path / "a" / "record.jsonl").open("r+b") as stream:  # file systems give a number of a file out again
        stream.write((tmp_path / "b" / "record.jsonl").read_bytes())
    again(watch)
    assert watch.generation == 1
    assert {row["i"] for row in watch.rows(0)} == set(range(6))


def test_a_brief_view_does_not_grow_with_what_trials_do(sweep: Sweep, tmp_path: Path) -> None:
    sweep.run(lr=0.1)
    for number in range(300):
        sweep.callback.record.append("checkpoint", trial="00000", path=f"c{number}", training_iteration=number)
        sweep.callback.note(f"note {number}", "00000")
    state = watched(tmp_path).state
    known = state.trials["00000"]
    assert [one["path"] for one in known.checkpoints][-1] == "c299"
    assert max(len(known.checkpoints), len(known.notes)) <= 8
    assert len(state.notes) <= 100


def test_a_trial_s_placement_counts_from_the_first_trial_s_beginning_also_in_a_resumed_sweep(
    sweep: Sweep, tmp_path: Path
) -> None:
    trial = sweep.run(lr=0.1)
    at = sweep.state.trials["00000"].moves[0][0] + 60
    gang = {"gang": "g", "nodes": ["a"], "warm": False, "began": at, "ready": at}
    sweep.report(trial, 1, 0.5, own={"gang": gang})
    sweep.clock.now += 3600
    sweep.callback.record.append("sweep", sweep={})
    watch = watched(tmp_path)
    blocks = trial_details(watch, watch.state.trials["00000"])
    (placement,) = [block for block in blocks if block.get("title") == "Placement"]
    assert placement["rows"] == [["1m 00s", "cold, 0.0 s", 1, "a: rank 0"]]


def test_the_list_has_all_sweeps_reads_those_that_changed_and_names_what_cannot_be_read(tmp_path: Path) -> None:
    record(tmp_path / "good", trials=6)
    record(tmp_path / "bad", trials=3)
    with (tmp_path / "bad" / "record.jsonl").open("r+b") as stream:
        stream.seek(100)
        stream.write(b"????")
    sweeps = SweepList(lambda: list_sweeps(tmp_path), every_s=0)
    found = {one["name"]: one for one in sweeps.summaries()[0]}
    assert found["good"]["state"] == "finished"
    assert found["good"]["trials"] == 6
    assert found["bad"]["state"] == "unreadable"
    assert "damaged" in found["bad"]["error"]
    before = found["good"]
    assert next(one for one in sweeps.summaries()[0] if one["name"] == "good") is before
    os.utime(tmp_path / "good" / "record.jsonl")
    assert next(one for one in sweeps.summaries()[0] if one["name"] == "good") is not before


def test_a_sweep_in_a_store_is_followed_from_another_machine(machine: Any, storage: Any) -> None:
    folder = storage() / "digits"
    folder.mkdir(parents=True)
    with leased(folder) as lease, mirrored(folder, lease):
        record(folder, trials=3)
    machine("second")
    sweeps = SweepList(lambda: list_sweeps(storage()), every_s=0)
    (summary,) = sweeps.summaries()[0]
    assert (summary["name"], summary["state"], summary["trials"]) == ("digits", "finished", 3)
    watch = sweeps.watch("digits")
    assert watch is not None
    assert {row["i"] for row in watch.rows(0)} == {0, 1, 2}
    assert trial_details(watch, watch.state.trials["00001"])
    assert (
        log_part(watch.folder, watch.state.trials["00001"], None)["note"]
        == "Its log is in the store; nothing but the record is fetched from there."
    )


@pytest.fixture
def folder_of_one(tmp_path: Path) -> Iterator[Path]:
    record(tmp_path / "digits", trials=3)
    yield tmp_path
    found = server.running(tmp_path)
    if found is not None:
        end(found.pid)


def end(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, 10)


def test_a_second_sweep_of_the_folder_finds_the_server_and_a_later_one_has_its_address(folder_of_one, capsys):
    page = LivePage(folder_of_one / "digits")
    page.say()
    said = capsys.readouterr().err
    first = server.running(folder_of_one)
    assert first is not None
    assert said == f"Live page: {first.place}/sweep/digits?token={first.token}\n"
    assert server.start(folder_of_one) == first.address
    assert server.running(folder_of_one) == first
    assert first.pid not in [one.pid for one in psutil.Process().children()]
    end(first.pid)
    assert server.running(folder_of_one) is None
    assert server.start(folder_of_one) == first.address
    again = server.running(folder_of_one)
    assert again is not None
    end(again.pid)
    with socket.socket() as other:  # where its port is taken meanwhile it has another, and the same token
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # another program was quicker
            other.bind(("127.0.0.1", first.port))
            other.listen()
        elsewhere = server.start(folder_of_one)
    assert elsewhere != first.address
    assert elsewhere.partition("token=")[2] == first.token


def test_a_server_that_cannot_start_says_why_and_the_sweep_goes_on(folder_of_one, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with pytest.raises(ReportError, match="could not be started"):
        server.start(folder_of_one)
    LivePage(folder_of_one / "digits").say()
    assert "could not be started, and the sweep goes on without" in capsys.readouterr().err


def test_a_sweep_with_a_page_is_refused_before_ray_starts_where_packages_are_missing(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"web=True needs starlette and uvicorn: pip install 'tunelight\[web\]'"):
        check_installed(web=True)


@pytest.mark.parametrize(("streams", "driven", "leaves"), [(0, False, True), (1, False, False), (0, True, False)])
def test_it_leaves_once_no_page_is_open_and_no_sweep_runs(tmp_path, monkeypatch, streams, driven, leaves):
    monkeypatch.setattr(server, "_IDLE_S", 0.1)
    monkeypatch.setattr(server, "_LOOK_S", 0.15)
    own: Any = SimpleNamespace(should_exit=False)
    page: Any = SimpleNamespace(streams=streams)
    sweeps: Any = SimpleNamespace(names=list, any_driven=lambda: driven)

    async def watch() -> None:
        task = asyncio.create_task(server._leave_when_idle(own, page, sweeps, tmp_path))
        await asyncio.sleep(0.6)
        task.cancel()

    asyncio.run(watch())
    assert own.should_exit is leaves


def test_an_address_that_cannot_be_listened_on_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for host, port in (("127.0.0.1", taken.getsockname()[1]), ("no.such.host.invalid", None), ("192.0.2.1", None)):
            with pytest.raises(SettingsError, match=r"cannot listen|is not known"):
                server._listen(host, port)

"""GangTrainable against a fake gang: what Tune is told, and when; which trial it trains, and how long."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
from ray.exceptions import RayActorError
from ray.tune.result import RESULT_DUPLICATE, SHOULD_CHECKPOINT
from ray.tune.schedulers.trial_scheduler import TrialScheduler

import tunelight as tl
from tests.kit import tasks
from tests.kit.fakes import FakeGang, MemoryControl
from tests.kit.heads import Heads
from tests.kit.recording import Clock, Sweep, read_lines, replay_scheduler
from tests.kit.recording import written_checkpoint as written
from tests.kit.waiting import until
from tunelight.checkpoints import files as checkpoints
from tunelight.errors import CheckpointError, GangError, SettingsError, TrialError, TrialStopped
from tunelight.extras.plain_tune import gang_trainable
from tunelight.messages import RESULT_KEY, CheckpointInfo, Continue, Place, Resize, Stop
from tunelight.policies import FailurePolicy
from tunelight.record import create_sweep_folder, read_record
from tunelight.resources import reserve
from tunelight.schedulers import ASHA
from tunelight.session import session
from tunelight.session.mailbox import Mailbox
from tunelight.session.session import get_session
from tunelight.trial import trainable
from tunelight.trial.trainable import GangTrainable, make_trainable
from tunelight.trial.trial import Trial, trial_seed

Make = Callable[..., GangTrainable]
RETRY = FailurePolicy(1, retry_exceptions=True)


def reporting(config: dict[str, Any]) -> None:
    for loss in config.get("losses", (1.0, 1 / 2, 1 / 3)):
        tl.report({"loss": loss})
    if "error" in config:
        raise config["error"]


def write(path: str) -> None:
    Path(path).write_text("weights")


def saving(config: dict[str, Any]) -> None:
    context = tl.get_context()
    get_session().boundary.writer = write
    while context.number < 3:
        tl.report({"loss": 1.0 / (context.number + 1), "resumed": tl.get_checkpoint_path() or ""})


def ahead(config: dict[str, Any]) -> None:
    """Write a checkpoint at each of many reports, the best one last; note for what ``reason`` it is stopped.

    ``trains_s``: for how long it trains before each.
    """
    context = tl.get_context()
    tl.get_checkpoint_path()  # its state is the number of its report
    try:
        while context.number < config["reports"]:
            time.sleep(config.get("trains_s", 0.0))
            tl.report({"loss": 1.0 / (context.number + 1)}, checkpoint=write)
    except TrialStopped as stop:
        if "reason" in config:
            Path(config["reason"]).write_text(str(stop))
        raise


def background(config: dict[str, Any]) -> None:
    """Report with checkpoints that are written as a strategy's are; the last one takes its time."""
    context, session = tl.get_context(), get_session()

    def save(path: str) -> None:
        last = context.number == 3

        def late() -> None:
            time.sleep(0.2 * last)
            write(path)

        session.writing.defer(late)

    session.boundary.writer = save
    while context.number < 3:
        value = 1.0 / (context.number + 1)
        tl.report({"loss": value, "resumed": tl.get_checkpoint_path() or ""}, checkpoint=save)
        if context.number == config.get("fail_at") and tl.get_checkpoint_path() is None:
            raise config["error"]


@pytest.fixture
def folder(heads: Heads) -> Path:
    """Return the folder of trial 00000, which ``make`` makes."""
    return heads.folder()


@pytest.fixture
def make(heads: Heads) -> Make:
    def build(train: Callable[..., Any], config: dict[str, Any] | None = None, **spec: Any) -> GangTrainable:
        cls = make_trainable(tasks.trial_spec(cloudpickle.dumps(train), **spec))
        return heads.make(cls, config or {"lr": 0.1})

    return build


def save(one: GangTrainable, folder: Path, number: int = 0) -> Path:
    target = folder / f"checkpoint_{number:06}"
    target.mkdir()
    one.save_checkpoint(str(target))
    return target


def test_each_step_is_one_report_from_a_gang_that_the_first_one_starts_and_the_last_is_the_end(make: Make) -> None:
    before, one = FakeGang.formed, make(reporting)
    assert FakeGang.formed == before
    results = [one.step() for _ in range(4)]
    assert FakeGang.formed == before + 1
    assert [r["training_iteration"] for r in results[:3]] == [1, 2, 3]
    assert results[2]["loss"] == pytest.approx(1 / 3)
    assert results[3] == {RESULT_DUPLICATE: True, "done": True}

    def lists(value: Any) -> bool:
        return isinstance(value, list) or (isinstance(value, dict) and any(map(lists, value.values())))

    assert not any(map(lists, results)), "Tune's logger for TensorBoard would try to draw it"


def test_the_first_report_of_each_trial_tells_on_whom_it_trains_and_whether_that_is_warm(make, heads) -> None:
    one: Any = make(reporting)
    began = time.time()
    told = [one.step()[RESULT_KEY]["gang"] for _ in range(2)]
    heads.reset(one, {"lr": 0.2})
    told.append(one.step()[RESULT_KEY]["gang"])
    assert told[1] is None
    assert [gang["nodes"] for gang in (told[0], told[2])] == [("host#node-1",)] * 2
    assert [gang["warm"] for gang in (told[0], told[2])] == [False, True]
    assert began <= told[0]["began"] <= told[0]["ready"] <= told[2]["began"] == told[2]["ready"]
    heads.reset(one, {})
    one._gang.unfit = "rank 0 left a thread"
    result = one.step()
    assert result[RESULT_KEY]["notes"] == ("a worker is replaced: rank 0 left a thread",)
    assert result[RESULT_KEY]["gang"]["warm"] is False


def test_a_gang_that_can_never_be_had_ends_the_trial_alone(make, heads, monkeypatch) -> None:
    def blocked(self: Any, size: int | None = None) -> None:
        self.met = False
        raise GangError("no answer, as of a port that a firewall blocks", "exception")

    one = make(reporting, reports_to="sweep")
    with monkeypatch.context() as now:
        now.setattr(FakeGang, "heal", blocked)
        assert "firewall" in one.step()[RESULT_KEY]["error"]["message"]
    heads.reset(one, {})
    assert one.step()["training_iteration"] == 1  # on another gang


def test_a_failed_trial_is_tried_again_as_often_as_the_policy_says_and_ends_as_a_result_without_metrics(make) -> None:
    failures = FailurePolicy(2, retry_exceptions=True, backoff_s=0)
    one = make(reporting, {"losses": [1.0], "error": ValueError("no more")}, reports_to="sweep", failures=failures)
    results = [one.step() for _ in range(2)]
    assert [bool(r[RESULT_KEY]["error"]) for r in results] == [False, True]
    assert [text.count("going on from the beginning") for text in results[1][RESULT_KEY]["notes"]] == [1, 1]
    assert results[1]["done"] is True
    assert "loss" not in results[1]
    assert results[1][RESULT_KEY]["error"]["type_name"] == "ValueError"


def test_training_code_knows_a_pause_from_a_stop(make: Make, heads: Heads, folder: Path, tmp_path: Path) -> None:
    reason = tmp_path / "reason"
    config = {"reports": 9, "reason": str(reason)}
    one = make(ahead, config, reports_to="sweep")
    one.step()
    one.save_checkpoint(str(folder))  # Tune goes on after all
    one.step()
    heads.reset(one, config)
    assert reason.read_text() == "stopped"
    one.step()
    one.save_checkpoint(str(folder))
    heads.reset(one, config)
    assert reason.read_text() == "paused"


def wait_for_checkpoint(trial_dir: Path, number: int) -> None:
    """Wait until the checkpoint of a report, which a thread writes, is whole."""
    until(lambda: number in [one.number for one in checkpoints.find(trial_dir)], 10)


def test_a_retry_goes_back_past_a_torn_checkpoint_and_says_so(make: Make, folder: Path) -> None:
    config = {"fail_at": 2, "error": ValueError("no")}
    one = make(background, config, reports_to="sweep", failures=RETRY)
    one.step()
    one.step()
    wait_for_checkpoint(folder, 2)
    (folder / checkpoints.FOLDER / "report-000002.ckpt").write_text("weig")
    again = one.step()
    assert again["resumed"].endswith("report-000001.ckpt")
    assert again["training_iteration"] == 3  # report 2 came again, and Tune has it
    log = again[RESULT_KEY]["notes"]
    assert any("report-000002.ckpt is torn" in text and "report-000001.ckpt is used instead" in text for text in log)


@pytest.mark.parametrize("heard", [0, 1])
def test_a_trial_whose_head_was_lost_reports_again_what_its_driver_never_heard(make, heads, folder, heard) -> None:
    lost = make(background, reports_to="sweep")
    for _ in range(heard + 1):
        lost.step()
    wait_for_checkpoint(folder, heard + 1)
    heads.passed["00000"] = {"heard": heard}  # the last report was on its way
    result = make(background, reports_to="sweep").step()
    assert result["training_iteration"] == heard + 1
    assert result["resumed"].rpartition("/")[2] == ("report-000001.ckpt" if heard else "")


NAN = float("nan")


@pytest.mark.parametrize("good", [0, 1])
def test_a_metric_that_is_or_becomes_nan_ends_the_trial_as_diverged_with_its_report(make, heads, good) -> None:
    """Also at the first report, before any scheduler is asked."""
    one = make(reporting, {"losses": [0.5] * good + [NAN, 0.1]}, reports_to="sweep", metric="loss")
    assert not any("done" in one.step() for _ in range(good))
    last = one.step()
    assert last["done"] is True
    assert last["loss"] != last["loss"]
    assert last["training_iteration"] == good + 1
    assert last[RESULT_KEY]["error"]["state"] == "DIVERGED"
    assert last[RESULT_KEY]["error"]["message"].startswith(f"loss is nan at report {good + 1}")
    heads.reset(one, {"losses": [0.5]})
    assert one.step()[RESULT_KEY]["gang"]["warm"]


def test_plain_tune_judges_nan_itself(make: Make) -> None:
    one = make(reporting, {"losses": [0.5, NAN, 0.1]}, metric="loss")
    assert ["done" in one.step() for _ in range(4)] == [False, False, False, True]


def test_a_trial_seed_depends_on_the_sweep_and_the_index_alone() -> None:
    assert trial_seed(7, "00003") == trial_seed(7, "abcde_00003")
    assert trial_seed(7, "00003") != trial_seed(7, "00004")
    assert trial_seed(7, "00003") != trial_seed(8, "00003")
    assert 0 <= trial_seed(1, "deadbeef") < 2**32


def test_reports_that_need_no_answer_come_as_a_list_up_to_the_end(make: Make, heads: Heads) -> None:
    one: Any = make(ahead, {"reports": 9}, metric="loss", until=None, reports_to="sweep")
    results = _listed(one.train())
    wait_for_checkpoint(heads.folder(), 9)
    assert [info.number for info in checkpoints.find(heads.folder())] == list(range(1, 10)), "Tune has yet to hear"
    taken = 0
    while not results[-1]["done"]:
        taken = len(results)
        results += _listed(one.train())
    assert _numbers(results) == list(range(1, 10))
    heads.reset(one, {"reports": 1}, "00001")
    kept = [info.number for info in checkpoints.find(heads.folder("00000"))]
    assert kept == sorted({taken, 8, 9} - {0}), "the best is the last; or that of the reports that Tune surely took"
    heads.train(one)
    assert [info.number for info in checkpoints.find(heads.folder("00001"))] == [1]


def test_reports_that_need_an_answer_come_one_by_one(make: Make) -> None:
    asked: Any = make(ahead, {"reports": 5}, metric="loss", until=3, reports_to="sweep")
    numbers = _numbers(asked.train())
    time.sleep(0.2)
    while numbers[-1] < 3:
        numbers += _numbers(asked.train())
    assert numbers == [1, 2, 3]
    assert [_numbers(asked.train()) for _ in range(2)] == [[4], [5]]


def test_reports_of_plain_tune_come_one_by_one_for_it_may_save_at_each(make: Make) -> None:
    plain: Any = make(ahead, {"reports": 5}, metric="loss", until=None)
    for number in range(1, 6):
        time.sleep(0.05)
        assert _numbers(plain.train()) == [number]


def _numbers(results: Any) -> list[int]:
    """Return the numbers of the reports that a call of ``train`` returned."""
    return [result["training_iteration"] for result in _listed(results) if RESULT_DUPLICATE not in result]


def _listed(results: Any) -> list[dict[str, Any]]:
    return results if isinstance(results, list) else [results]


def leaving(config: dict[str, Any]) -> None:
    """Report 20 times; between reports 3 and 4, wait until the ranks are told to leave."""
    context, session = tl.get_context(), get_session()
    session.boundary.writer = write
    while context.number < 20:
        if context.number == 3:
            Drained.between.append(context.number)
            deadline = time.monotonic() + 10
            while not session.boundary._mailbox._queue and time.monotonic() < deadline:
                time.sleep(0.005)
        tl.report({"loss": 1.0 / (context.number + 1)})


class Drained:
    """Says that the node is drained from when training is between reports 3 and 4."""

    between: list[int]

    def __call__(self) -> Stop | None:
        deadline = time.monotonic() + 0.3
        while not self.between and time.monotonic() < deadline:
            time.sleep(0.005)
        return Stop("Ray drains host#abcdef", save=True) if self.between else None


def test_a_save_while_the_ranks_leave_a_drained_node_does_not_end_the_trial(make, tmp_path, monkeypatch) -> None:
    Drained.between = []
    monkeypatch.setattr(trainable, "make_leave_check", lambda gang: Drained())
    one = make(leaving)
    numbers = [one.step()["training_iteration"] for _ in range(4)]
    target = save(one, tmp_path)  # plain Tune does, every so often
    assert numbers == [1, 2, 3, 4]
    assert (target / "report-000004.ckpt").read_text() == "weights"
    with pytest.raises(RayActorError) as caught:  # Tune starts it anew elsewhere
        one.step()
    assert caught.value.preempted


def test_a_trainable_is_named_after_its_train_function_as_tuner_restore_asks_and_reports_one_metric() -> None:
    made: Any
    for made in (saving, functools.partial(saving)):
        assert [gang_trainable(made).__name__ for _ in range(2)] == ["saving", "saving"]
    with pytest.raises(SettingsError, match="one metric"):
        gang_trainable(saving, metric=["loss", "latency"])  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_checkpoint_that_is_finished_after_its_report_comes_with_the_next_result_and_the_best_is_kept(
    make: Make, folder: Path, mode: Any
) -> None:
    one = make(background, reports_to="sweep", metric="loss", mode=mode)
    numbers = []
    for _ in range(3):
        numbers += [info["number"] for info in Heads.train(one)[RESULT_KEY]["checkpoints"]]
    assert one.step() == {RESULT_DUPLICATE: True, "done": True}
    one.cleanup()
    assert numbers in ([1, 2], [1])  # the last is on disk, and stands in no result
    assert [info.number for info in checkpoints.find(folder)] == ([1, 2, 3] if mode == "max" else [2, 3])


def rereading(config: dict[str, Any]) -> None:
    """Fail once; then report whether the checkpoint that training continues from still exists."""
    path = tl.get_checkpoint_path()
    while tl.get_context().number < 6:
        there = path is not None and Path(path).exists()
        tl.report({"loss": 1.0, "there": there}, checkpoint=write)
        if path is None:
            raise ValueError("once")


def test_the_checkpoint_that_a_start_continues_from_stays_while_a_rank_may_read_it(make: Make, folder: Path) -> None:
    one = make(rereading, failures=RETRY, reports_to="sweep")
    assert [Heads.train(one)["there"] for _ in range(6)] == [False, True, True, True, True, True]
    assert one.step()["done"]
    one.cleanup()
    assert [info.number for info in checkpoints.find(folder)] == [5, 6]


def test_plain_tune_saves_each_report_that_has_a_checkpoint_also_one_that_is_being_written_and_none_twice(make) -> None:
    assert SHOULD_CHECKPOINT not in make(reporting).step()
    one: Any = make(background)
    saved = []
    for number in range(4):
        assert Heads.train(one).get(SHOULD_CHECKPOINT, False) is (number < 3)
        saved.append(one.save().checkpoint)
    assert [made is None for made in saved] == [False, False, False, True]
    assert Path(saved[2].path, "report-000003.ckpt").read_text() == "weights"


def test_plain_tune_keeps_the_checkpoints_and_the_gang_its_last_two(make: Make, folder: Path) -> None:
    one = make(background, metric="loss", mode="max")  # the first is the best
    for number in range(1, 5):
        Heads.train(one)
        save(one, folder, number)
    assert [info.number for info in checkpoints.find(folder)] == [2, 3]


def test_a_checkpoint_that_tune_asked_for_is_the_newest_of_an_ended_trial(make: Make, folder: Path) -> None:
    one = make(saving, reports_to="sweep")
    for _ in range(3):
        one.step()
    pointers = [save(one, folder)]
    assert one.step()["done"]
    pointers.append(save(one, folder, 1))
    assert [info and info.number for info in map(checkpoints.read_pointer, pointers)] == [3, 3]


@pytest.fixture
def resized(make: Make) -> Any:
    """Make a trial of 2 to 8 workers that starts with 2."""
    return functools.partial(make, reservation=reserve(workers=(2, 8)).starting(2), start=2, reports_to="sweep")


def grown(one: GangTrainable, size: int = 4) -> Any:
    """Tell its gang that it has grown."""
    gang: Any = one._gang
    gang.size = size
    return gang


@pytest.mark.parametrize(("asked", "possible"), [(4, 4), (1, 2), (99, 8)])
def test_a_gang_is_asked_for_a_size_that_it_can_have_and_only_an_elastic_one(resized, make, asked, possible) -> None:
    one: Any
    for one, wanted in ((resized(reporting), possible), (make(reporting), None)):
        one.step()
        one.decide(Resize(asked))
        assert one._gang.wanted == wanted


def test_each_trial_starts_at_the_starting_size_and_its_gang_gives_back_what_it_has_grown_by(resized, heads) -> None:
    one = resized(reporting)
    one.step()
    assert one._gang.wanted == 2
    one.decide(Resize(8))
    heads.reset(one, {})
    assert one._gang.wanted == 2
    one.step()
    assert one._gang.wanted == 2
    one.decide(Resize(4))
    grown(one)
    while not one.step().get("done"):
        pass
    assert one._gang.wanted == 2


def test_a_stop_ends_a_grown_trial_at_once_for_others_want_what_it_holds(resized: Any) -> None:
    one = resized(reporting)
    one.step()
    one.decide(Resize(4))
    gang = grown(one)
    one.decide(Stop("asha"))
    assert not gang.running
    assert gang.wanted == 2
    assert one.step()["done"]


def test_a_trial_that_is_paused_ends_and_gives_back_and_could_go_on(resized: Any, folder: Path) -> None:
    one = resized(saving)
    one.step()
    one.decide(Resize(4))
    gang = grown(one)
    pointer = save(one, folder)
    found: Any = checkpoints.read_pointer(pointer)
    assert found.number == 1
    assert not gang.running
    assert gang.wanted == 2
    again = one.step()
    assert again["training_iteration"] == 2
    assert again["resumed"].endswith("report-000001.ckpt")


def test_a_paused_trial_whose_checkpoint_is_gone_starts_from_scratch(resized, make, heads, folder) -> None:
    one = resized(background)
    one.step()
    pointer = save(one, folder)
    heads.reset(one, {})
    for left in (folder / checkpoints.FOLDER).iterdir():
        left.unlink()
    with pytest.raises(CheckpointError, match="no checkpoint of it is left"):
        heads.restore(make(background), pointer)  # plain Tune is told by an exception
    heads.restore(one, pointer)
    again = one.step()  # what it reports once more is not passed on
    assert again["training_iteration"] == 2
    assert any("no checkpoint is left: it starts from scratch" in text for text in again[RESULT_KEY]["notes"])


def test_a_branch_begins_with_its_copy_and_fails_where_that_is_torn_before_it_has_another(tmp_path: Path) -> None:
    written(tmp_path / "trial_00000", 2)
    checkpoints.copy_from_trial(tmp_path / "trial_00000", tmp_path / "trial_00001", None, 2)
    spec = tasks.trial_spec(b"", reports_to="sweep")
    trial, again = (Trial(spec, "00001", tmp_path / "trial_00001", {}, root="00000", heard=2) for _ in range(2))
    trial.recover()
    found: Any = trial.resume
    assert (found.number, found.value, found.seconds, trial.number) == (2, None, 9.0, 2)
    assert Path(found.path).parent.parent == tmp_path / "trial_00001"
    Path(found.path).write_text("torn")
    with pytest.raises(TrialError, match=r"is torn or gone\. Branch its parent again"):
        trial.newest(2, None)
    with pytest.raises(TrialError, match="Branch its parent again"):
        again.recover()


def where(config: dict[str, Any]) -> None:
    context = tl.get_context()
    tl.report({"loss": 1.0, "repetition": context.repetition, "fold": str(context.fold), "folds": str(context.folds)})


@pytest.mark.parametrize(
    ("repetition", "folds", "fold"), [(0, None, None), (2, None, None), (0, 3, 0), (2, 3, 2), (3, 3, 0)]
)
def test_a_trial_learns_its_repetition_and_fold_and_the_next_on_its_gang_its_own(heads, repetition, folds, fold):
    spec = tasks.trial_spec(cloudpickle.dumps(where), folds=folds)
    heads.passed["00000"] = {"repetition": repetition}
    head = heads.make(make_trainable(spec), {"lr": 0.1})
    result = head.step()
    assert (result["repetition"], result["fold"], result["folds"]) == (repetition, str(fold), str(folds))
    head.step()
    heads.reset(head, {"lr": 0.1}, "00001")
    assert head.step()["repetition"] == 0


def test_rank_0_counts_the_seconds_of_training_and_not_those_of_its_waits(tmp_path: Path) -> None:
    clock, events, box = Clock(), list[Any](), Mailbox(1)

    def take(*_: Any) -> Continue:
        clock.now += 50.0
        return Continue(None)

    vars(box)["take"] = take
    resume = CheckpointInfo("x.ckpt", number=2, seconds=7.0)
    task = tasks.trial(tmp_path, resume=resume)
    one = session.Session(*task, Place(0, 1, 0, 1, 0, "x"), MemoryControl(), events.append, box, clock=clock)
    assert one.context.resume == resume
    clock.now += 30.0  # the train function is fetched and unpickled
    one.begin()
    for _ in range(2):
        clock.now += 2.0
        one.context.report({"loss": 1.0}, checkpoint=write)
    assert [event.seconds for event in events] == [9.0, 11.0]
    assert [info.seconds for info in checkpoints.find(tmp_path)] == [9.0, 11.0]


def seconds(result: dict[str, Any]) -> float:
    return float(result[RESULT_KEY]["seconds"])


def test_a_cold_trial_is_not_charged_its_gang_s_start_nor_a_paused_one_its_pause(heads, monkeypatch) -> None:
    heal = FakeGang.heal

    def slowly(self: FakeGang, size: int | None = None) -> None:
        time.sleep(1.0 if self.size == 0 else 0.0)
        heal(self, size)

    monkeypatch.setattr(FakeGang, "heal", slowly)
    spec = tasks.trial_spec(cloudpickle.dumps(ahead), metric="loss", reports_to="sweep")
    config = {"reports": 6, "trains_s": 0.1}
    one = heads.make(make_trainable(spec), config)
    first = heads.train(one)
    assert 0.1 <= seconds(first) < 0.6
    assert first["time_total_s"] > 1.0  # by Tune's count, which has the start in it
    pointer = save(one, heads.folder())
    heads.reset(one, config, "00001")
    time.sleep(0.5)
    again = heads.make(make_trainable(spec), config)
    heads.restore(again, pointer)
    second = heads.train(again)
    assert second["training_iteration"] == 2
    assert seconds(first) + 0.1 <= seconds(second) < seconds(first) + 0.6


def filed(scheduler: ASHA) -> Any:
    return [[rung.filed for rung in rungs] for rungs in scheduler._brackets]


def test_a_replay_files_at_the_same_seconds_as_the_live_sweep_did(tmp_path: Path) -> None:
    trials, decisions = dict[str, Any](), list[str]()
    live, replayed = (
        ASHA("loss", "min", unit="seconds", max_t=100, grace_period=10, reduction_factor=2) for _ in range(2)
    )
    sweep = Sweep(create_sweep_folder(tmp_path, "sweep"))
    for name in "ab":
        trials[name] = sweep.run(lr=0.1)
        live.on_trial_add(None, trials[name])  # type: ignore[arg-type]
    reports = [("a", 1, 4.0, 0.5), ("b", 1, 9.0, 0.4), ("a", 2, 8.0, 0.5), ("a", 3, 10.5, 0.5), ("b", 2, 21.0, 0.4)]
    for name, number, trained, loss in reports:  # b trains slowly; the record's clock says something else again
        sweep.clock.now += 60.0  # starts, pauses, and the other trial's reports
        sweep.report(trials[name], number, loss, own={"seconds": trained})
        flat = {"training_iteration": number, "loss": loss, "time_total_s": 60.0 * number}
        trials[name].temporary_state = SimpleNamespace(ray_actor=None)
        decisions.append(live.on_trial_result(None, trials[name], {**flat, f"{RESULT_KEY}/seconds": trained}))  # type: ignore[arg-type]
    assert decisions == [TrialScheduler.CONTINUE] * 5
    replay_scheduler(read_lines(sweep.folder), replayed)
    assert filed(replayed) == filed(live)
    assert {name: loss for name, (loss, _) in filed(live)[0][0].items()} == {"00000": 0.5, "00001": 0.4}
    assert [trial.trained for trial in read_record(sweep.folder).trials.values()] == [10.5, 21.0]

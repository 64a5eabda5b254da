"""The runner, with worker processes that are real, and really killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sample_claims as sample

from tenfold.claims import Verdict, run_claims

HERE = Path(__file__).parent
RUN = """
import sys
sys.path.insert(0, sys.argv[1])
import sample_claims as sample
from tenfold.claims import run_claims
if __name__ == "__main__":
    run_claims([sample.SLOW], scale="smoke", seeds=3, jobs=2, cache=sys.argv[2])
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def results(cache):
    claims = [
        sample.HOLDS,
        sample.RAISES,
        sample.DOES_NOT_HOLD,
        sample.EXITS,
        sample.INCONCLUSIVE,
        sample.IS_KILLED,
        sample.LACKS_DATA,
        sample.FORGETS,
        sample.NOT_FINITE,
        sample.GLOBAL,
        sample.PRINTS,
        sample.KNOWN_TO_FAIL,
        sample.EXACT,
    ]
    return {result.claim.id: result for result in run_claims(claims, scale="smoke", jobs=2, cache=cache)}


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (sample.HOLDS, Verdict.HOLDS),
        (sample.EXACT, Verdict.HOLDS),
        (sample.PRINTS, Verdict.HOLDS),
        (sample.DOES_NOT_HOLD, Verdict.DOES_NOT_HOLD),
        (sample.KNOWN_TO_FAIL, Verdict.DOES_NOT_HOLD),
        (sample.INCONCLUSIVE, Verdict.INCONCLUSIVE),
    ],
)
def test_claims_beside_crashing_ones_get_their_verdict(results, claim, verdict):
    result = results[claim.id]
    assert result.verdict is verdict
    assert [run.seed for run in result.runs] == [0, 1]
    assert all(run.seconds > 0 and run.versions["torch"] and run.machine for run in result.runs)


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (sample.RAISES, "seed 0: ZeroDivisionError: no throws, no share"),
        (sample.EXITS, "seed 0: the worker process ended with exit code 3 in the middle of the measurement"),
        (sample.IS_KILLED, "seed 0: the worker process was killed by SIGKILL, perhaps because the memory was full"),
        (
            sample.LACKS_DATA,
            "needs the data set coins: the data set 'coins' is not here; put coins.csv into the folder",
        ),
        (sample.FORGETS, "returned no number 'distance', which a criterion needs; it returned: share"),
        (sample.NOT_FINITE, "loss is nan in seed 1"),
    ],
)
def test_a_claim_that_fails_to_run_is_an_error_with_its_message(results, claim, message):
    result = results[claim.id]
    assert result.verdict is Verdict.ERROR
    assert message in result.error
    assert "\n" not in result.error
    assert not result.as_expected


def test_what_a_process_said_before_it_died_is_kept(results):
    assert "about to leave" in results[sample.EXITS.id].runs[0].traceback
    assert "raise ZeroDivisionError" in results[sample.RAISES.id].runs[0].traceback


def test_only_an_unexpected_failure_is_one(results):
    assert results[sample.KNOWN_TO_FAIL.id].as_expected
    assert results[sample.INCONCLUSIVE.id].as_expected
    assert not results[sample.DOES_NOT_HOLD.id].as_expected


def test_a_worker_has_one_thread_and_seeded_generators(results):
    import random

    for run in results[sample.GLOBAL.id].runs:
        assert run.measurement.numbers == {"draw": random.Random(run.seed).random(), "threads": 1.0}


def test_the_environment_of_the_runner_stays_as_it_was(cache, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = dict(os.environ)
    (result,) = run_claims([sample.GLOBAL], scale="smoke", seeds=1, cache=cache, fresh=True)
    assert result.runs[0].measurement.numbers["threads"] == 1
    assert dict(os.environ) == before


def test_a_measurement_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TENFOLD_SAMPLE_TRACES", str(tmp_path / "traces"))
    (tmp_path / "traces").mkdir()

    def run(**options):
        (result,) = run_claims([sample.TRACED], scale="smoke", cache=tmp_path / "cache", jobs=1, **options)
        return result, len(list((tmp_path / "traces").iterdir()))

    first, made = run()
    assert made == 2
    assert not any(run.cached for run in first.runs)
    again, made = run()
    assert made == 2
    assert all(run.cached for run in again.runs)
    assert [run.measurement for run in again.runs] == [run.measurement for run in first.runs]
    more, made = run(seeds=3)
    assert made == 3
    assert [run.cached for run in more.runs] == [True, True, False]
    broken = next((tmp_path / "cache" / sample.TRACED.id).glob("smoke-seed1-*.json"))
    broken.write_text('{"seed": 1, "measure')
    _, made = run()
    assert made == 4
    _, made = run(fresh=True)
    assert made == 6


def test_progress_counts_up_to_all_and_names_every_claim_once(cache, results):
    seen = []
    claims = [sample.HOLDS, sample.RAISES, sample.EXACT]
    run_claims(claims, scale="smoke", seeds=3, jobs=1, cache=cache, on_progress=seen.append)
    assert seen[0].total == 9
    assert seen[0].cached == 4
    assert (seen[-1].done, seen[-1].seconds_left, seen[-1].running) == (9, 0.0, ())
    assert [progress.done for progress in seen] == sorted(progress.done for progress in seen)
    assert sorted(result.claim.id for progress in seen for result in progress.finished) == sorted(c.id for c in claims)
    known = [task.expected_seconds for progress in seen for task in progress.running if task.claim == sample.HOLDS.id]
    assert all(expected is not None for expected in known)


def traces(folder, count, process):
    deadline = time.monotonic() + 60
    while len(list(folder.iterdir())) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the measurements did not start"
        time.sleep(0.05)


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_process_and_goes_on_where_it_stopped(tmp_path, monkeypatch, ending):
    folder = tmp_path / "traces"
    folder.mkdir()
    script = tmp_path / "run.py"
    script.write_text(RUN)
    environment = {**os.environ, "TENFOLD_SAMPLE_TRACES": str(folder)}
    command = [sys.executable, str(script), str(HERE), str(tmp_path / "cache")]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        traces(folder, 3, process)  # the first seed is done, the others sleep
        deadline = time.monotonic() + 30
        while not list((tmp_path / "cache").rglob("smoke-seed0-*.json")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(ending)
        _, said = process.communicate(timeout=30)
    if ending == signal.SIGINT:
        assert "1 of 3 measurements are done and saved" in said
    workers = {int(path.name.rpartition("process")[2]) for path in folder.iterdir()}
    deadline = time.monotonic() + 10
    while any(is_running(pid) for pid in workers):
        assert time.monotonic() < deadline, "a worker outlived its runner"
        time.sleep(0.05)

    monkeypatch.setenv("TENFOLD_SAMPLE_TRACES", str(folder))
    monkeypatch.setenv("TENFOLD_SAMPLE_HURRY", "yes")
    (result,) = run_claims([sample.SLOW], scale="smoke", seeds=3, jobs=1, cache=tmp_path / "cache")
    assert [run.cached for run in result.runs] == [True, False, False]
    assert result.verdict is Verdict.INCONCLUSIVE or result.verdict is Verdict.HOLDS
    assert len(list(folder.iterdir())) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [({"scale": "huge"}, "scale='huge'"), ({"seeds": 0}, "seeds=0"), ({"jobs": 0}, "jobs=0")],
)
def test_options_out_of_range_are_refused(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run_claims([sample.EXACT], cache=tmp_path, **options)


def test_two_claims_of_one_id_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"two claims have the id 'sample\.exact'"):
        run_claims([sample.EXACT, sample.EXACT], cache=tmp_path)


def test_no_claim_is_no_work(tmp_path):
    assert run_claims([], cache=tmp_path) == []

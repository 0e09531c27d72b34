"""One job runs all checks of a program, and no failure hides what comes after it."""

import pytest

from tests.support.check_jobs import CheckJobs, checks_of, outcomes_of

NAMES = ["check_a", "check_b", "check_c", "check_d"]


def job_that_dies_in(*failing, workers=2):
    """Returns what runs checks as a job does, and a list of what it was started with."""
    started = []

    def run(names):
        started.append(list(names))
        lines = []
        for name in names:
            lines += [f"[worker {worker}] {name} begins" for worker in range(workers)]
            if name in failing:
                lines += [f"[worker 1] {name} is wrong", "tf-config: worker 1 ended"]
                return 1, "\n".join(lines)
            lines += [f"[worker {worker}] {name} passed" for worker in range(workers)]
        return 0, "\n".join(lines)

    return run, started


def failures(jobs, run, names=NAMES):
    return [jobs.failure("key", name, lambda: NAMES, run, 2) for name in names]


def test_one_job_is_enough_where_all_pass():
    run, started = job_that_dies_in()
    assert failures(CheckJobs(), run) == [None] * 4
    assert started == [NAMES]


def test_a_check_that_fails_hides_no_other():
    run, started = job_that_dies_in("check_b", "check_c")
    first, second, third, last = failures(CheckJobs(), run)
    assert first is None and last is None
    assert "check_b is wrong" in second and "check_a" not in second
    assert "check_c is wrong" in third
    assert started == [NAMES, NAMES[2:], NAMES[3:]]


def test_a_check_that_fails_hides_no_other_in_any_order():
    run, started = job_that_dies_in("check_b")
    last, second, first = failures(CheckJobs(), run, ["check_d", "check_b", "check_a"])
    assert last is None and "check_b is wrong" in second and first is None
    assert started == [NAMES, NAMES[2:]]


def test_a_program_that_does_not_come_to_its_checks_is_started_once():
    started = []

    def run(names):
        started.append(names)
        return 1, "[worker 0] ImportError"

    for failure in failures(CheckJobs(), run):
        assert "no check was begun (exit code 1)" in failure and "ImportError" in failure
    assert len(started) == 1


def test_a_check_passes_on_all_workers_or_has_failed():
    output = "[worker 0] check_a begins\n[worker 1] check_a begins\n[worker 0] check_a passed"
    assert outcomes_of(["check_a", "check_b"], 2, None, output) == {
        "check_a": "check_a (not done in time)\n" + "\n".join(output.splitlines()[1:])
    }


def test_a_job_that_fails_at_its_end_is_the_last_checks_failure():
    output = "check_a begins\ncheck_a passed\ncheck_b begins\ncheck_b passed\nAborted"
    found = outcomes_of(["check_a", "check_b"], 0, 134, output)
    assert found["check_a"] is None and "(exit code 134)" in found["check_b"]


def test_checks_are_read_from_a_program():
    names = [each.values[0].name for each in checks_of("accumulation.py")]
    assert "check_adam_over_two_steps" in names
    (only,) = checks_of("accumulation.py", only=["adam_over_two_steps"])
    assert only.values[0].program == "accumulation.py"
    with pytest.raises(ValueError, match="has checks .*Received: .'check_nothing'"):
        checks_of("accumulation.py", only=["nothing"])
    with pytest.raises(ValueError, match="Received: "):
        checks_of("endless.py")

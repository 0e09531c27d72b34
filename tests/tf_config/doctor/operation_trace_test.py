"""The first operation that differs between the files of workers."""

import json

import pytest

from tf_config import ClusterConfigError
from tf_config.cli import main
from tf_config.doctor.operation_trace import (
    Operation,
    OperationTrace,
    describe,
    first_difference,
    read,
)

END = 100.0


def trace(index, *operations, begun=None, time=END):
    if begun is None:
        begun = [max((n for s, n, *_ in operations if s == stream), default=0) for stream in (0, 1)]
    return OperationTrace(("worker", index), time, "SIGUSR1", f"train.py, line {index}", begun, [
        Operation(*each) for each in operations
    ])  # fmt: skip


def step(number, name="all_reduce of 8 bytes", begin=None, end=50.0):
    return 0, number, name, 10.0 + number if begin is None else begin, end


def save(number, begin=80.0):
    return 1, number, "broadcast", begin, None


def test_workers_that_did_the_same_do_not_differ():
    assert first_difference([trace(0, step(1), step(2)), trace(1, step(1), step(2))]) is None


def test_another_name_is_a_difference():
    other = step(2, "all_reduce of 4 bytes")
    found = first_difference([trace(0, step(1), step(2)), trace(1, step(1), other)])
    assert found.number == 2
    assert found.operations["worker 1"].name == "all_reduce of 4 bytes"


def test_the_size_of_an_operation_that_runs_is_unknown_and_no_difference():
    running = step(2, "all_reduce", end=None)
    assert first_difference([trace(0, step(2)), trace(1, running)]) is None
    running = step(2, "all_gather", end=None)
    assert first_difference([trace(0, step(2)), trace(1, running)]).number == 2


def test_an_operation_that_a_worker_has_not_begun_is_a_difference():
    found = first_difference([trace(0, step(1), step(2)), trace(1, step(1)), trace(2, step(1))])
    assert found.number == 2
    assert [each is None for each in found.operations.values()] == [False, True, True]


def test_but_not_if_it_was_begun_only_just_before_the_file_was_written():
    just = step(2, begin=END - 0.5)
    assert first_difference([trace(0, step(1), just), trace(1, step(1))]) is None
    assert first_difference([trace(0, step(1), just), trace(1, step(1), time=END + 1)]).number == 2


def test_what_a_worker_does_not_remember_is_no_difference():
    old = [step(number) for number in range(1, 5)]
    assert first_difference([trace(0, *old), trace(1, *old[2:])]) is None
    assert (
        first_difference(
            [
                trace(0, *old),
                trace(1, save(1), begun=[4, 1]),
            ]
        ).number
        == 1
    )


def test_of_several_differences_the_earliest_is_the_first():
    first = trace(0, step(1), step(2), (1, 1, "a", 5.0, None))
    second = trace(1, step(1), step(2, "x of 1 bytes"), (1, 1, "b", 6.0, None))
    assert first_difference([first, second]).operations["worker 0"].name == "a"


def test_what_is_said(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    lines = list(describe([trace(0, step(1), save(1)), trace(1, step(1))]))
    assert lines[0] == "the first difference is operation 1:"
    assert lines[1].startswith("  worker 0: broadcast, begun at ")
    assert lines[1].endswith(":20.000, not ended")
    assert "worker 1: has not begun it; its last one is all_reduce of 8 bytes number 1" in lines[2]
    assert lines[-1].endswith("in train.py, line 1")


def test_files_are_read_as_they_are_written(tmp_path, capsys):
    traces = [trace(10, step(1)), trace(2, step(1), save(1))]
    for each in traces:
        each.path(tmp_path).write_text(each.to_json())
    assert [each.worker for each in read(tmp_path)] == ["worker 2", "worker 10"]
    assert first_difference(read(tmp_path)) == first_difference(traces[::-1])
    assert main(["doctor", "--trace", str(tmp_path)]) == 1
    assert "worker 10: has not begun it" in capsys.readouterr().out
    traces[0].path(tmp_path).write_text(trace(10, step(1), save(1)).to_json())
    assert main(["doctor", "--trace", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("no difference in the last operations of 2 workers\n")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", json.dumps({**json.loads(trace(1).to_json()), "begun": ["x"]}),
     json.dumps({**json.loads(trace(1).to_json()), "operations": [[1]]})],
)  # fmt: skip
def test_damaged_files(text, tmp_path):
    trace(0).path(tmp_path).write_text(trace(0).to_json())
    trace(1).path(tmp_path).write_text(text)
    with pytest.raises(ClusterConfigError, match="must be a file that a worker has written"):
        read(tmp_path)


def test_one_file_cannot_be_compared(tmp_path, capsys):
    trace(0).path(tmp_path).write_text(trace(0).to_json())
    for directory in (tmp_path, tmp_path / "nosuch"):
        assert main(["doctor", "--trace", str(directory)]) == 2
        assert "with the files of two workers or more" in capsys.readouterr().err

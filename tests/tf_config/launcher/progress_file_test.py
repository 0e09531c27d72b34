"""What a process reports in the launcher's memory."""

import os
import threading

import pytest

from tf_config.launcher.progress_file import (
    ProgressFile,
    Report,
    Sample,
    file_of,
    write_progress,
    write_report,
)


@pytest.fixture
def file():
    file = ProgressFile()
    yield file
    file.close()


def test_the_text_and_the_numbers_do_not_touch_each_other(file):
    path = file_of(file.environ)
    assert (file.text(), file.report()) == ("", None)
    report = Report(1.5, [Sample("steps_total", 3), Sample("queue_depth", 1, ("updates",))])
    write_report(path, report)
    assert (file.text(), file.report()) == ("", report)
    write_progress(path, "after step 3, in " + "x" * 2000)
    assert file.report() == report
    write_report(path, Report(2.5, []))
    assert file.report() == Report(2.5, [])
    assert file.text().startswith("after step 3") and len(file.text()) < 1024


def test_of_a_damaged_report_the_previous_one_stays(file):
    path = file_of(file.environ)
    write_report(path, Report(1.0, [Sample("steps_total", 111)]))
    before = file.report()
    with open(path, "r+b") as stream:
        data = stream.read()
        stream.seek(data.index(b"111"))
        stream.write(b"999")
    assert file.report() == before


def test_a_report_is_read_whole_or_not_at_all_while_it_is_written(file):
    path, ended = file_of(file.environ), threading.Event()

    def write():
        for number in range(2000):
            samples = [Sample("steps_total", number)] * (1 + number % 50)
            write_report(path, Report(float(number), samples))
        ended.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen = set()
    while not ended.is_set():
        report = file.report()
        if report is not None:
            assert {sample.value for sample in report.samples} == {report.time}
            seen.add(report.time)
    thread.join()
    assert seen


@pytest.mark.parametrize(
    "text",
    ["", "1", "[1]", '[1, [["a"]]]', '[1, [["a", null, []]]]', '[1, [["a", 1, [2]]]]', "[" * 9],
)
def test_what_is_no_report(text):
    assert Report.from_json(text) is None


def test_a_closed_file_is_empty(file):
    write_progress(file_of(file.environ), "here")
    file.close()
    assert (file.text(), file.report()) == ("", None)


def test_the_file_is_not_inherited(file):
    descriptor = int(file_of(file.environ).rpartition("/")[2])
    assert not os.get_inheritable(descriptor)

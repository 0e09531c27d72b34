import io
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_config import Task
from tf_config.launcher import console as output
from tf_config.launcher.console import Console, Line, LineAssembler, TaskLog

FIRST, SECOND = Task("worker", 0), Task("worker", 1)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\nb\n", [Line("a", False), Line("b", False)]),
        (b"a\r\nb", [Line("a", False), Line("b", False)]),
        (b"10%\r20%\r30%\n", [Line("30%", True)]),
        (b"1/2\b\b\b\r2/2\n", [Line("2/2", True)]),
        ("é\n".encode(), [Line("é", False)]),
        (b"\xff\n", [Line("\ufffd", False)]),
        (b"\n", [Line("", False)]),
        (b"", []),
    ],
)
def test_lines_are_what_a_terminal_shows_in_the_end(data, lines):
    assembler = LineAssembler()
    assert assembler.feed(data) + assembler.close() == lines


@given(st.binary(max_size=60), st.integers(0, 60))
def test_it_does_not_matter_where_the_stream_is_cut(data, cut):
    whole, parts = LineAssembler(), LineAssembler()
    expected = whole.feed(data) + whole.close()
    assert parts.feed(data[:cut]) + parts.feed(data[cut:]) + parts.close() == expected


def test_each_line_carries_its_task():
    stream = io.StringIO()
    console = Console(stream, FIRST)
    console.line(FIRST, Line("a", False))
    console.line(SECOND, Line("\x1b[1mb\x1b[0m", False))
    console.note("c")
    assert stream.getvalue() == "[worker 0] a\n[worker 1] b\ntf-config: c\n"


def test_a_pipe_that_takes_no_more_for_now_is_waited_for():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with os.fdopen(writing, "w") as stream, os.fdopen(reading) as reader:
        console = Console(stream, FIRST)
        read = []
        thread = threading.Thread(target=lambda: read.extend(reader))
        timer = threading.Timer(0.2, thread.start)
        timer.start()
        for number in range(4000):
            console.line(FIRST, Line(f"{number:060}", False))
        stream.close()
        timer.join()
        thread.join()
    assert [int(line.split()[-1]) for line in read] == list(range(4000))


def test_only_the_first_tasks_progress_is_shown():
    stream = io.StringIO()
    console = Console(stream, FIRST)
    console.progress(FIRST, "1/2")
    console.line(SECOND, Line("2/2", True))
    console.line(FIRST, Line("2/2", True))
    assert stream.getvalue() == "[worker 0] 2/2\n"


def test_on_a_terminal_lines_go_above_the_live_bar(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    console = Console(stream, FIRST)
    console.progress(FIRST, "1/2")
    console.line(SECOND, Line("hello", False))
    clear = "\r\x1b[2K"
    assert stream.getvalue() == f"[worker 0] 1/2{clear}[worker 1] hello\n[worker 0] 1/2"


NOTE = "I0000 00:00:1795192325.998031    3853 port.cc:153] oneDNN custom operations are on."
WAIT = "W1122 22:13:44.1 140 waiting.py:48] worker 1 waits for worker 2 (node3:2222): 5 s of 300 s."


def test_a_wait_is_a_line_where_there_is_no_terminal():
    stream = io.StringIO()
    console = Console(stream, FIRST)
    console.line(SECOND, Line(WAIT, False))
    console.tick()
    assert stream.getvalue() == f"[worker 1] {WAIT}\n"


def test_a_wait_turns_on_a_terminal_until_it_is_over(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    now = [100.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    stream = Terminal()
    console = Console(stream, FIRST)

    def written():
        text = stream.getvalue()
        stream.truncate(0)
        stream.seek(0)
        return text

    console.tick()
    assert written() == ""
    console.line(SECOND, Line(WAIT, False))
    first = written()
    assert first.endswith(" worker 1 waits for worker 2 (node3:2222): 5 s of 300 s")
    now[0] += 0.1
    console.tick()
    second = written()
    assert second.startswith("\r\x1b[2K")
    assert second.removeprefix("\r\x1b[2K")[0] != first[0]  # it turns
    console.line(FIRST, Line("hello", False))  # above it
    assert written().startswith("\r\x1b[2K[worker 0] hello\n")
    console.tick()
    assert "waits for" in written()
    console.line(SECOND, Line("worker 2 is here", False))
    console.tick()
    assert "waits for" not in written()
    console.line(SECOND, Line(WAIT, False))
    now[0] += 8  # it says so every five seconds
    console.tick()
    written()
    console.tick()
    assert written() == ""


def test_what_begins_is_one_line_where_there_is_no_terminal():
    stream = io.StringIO()
    console = Console(stream, FIRST)
    console.begin("starting worker 0")
    console.tick()
    console.begin("")
    assert stream.getvalue() == "tf-config: starting worker 0\n"


def test_what_begins_turns_on_a_terminal_until_a_task_speaks(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    now = [100.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    stream = Terminal()
    console = Console(stream, FIRST)
    console.begin("starting worker 0")
    now[0] += 4
    console.line(FIRST, Line(NOTE, False))
    console.tick()
    assert stream.getvalue().endswith(" starting worker 0: 4 s")
    console.line(SECOND, Line("hello", False))
    console.tick()
    assert stream.getvalue().endswith("\r\x1b[2K[worker 1] hello\n")


BAR = "\b\b\b\b\b\r\x1b[1m{}/2\x1b[0m loss"


@pytest.mark.parametrize(
    ("shows_bars", "expected"),
    [
        (True, "start\nEpoch 1/2\nsaved\n2/2 loss: 1\nEpoch 2/2\na\nb, c1/2 loss\n"),
        (False, "start\nsaved\na\nb, c"),
    ],
)
def test_a_stream_of_whole_bars(shows_bars, expected):
    stream = io.StringIO()
    whole = output.WholeBars(stream, shows_bars)
    print("start", file=whole)
    whole.write("Epoch 1/2\n")
    whole.write(BAR.format(1))
    print("saved", file=whole)  # a callback's, while the bar stands there
    whole.write(BAR.format(2) + ": 1\n")
    whole.write("Epoch 2/2\n")
    whole.write("a\r\n")
    print("b,", "c", end="", file=whole)
    whole.write(BAR.format(1))
    whole.flush()
    whole.finish()
    assert stream.getvalue() == expected


def test_what_keras_prints_above_a_bar_is_the_first_tasks():
    stream = io.StringIO()
    console = Console(stream, FIRST)
    for task in (FIRST, SECOND):
        console.line(task, Line("Epoch 1/2", False))
        console.line(task, Line("Epoch 1/2 is over", False))
    expected = "[worker 0] Epoch 1/2\n[worker 0] Epoch 1/2 is over\n[worker 1] Epoch 1/2 is over\n"
    assert stream.getvalue() == expected


@pytest.mark.parametrize(
    ("text", "is_noise"),
    [
        ("E0000 00:00:1.2 3 a.cc:8310] Unable to register cuDNN factory: Attempting to", True),
        ("2024-10-25 10:00:00.1: E external/a/cuda_fft.cc:477] Unable to register cuFFT factory: "
         "Attempting to register factory for plugin cuFFT", True),
        ("W0000 00:00:1.2 3 a.cc:177] computation placer already registered.", True),
        ("E0000 00:00:1795387565.743290   28189 logging_ops.cc:173] from C++", False),
        ("W0000 00:00:1795387565.743290   28189 logging_ops.cc:171] from C++", False),
        ("ERROR:absl:Unable to register", False),
        ("Extension modules: numpy._core._multiarray_umath, numpy.linalg (total: 2)", True),
        ("Fatal Python error: Segmentation fault", False),
    ],
)  # fmt: skip
def test_errors_are_no_noise(text, is_noise):
    assert output.is_noise(text) == is_noise


def test_tensorflows_start_up_notes_are_in_the_log_alone(tmp_path):
    note = NOTE
    stream = io.StringIO()
    Console(stream, FIRST).line(FIRST, Line(note, False))
    assert stream.getvalue() == ""
    log = TaskLog(tmp_path, FIRST)
    log.line(Line(note, False))
    log.close()
    assert (tmp_path / "worker-0.log").read_text() == note + "\n"


def test_on_a_terminal_each_task_has_a_colour_of_its_own(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    console = Console(stream, FIRST)
    for task in (FIRST, SECOND, FIRST):
        console.line(task, Line("hello", False))
    first, second, again = stream.getvalue().splitlines()
    assert first == again == "\x1b[36m[worker 0]\x1b[0m hello"
    assert second == "\x1b[33m[worker 1]\x1b[0m hello"


@pytest.mark.parametrize(("verbosity", "shown"), [(-1, 1), (0, 2), (1, 4)])
def test_how_much_is_said(verbosity, shown):
    stream = io.StringIO()
    console = Console(stream, FIRST, verbosity)
    console.note("failed")
    console.note("ending", 0)
    console.note("started", 1)
    console.line(FIRST, Line("I0000 00:00:1763662000.1 1 port.cc:153] oneDNN", False))
    assert len(stream.getvalue().splitlines()) == shown

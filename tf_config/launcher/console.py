"""The output of the tasks: one stream of whole lines for the user, and one log per task."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO

from tf_config.cluster import Task
from tf_config.errors import ClusterConfigError, quoted

_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\^_])")
# Notes that TensorFlow's C++ code prints at the start of every process, which TF_CPP_MIN_LOG_LEVEL
# no longer silences (2.21), its error about GPUs on machines without any, and the list of modules
# that Python prints below a fatal error, one line of thousands of characters. Logs contain them.
_NOISE = re.compile(
    r"Extension modules: "
    r"|I\d{4} \d\d:\d\d:[\d.]+ +\d+ \w+\.cc:\d+\] "
    r"|WARNING: All log messages before absl::InitializeLog\(\) is called"
    r"|To enable the following instructions: .* rebuild TensorFlow"
    r"|.*\.cc:\d+\] (Unable to register cu\w+ factory: Attempting|computation placer already reg)"
    + ("" if os.path.exists("/dev/nvidiactl") else r"|E\d{4} .* failed call to cuInit: ")
)
# Cyan, yellow, magenta, green, blue; red is reserved for errors.
_COLOURS = ("36", "33", "35", "32", "34")
# The message that a task prints every five seconds while it waits for another task; a task that has
# not printed it for _WAIT_SECONDS has stopped waiting.
_WAITS = re.compile(r".*?\b(\w+ \d+ waits for .*: \d+ s of \S+ s)\.$")
_WAIT_SECONDS = 7.0
# The line that Keras prints above each progress bar.
_EPOCH = re.compile(r"Epoch \d+/\d+$")
_STEPS = re.compile(r"[\r\n\b]|[^\r\n\b]+")


class Line(NamedTuple):
    """One finished line of a task's output."""

    text: str
    redrawn: bool  # whether it was overwritten in place, as progress bars are


class LineAssembler:
    """Assembles a terminal's bytes into lines as the user would see them in the end.

    >>> lines = LineAssembler()
    >>> lines.feed(b"1/2\\r2/2\\nsaved\\n")
    [Line(text='2/2', redrawn=True), Line(text='saved', redrawn=False)]

    Attributes:
      partial: the text of the unfinished line.
      redrawn: whether the unfinished line has been overwritten so far.
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._returned = False
        self.partial = ""
        self.redrawn = False

    def feed(self, data: bytes) -> list[Line]:
        """Takes the next bytes; returns the lines that they complete."""
        return self.take(self._decode(data))

    def take(self, text: str) -> list[Line]:
        """Takes the next text; returns the lines that it completes."""
        finished = []
        for step in _STEPS.findall(text):
            if step == "\n":
                finished.append(self._finish())
            elif step == "\r":
                self._returned = True
            elif step == "\b":
                self.partial, self.redrawn = self.partial[:-1], True
            else:
                if self._returned:
                    self.partial, self.redrawn, self._returned = "", True, False
                self.partial += step
        return finished

    def close(self) -> list[Line]:
        """Returns the last line if it has no line break."""
        return [self._finish()] if self.partial else []

    def _finish(self) -> Line:
        line = Line(self.partial, self.redrawn)
        self.partial, self.redrawn, self._returned = "", False, False
        return line


class _Output:
    """A stream that discards all output after its first write error.

    Attributes:
      error: the first write error; None if none has occurred.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream
        # A reader that made its end of a pipe non-blocking may have done so for this end as well.
        with contextlib.suppress(OSError):  # not a file
            os.set_blocking(stream.fileno(), True)
        self.error: OSError | None = None

    def write(self, text: str) -> None:
        """Writes text; does nothing after an error."""
        self._attempt(lambda: self._stream.write(text))

    def flush(self) -> None:
        """Flushes the stream; does nothing after an error."""
        self._attempt(self._stream.flush)

    def _attempt(self, operation: Callable[[], object]) -> None:
        if self.error is not None:
            return
        try:
            operation()
        except OSError as error:
            self.error = error
            if not isinstance(error, BrokenPipeError):  # which only means that the reader has ended
                with contextlib.suppress(OSError):
                    print(
                        f"tf-config: warning: the output ends here ({error.strerror}); the job "
                        "continues", file=sys.stderr, flush=True
                    )  # fmt: skip
            # The rest of the buffer would cause another error, at the latest when Python exits.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


class Console:
    """Prints the tasks' lines with their tasks' names, and below them a live progress bar.

    Lines that are overwritten in place are progress bars. Those of the first task are shown: live
    on a terminal, otherwise once they are complete. Those of the other tasks, and the notes that
    TensorFlow prints at each start, are only in the logs. While a task waits for others, a terminal
    shows a spinner and a message; otherwise, the messages are printed as lines. If writing to the
    stream fails, because its reader or terminal is gone or a disk is full, nothing more is printed.

    Args:
      stream: the stream to print to.
      first: the task whose progress is shown.
      verbosity: -1 prints only the launcher's notes on failures; 1 prints more notes, and those
        that TensorFlow prints at each start.
    """

    def __init__(self, stream: TextIO, first: Task, verbosity: int = 0):
        self._stream = _Output(stream)
        self._first = first
        self._verbosity = verbosity
        self._bar = ""
        self._is_drawn = False
        self._waits: dict[Task, tuple[str, float]] = {}
        self._beginning: tuple[str, float] | None = None
        self._spinner: Any = None
        self._is_terminal = stream.isatty()
        self._has_colours = self._is_terminal and not os.environ.get("NO_COLOR")
        self._colours: dict[Task, str] = {}

    @property
    def has_lost_reader(self) -> bool:
        """Whether the program that reads the output has ended."""
        return isinstance(self._stream.error, BrokenPipeError)

    def begin(self, text: str) -> None:
        """Shows what the launcher is doing, until a task prints a line or the next call.

        On a terminal it is the bottom line, with the seconds that have passed; otherwise it is
        printed once.

        Args:
          text: a description of the action; "" ends it.
        """
        if self._verbosity < 0:
            return
        if text and not self._is_terminal:
            self.note(text, 0)
        elif text or self._beginning is not None:
            self._beginning = (text, time.monotonic()) if text else None
            self._redraw()

    def close(self) -> None:
        """Clears the bottom line, such as the bar of a task that was interrupted."""
        self._bar, self._beginning = "", None
        self._waits = {}
        if self._is_terminal:
            self._redraw()

    def line(self, task: Task, line: Line) -> None:
        """Prints a finished line of a task."""
        if task != self._first and is_of_progress_bar(line):
            return
        if is_noise(line.text) and self._verbosity < 1:
            return
        wait = _WAITS.match(line.text) if self._is_terminal else None
        if wait is not None:
            self._waits[task] = wait[1], time.monotonic()
            self.tick()
            return
        self._waits.pop(task, None)
        self._beginning = None
        if task == self._first:
            self._bar = ""
        self._write(f"{self._prefix(task)} {line.text}")

    def progress(self, task: Task, text: str) -> None:
        """Shows an unfinished line that is being overwritten; only on a terminal."""
        if self._is_terminal and task == self._first:
            self._beginning = None
            self._bar = f"{self._prefix(task)} {text}"
            self._redraw()

    def tick(self) -> None:
        """Advances the spinner while a task waits for another one or the launcher is busy."""
        if self._waits:
            oldest = time.monotonic() - _WAIT_SECONDS
            self._waits = {task: wait for task, wait in self._waits.items() if wait[1] > oldest}
            self._redraw()
        elif self._beginning is not None:
            self._redraw()

    def _bottom_line(self) -> str:
        """Returns the bottom line: the progress bar, or a message of `begin` or a waiting task."""
        if self._bar:
            return self._bar
        if self._waits:
            return f"{self._frame()} {next(text for text, _ in self._waits.values())}"
        if self._beginning is not None:
            text, since = self._beginning
            return f"{self._frame()} {text}: {time.monotonic() - since:.0f} s"
        return ""

    def _frame(self) -> str:
        if self._spinner is None:
            from rich.spinner import Spinner  # here, because the import is slow

            self._spinner = Spinner("dots")
        frames = self._spinner.frames
        return frames[int(time.monotonic() * 1000 / self._spinner.interval) % len(frames)]

    def note(self, text: str, level: int = -1) -> None:
        """Prints a note of the launcher, unless the verbosity is below the note's level."""
        if self._verbosity >= level:
            self._write(f"tf-config: {text}")

    def _prefix(self, task: Task) -> str:
        if not self._has_colours:
            return f"[{task}]"
        colour = self._colours.setdefault(task, _COLOURS[len(self._colours) % len(_COLOURS)])
        return f"\x1b[{colour}m[{task}]\x1b[0m"

    def _write(self, text: str) -> None:
        self._clear()
        if not self._is_terminal:
            text = without_escapes(text)
        self._stream.write(text + "\n")
        self._redraw()

    def _redraw(self) -> None:
        self._clear()
        live = self._bottom_line()
        if live:
            width = shutil.get_terminal_size().columns - 1
            plain = without_escapes(live)
            self._stream.write(live if len(plain) <= width else plain[:width])
        self._is_drawn = bool(live)
        self._stream.flush()

    def _clear(self) -> None:
        if self._is_drawn:
            self._stream.write("\r\x1b[2K")
        self._is_drawn = False


class TaskLog:
    """Writes one task's finished lines to `<directory>/<task>.log`.

    Args:
      directory: the directory of the file; None writes no log.
      task: the task.
      append: whether to append to an existing file.

    Raises:
      ClusterConfigError: if the file cannot be opened.
    """

    def __init__(self, directory: Path | None, task: Task, append: bool = False):
        self.path = None if directory is None else directory / f"{task.label}.log"
        self._file: BinaryIO | None = None
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab" if append else "wb", buffering=0)
        except OSError as error:
            raise ClusterConfigError(
                "--log-dir must name a directory that can be created and written. Received: "
                f"{quoted(str(self.path))} ({error.strerror}). Choose another directory."
            ) from None

    def line(self, line: Line) -> None:
        """Appends one line, without colors.

        Raises:
          OSError: if the line cannot be written, for example on a full disk; no others follow.
        """
        if self._file is None:
            return
        try:
            self._file.write(without_escapes(line.text).encode(errors="replace") + b"\n")
        except OSError:
            self.close()
            self._file = None
            raise

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()


class WholeBars(io.TextIOBase):
    """A text stream, not a terminal, to which each progress bar is written once it is complete.

    Text that one call writes with a `\\r` or `\\b` is a bar; other text is written immediately.

    >>> stream = WholeBars(sys.stdout, shows_bars=True)
    >>> _ = stream.write("\\r1/2"), stream.write("\\b\\b\\b\\r2/2\\n")
    2/2

    Args:
      stream: the stream to write to.
      shows_bars: whether bars are written; if not, Keras's lines above them are not written either.
    """

    def __init__(self, stream: TextIO, shows_bars: bool):
        self._stream = stream
        self._shows_bars = shows_bars
        self._lines = LineAssembler()
        self._lock = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)  # its buffer, encoding, ...

    def write(self, text: str) -> int:
        """Writes text, or keeps it if it is an incomplete bar."""
        with self._lock:
            is_bar = "\r" in text or "\b" in text or (self._lines.redrawn and text == "\n")
            if is_bar:
                lines = self._lines.take(text)
                passed = "".join(
                    f"{without_escapes(line.text)}\n" for line in self._filter_bars(lines)
                )
            else:
                # A bar is always redrawn completely, so text written in between loses none of it.
                self._lines = LineAssembler()
                is_above = text.endswith("\n") and not self._filter_bars([Line(text[:-1], False)])
                passed = "" if is_above else text
            if passed:
                self._stream.write(passed)
        return len(text)

    def flush(self) -> None:
        """Flushes the stream."""
        self._stream.flush()

    def fileno(self) -> int:
        """Returns the descriptor of the stream."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Returns whether the stream is a terminal, such as one that mpirun creates."""
        return self._stream.isatty()

    def finish(self) -> None:
        """Writes the last bar if it was not completed."""
        with self._lock:
            for line in self._filter_bars(self._lines.close()):
                self._stream.write(f"{without_escapes(line.text)}\n")

    def _filter_bars(self, lines: list[Line]) -> list[Line]:
        return [line for line in lines if self._shows_bars or not is_of_progress_bar(line)]


def is_of_progress_bar(line: Line) -> bool:
    """Returns whether a line is a progress bar, or the line that Keras prints above it."""
    return line.redrawn or _EPOCH.match(line.text) is not None


def is_noise(text: str) -> bool:
    """Returns whether a line helps nobody.

    Such are the notes that TensorFlow prints in every process at its start, and the list of all
    modules that Python prints below a fatal error.
    """
    return _NOISE.match(text) is not None


def without_escapes(text: str) -> str:
    """Returns `text` without control sequences, which color text or move the cursor."""
    return _ESCAPES.sub("", text)

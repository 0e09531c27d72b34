"""Waits that end in time, and say what they wait for."""

import time

import pytest

from tf_config.rendezvous import waiting
from tf_config.rendezvous.waiting import Deadline


class Countdown:
    """A condition that holds at the given check, and what is missing until then."""

    def __init__(self, checks, missing="worker 1"):
        self.checks, self.missing, self.questions = checks, missing, 0

    def is_done(self):
        self.checks -= 1
        return self.checks <= 0

    def ask(self):
        self.questions += 1
        return self.missing


def test_a_wait_ends_when_its_condition_holds_and_asks_nobody_what_is_missing():
    condition = Countdown(4)
    Deadline(60.0).wait_until(condition.is_done, condition.ask, TimeoutError)
    assert (condition.checks, condition.questions) == (0, 0)


def test_after_the_timeout_the_error_names_what_is_missing():
    condition = Countdown(10**9)
    with pytest.raises(TimeoutError, match="still worker 1"):
        Deadline(0.05).wait_until(
            condition.is_done, condition.ask, lambda names: TimeoutError(f"still {names}")
        )


def test_after_the_timeout_a_wait_for_nobody_goes_on_to_its_condition():
    condition = Countdown(5, missing="")
    Deadline(0.0).wait_until(condition.is_done, condition.ask, TimeoutError)
    assert condition.checks == 0


def test_notes_are_sent_regularly_and_empty_ones_are_left_out(monkeypatch):
    monkeypatch.setattr(waiting, "_NOTE_SECONDS", 0.0)
    notes = []
    deadline = Deadline(60.0, notes.append)
    for text in ("worker 1", "", "worker 2"):
        deadline.tick(text)
    assert notes == ["worker 1", "worker 2"]


def test_a_wait_that_began_earlier_ends_earlier():
    assert Deadline(5.0, start=time.monotonic() - 6.0).is_over
    assert not Deadline(5.0).is_over


def test_a_poll_ends_with_its_time_or_its_condition():
    Deadline(0.05).poll(lambda: False)
    condition = Countdown(3)
    Deadline(60.0).poll(condition.is_done)
    assert condition.checks == 0

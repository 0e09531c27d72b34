"""Workers that a server has not heard of for a while."""

import itertools

from strategies.ps.membership import AWAITED, JOINING, LEFT, PRESENT, VACANT
from strategies.ps.silence import SilentWorkers


class Reports:
    """The number of reports of each worker."""

    def __init__(self, count):
        self.counts = [0] * count

    def beats(self):
        return list(self.counts)


def test_only_workers_that_are_there_and_do_not_report_are_silent():
    reports, seconds = Reports(6), itertools.count()
    silent = SilentWorkers(reports, seconds=10, clock=lambda: next(seconds))
    states = [PRESENT, PRESENT, JOINING, LEFT, VACANT, AWAITED]
    for _ in range(10):
        reports.counts[0] += 1
        assert silent.find(states) == []
    assert silent.find(states) == [1, 2]
    assert silent.find([PRESENT, LEFT, LEFT, LEFT, VACANT, AWAITED]) == []


def test_a_worker_that_takes_the_place_of_another_has_the_whole_time():
    reports, seconds = Reports(1), itertools.count()
    silent = SilentWorkers(reports, seconds=5, clock=lambda: next(seconds))
    for state in [PRESENT] * 5 + [LEFT] * 20 + [JOINING] * 4:
        assert silent.find([state]) == []
    reports.counts[0] += 1
    assert [silent.find([PRESENT]) for _ in range(6)] == [[]] * 5 + [[0]]

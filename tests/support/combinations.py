"""Which combinations of a test's parameters `make test` runs.

A test marked `each_value` has a product of parameters and takes seconds for each combination. Its
parameters do not depend on each other, so that one that is wrong is wrong in any combination:
`make test` runs as few as show each value of each parameter, and `make test-all` all of them.

A test marked `in_turn` does the same with each of its combinations, such as Keras 3 and tf_keras.
`make test` runs one of them: the first such test of a file its first one, the next test its second
one, and so on, so that the tests of a file together show all values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path

import pytest


def each_value(combinations: Sequence[Mapping[str, str]]) -> list[int]:
    """Returns the positions of combinations in which each value of each parameter occurs.

    They are chosen greedily: always the one that shows most values that have not occurred yet.

    >>> of_two = [{"api": api, "mode": mode} for api in "ab" for mode in "xyz"]
    >>> [of_two[position] for position in each_value(of_two)]
    [{'api': 'a', 'mode': 'x'}, {'api': 'b', 'mode': 'y'}, {'api': 'a', 'mode': 'z'}]
    """
    missing = {value for combination in combinations for value in combination.items()}
    chosen = []
    while missing:
        number_of_new = [len(missing & combination.items()) for combination in combinations]
        position = number_of_new.index(max(number_of_new))
        chosen.append(position)
        missing -= combinations[position].items()
    return chosen


def mark_others_slow(items: Iterable[pytest.Item]) -> None:
    """Marks as slow the combinations that `make test` leaves out of tests with these marks."""
    for combinations in _by_test(items, "each_value").values():
        values = [
            {name: repr(value) for name, value in item.callspec.params.items()}
            for item in combinations
        ]
        _mark_slow(combinations, {*each_value(values)})
    turns: Counter[Path] = Counter()
    for (path, _), combinations in _by_test(items, "in_turn").items():
        _mark_slow(combinations, {turns[path] % len(combinations)})
        turns[path] += 1


def _by_test(items: Iterable[pytest.Item], mark: str) -> dict[tuple[Path, str], list[pytest.Item]]:
    tests: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker(mark) and not item.get_closest_marker("slow"):
            tests.setdefault((item.path, getattr(item, "originalname", "")), []).append(item)
    return tests


def _mark_slow(combinations: Sequence[pytest.Item], chosen: Set[int]) -> None:
    for position, item in enumerate(combinations):
        if position not in chosen:
            item.add_marker("slow")

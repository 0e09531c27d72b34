"""Which combinations of a test's parameters `make test` runs.

A test marked `each_value` has a product of parameters and takes seconds for each combination. Its
parameters do not depend on each other, so that one that is wrong is wrong in any combination:
`make test` runs as few as show each value of each parameter, and `make test-all` all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
    """Marks as slow the combinations of tests marked `each_value` that `each_value` leaves out."""
    tests: dict[object, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("each_value") and not item.get_closest_marker("slow"):
            tests.setdefault((item.path, getattr(item, "originalname", "")), []).append(item)
    for combinations in tests.values():
        values = [
            {name: repr(value) for name, value in item.callspec.params.items()}
            for item in combinations
        ]
        chosen = {*each_value(values)}
        for position, item in enumerate(combinations):
            if position not in chosen:
                item.add_marker("slow")

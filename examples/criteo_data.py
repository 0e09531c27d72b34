"""Writes click logs in the format of Criteo's, as many rows as you like, with a known best AUC.

    $ python examples/criteo_data.py --directory logs/criteo --rows 20000 --test_rows 5000
    logs/criteo/train-*: 20000 rows, the best AUC is 0.8043
    logs/criteo/test-*: 5000 rows, the best AUC is 0.8063

A row is one line: the label, 13 integers, 26 categorical values of eight hexadecimal digits, with
tabs between them. Some integers and values are missing: nothing stands between two tabs. The
values of a feature follow a power law, the integers have heavy tails, and the labels are drawn from
a probability that depends on what stands in the row alone; so it is known which AUC a model that
knew all of it would have.

The rows follow from the seed alone. They are written block by block, so that memory is no limit,
and are the same ones whatever the number of files.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("directory", None, "Where the files are written.", required=True)
flags.DEFINE_integer("rows", 300_000, "Rows to train on.", 1)
flags.DEFINE_integer("test_rows", 50_000, "Rows to test on.", 1)
flags.DEFINE_integer("files", 4, "Files of rows to train on; those to test on are two.", 1)
flags.DEFINE_integer("seed", 1, "Of all that is random.", 0, 2**31 - 1)

INTEGERS, CATEGORIES = 13, 26
MISSING = np.iinfo(np.int64).min
BLOCK_ROWS = 10_000
# How many values each categorical feature has: some have three, some a hundred thousand.
CARDINALITIES = (
    [3, 4, 10, 12, 15, 18, 25, 28, 60, 85, 100, 135, 290]
    + [550, 610, 1_400, 2_100, 3_100, 5_000, 5_300, 12_000, 13_000, 25_000, 50_000, 65_000, 100_000]
)  # fmt: skip
FILES_OF_TEST = 2
EXPONENT = 1.1  # value r has a share that falls as r ** -EXPONENT
MISSING_VALUE, MISSING_INTEGER = 0.05, 0.15
# An integer is round(exp(mean + spread * z)) - 1 for a normal z.
MEANS = np.linspace(0.5, 6.0, INTEGERS)
SPREADS = np.linspace(1.0, 2.0, INTEGERS)
BIAS = -1.6  # about a quarter of the labels are 1
# Standard deviations of what the features add to the log-odds.
VALUE_EFFECT, INTEGER_EFFECT, PAIR_EFFECT = 0.22, 0.2, 0.25
PAIRS = [(0, 5), (1, 7), (2, 4), (3, 6)]  # features that also count together


class Rows(NamedTuple):
    """Some rows, before they are text."""

    labels: np.ndarray  # [rows], 0 or 1
    integers: np.ndarray  # [rows, 13]; MISSING where there is none
    ranks: np.ndarray  # [rows, 26]: 0 is the most frequent value; MISSING where there is none
    probabilities: np.ndarray  # [rows], of the label 1


def blocks(seed: int, stream: str = "train") -> Iterator[Rows]:
    """Yields blocks of `BLOCK_ROWS` rows without end, the same ones for the same arguments."""
    name = int.from_bytes(stream.encode(), "big")
    for number in range(2**63):
        random = np.random.default_rng([seed, name, number])
        integers = _integers(random)
        ranks = _ranks(random)
        probabilities = 1 / (1 + np.exp(-log_odds(seed, integers, ranks)))
        labels = (random.random(BLOCK_ROWS) < probabilities).astype(np.int64)
        yield Rows(labels, integers, ranks, probabilities)


def log_odds(seed: int, integers: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Returns the logarithm of the odds of the label 1, [rows], which follow from the features."""
    standard = (np.log(np.maximum(integers, 0) + 1.0) - MEANS) / SPREADS
    signs = np.where(np.arange(INTEGERS) % 2, -1, 1)
    odds = np.where(integers == MISSING, 0, INTEGER_EFFECT * signs * standard).sum(axis=1)
    effects = np.where(ranks == MISSING, 0, _uniform(_code(seed, ranks) ^ 0x5BF03635))
    odds += VALUE_EFFECT * effects.sum(axis=1)
    for first, second in PAIRS:
        odds += PAIR_EFFECT * effects[:, first] * effects[:, second]
    return BIAS + odds


def lines(rows: Rows, seed: int) -> Iterator[str]:
    """Yields the rows as text."""
    codes = _code(seed, rows.ranks)
    columns = rows.labels.tolist(), rows.integers.tolist(), rows.ranks.tolist(), codes.tolist()
    for label, integers, ranks, values in zip(*columns, strict=True):
        fields = [str(label)]
        fields += ["" if integer == MISSING else str(integer) for integer in integers]
        fields += [
            "" if rank == MISSING else f"{value:08x}"
            for rank, value in zip(ranks, values, strict=True)
        ]
        yield "\t".join(fields) + "\n"


class BestAUC:
    """The AUC of the probabilities that the labels were drawn from, expected over the labels.

    No model can have a higher one, but by luck. A row of probability p is p of a positive example
    and 1 - p of a negative one. Rows of equal probability, to 1e-4, count one half.

    >>> best = BestAUC()
    >>> best.add(np.array([0.0, 1.0])); best.result()
    1.0
    >>> best = BestAUC()
    >>> best.add(np.array([0.3, 0.3])); best.result()
    0.5
    """

    def __init__(self) -> None:
        self._positive = np.zeros(10_001)
        self._negative = np.zeros(10_001)

    def add(self, probabilities: np.ndarray) -> None:
        bins = np.rint(probabilities * 10_000).astype(np.int64)
        self._positive += np.bincount(bins, probabilities, 10_001)
        self._negative += np.bincount(bins, 1 - probabilities, 10_001)

    def result(self) -> float:
        below = np.cumsum(self._negative) - self._negative / 2
        return float(self._positive @ below / (self._positive.sum() * self._negative.sum()))


def write(directory: Path, stream: str, rows: int, files: int, seed: int) -> float:
    """Writes `rows` rows to files `<stream>-00000` and on; returns the best AUC on them.

    Raises:
      FileExistsError: if there are such files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if there := sorted(directory.glob(f"{stream}-*")):
        raise FileExistsError(
            f"Files are written to a directory that has none of their kind. Received: {directory} "
            f"with {there[0].name}. Name another directory, or delete them."
        )
    best = BestAUC()
    texts = _texts(rows, seed, stream, best)
    for number in range(files):
        count = rows // files + (number < rows % files)
        with open(directory / f"{stream}-{number:05d}", "w", encoding="ascii") as file:
            file.writelines(itertools.islice(texts, count))
    return best.result()


def _texts(rows: int, seed: int, stream: str, best: BestAUC) -> Iterator[str]:
    for block in blocks(seed, stream):
        best.add(block.probabilities[:rows])
        for text in lines(block, seed):
            yield text
            rows -= 1
            if not rows:
                return


def _integers(random: np.random.Generator) -> np.ndarray:
    normal = random.standard_normal([BLOCK_ROWS, INTEGERS])
    integers = np.rint(np.exp(MEANS + SPREADS * normal)).astype(np.int64) - 1
    return np.where(random.random(integers.shape) < MISSING_INTEGER, MISSING, integers)


def _ranks(random: np.random.Generator) -> np.ndarray:
    """Draws from a power law, by the inverse of its distribution made continuous."""
    uniform = random.random([BLOCK_ROWS, CATEGORIES])
    power = 1 - EXPONENT
    largest = (np.array(CARDINALITIES) + 1.0) ** power
    ranks = ((1 - uniform * (1 - largest)) ** (1 / power)).astype(np.int64) - 1
    ranks = np.minimum(ranks, np.array(CARDINALITIES) - 1)  # where rounding went over the end
    return np.where(random.random(ranks.shape) < MISSING_VALUE, MISSING, ranks)


def _code(seed: int, ranks: np.ndarray) -> np.ndarray:
    """Returns 32 bits for each value, [rows, 26]; no two values of a feature share them."""
    features = np.arange(CATEGORIES, dtype=np.uint64) * 0x9E3779B1 + np.uint64(seed)
    return _mixed(ranks.astype(np.uint64) + _mixed(features))


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Mixes 32 bits one to one: the last steps of MurmurHash3 (Appleby, public domain)."""
    mask = np.uint64(0xFFFFFFFF)
    numbers = numbers & mask
    numbers = (numbers ^ numbers >> np.uint64(16)) * np.uint64(0x85EBCA6B) & mask
    numbers = (numbers ^ numbers >> np.uint64(13)) * np.uint64(0xC2B2AE35) & mask
    return numbers ^ numbers >> np.uint64(16)


def _uniform(codes: np.ndarray) -> np.ndarray:
    """Returns numbers with mean 0 and standard deviation 1 that follow from the codes."""
    return (_mixed(codes) / 2**31 - 1) * math.sqrt(3)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"No arguments but flags are known. Received: {argv[1:]}.")
    directory = Path(FLAGS.directory)
    for stream, rows, files in (
        ("train", FLAGS.rows, FLAGS.files),
        ("test", FLAGS.test_rows, FILES_OF_TEST),
    ):
        best = write(directory, stream, rows, files, FLAGS.seed)
        print(f"{directory}/{stream}-*: {rows} rows, the best AUC is {best:.4f}")


if __name__ == "__main__":
    app.run(main)

"""What is planned is what is measured, as far as it does not hang on the machine."""

import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "capacity.py"


@pytest.mark.slow
def test_the_bytes_of_two_workers_are_those_of_the_plan(job):
    command = [sys.executable, str(SCRIPT), "--rows", "2e5", "--optimizers", "sgd"]
    process = job.popen([*command, "--workers", "2"])
    output, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, output
    (line,) = (line for line in output.splitlines() if line.startswith("| 2 | 0.2 M | sgd |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    for cell in cells[6:10]:  # unique ids, and bytes of ids, rows and gradients
        planned, measured = (float(number.replace(",", "")) for number in cell.split(" / "))
        assert measured == pytest.approx(planned, rel=0.02), line
    job.assert_nothing_left()

"""docs/environment.md has every environment variable that the package names."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "environment.md").read_text()
NAME = re.compile(
    r"""["'](?:(?:KERAS_STRATEGIES|HOROVOD|TF|OMP|NCCL|OMPI|PMI|PMIX|SLURM|PADDLE|XDG|CUDA|GLIBC)_[A-Z_a-z]+
    |RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_\w+|TRAINING_ROLE|CPU_NUM|NO_COLOR|HOSTNAME
    |JOB_COMPLETION_INDEX|POD_IP|PYTHONUNBUFFERED|PYTHONFAULTHANDLER)["']""",
    re.VERBOSE,
)
# What is handed over to Slurm's and Horovod's own programs, or read by nobody here.
ELSEWHERE = {"SLURM_CONF", "OMPI_MCA_", "HOROVOD_WITH_MPI", "HOROVOD_WITHOUT_MPI", "HOROVOD_GPU_"}
FILES = sorted([*ROOT.glob("strategies/**/*.py"), *ROOT.glob("tf_config/**/*.py")])
NAMES = sorted({name.strip("\"'") for path in FILES for name in NAME.findall(path.read_text())})


def test_names_are_found():
    assert "TF_CONFIG" in NAMES and len(NAMES) > 50


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ELSEWHERE])
def test_it_is_explained(name):
    assert re.search(rf"`{re.escape(name)}\b", PAGE), f"{name} is not in docs/environment.md"

"""`tf-config doctor`: what each probe makes of programs and packages."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tf_config.doctor import report as doctor
from tf_config.doctor.machine import Answer, Machine
from tf_config.doctor.report import examine, exit_code, within

ROOT = Path(__file__).resolve().parents[3]
PROBES = {probe.name: probe for probe in doctor.PROBES}
NEEDED = {"tensorflow": "2.21.0", "keras": "3.15.1", "numpy": "2.4.6"}

BUILD = (
    "I0000 00:00:1795202964.207486   24764 port.cc:153] oneDNN custom operations are on.\n"
    '{"Frameworks": {"TensorFlow": true}, "Controllers": {"MPI": %(mpi)s, "Gloo": true}, '
    '"Tensor Operations": {"MPI": %(mpi)s, "Gloo": true, "NCCL": %(nccl)s}}'
)
NO_CONFIGURATION = """\
srun: error: fetch_config: DNS SRV lookup failed
srun: fatal: Could not establish a configuration source
"""
MPICH = """\
HYDRA build details:
    Version:                                 4.0.2
    Release Date:                            Thu Apr  7 12:34:45 CDT 2022
"""
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.8 Build 20221129 (id: 339ec755a1)\n"
TWO_GPUS = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)
  MIG 1g.5gb      Device  0: (UUID: MIG-1)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-2)
"""
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
SSHD_OF_OLD = "unknown option -- V\nOpenSSH_8.4p1 Debian-5, OpenSSL 1.1.1n  15 Mar 2022\nusage: ..."
LIBRARIES = "\tlibnccl.so.2 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnccl.so.2\n"


@pytest.fixture
def machine(tmp_path):
    """Makes machines that have these programs, with what they say, and these packages alone."""

    def make(programs=None, packages=None, python="3.11.7"):
        for name, said in (programs or {}).items():
            text, code = said if isinstance(said, tuple) else (said, 0)
            program(tmp_path / name, f"cat <<'END'\n{text}\nEND\nexit {code}\n")
        lookup = (packages or {}).get
        return Machine(str(tmp_path), str(tmp_path / "python"), python, lookup)

    return make


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)


def line(machine, name):
    (found,) = examine(machine, [PROBES[name]])
    return str(found)


@pytest.mark.parametrize(
    ("name", "packages", "expected"),
    [
        ("TensorFlow", {"tensorflow": "2.18.0"}, "ok       TensorFlow 2.18.0"),
        ("TensorFlow", {}, 'missing  TensorFlow: pip install "tensorflow>=2.18,<2.22"'),
        (
            "TensorFlow",
            {"tensorflow": "2.22.0rc0"},
            "missing  TensorFlow: 2.22.0rc0 is not >=2.18,<2.22; "
            'pip install "tensorflow>=2.18,<2.22"',
        ),
        ("Keras", {"keras": "3.0.0"}, "ok       Keras 3.0.0"),
        (
            "Keras",
            {"keras": "2.15.0"},
            'missing  Keras: 2.15.0 is not >=3,<4; pip install "keras>=3,<4"',
        ),
        ("NumPy", {"numpy": "2.4.6"}, "ok       NumPy 2.4.6"),
        ("NumPy", {}, "missing  NumPy: pip install numpy"),
        ("tf_keras", {}, "-        tf_keras: pip install tf_keras"),
        ("tf_keras", {**NEEDED, "tf_keras": "2.21.3"}, "ok       tf_keras 2.21.3"),
        ("tf_keras", NEEDED, '-        tf_keras: pip install "tf_keras==2.21.*"'),
        (
            "tf_keras",
            {"tensorflow": "2.18.1", "tf_keras": "2.21.0"},
            '-        tf_keras: 2.21.0 is not for TensorFlow 2.18; pip install "tf_keras==2.18.*"',
        ),
        (
            "NCCL",
            {"nvidia-nccl-cu12": "2.25.1"},
            "ok       NCCL 2.25.1 (Python package nvidia-nccl-cu12)",
        ),
    ],
)
def test_packages(name, packages, expected, machine):
    assert line(machine(packages=packages), name) == expected


@pytest.mark.parametrize(
    ("python", "expected"),
    [
        ("3.13.9", "ok       Python 3.13.9"),
        (
            "3.14.0",
            "missing  Python: 3.14.0 is not >=3.10,<3.14; create .venv with a supported version",
        ),
    ],
)
def test_python(python, expected, machine):
    assert line(machine(python=python), "Python") == expected


@pytest.mark.parametrize(
    ("environ", "processor", "expected"),
    [
        ({}, ["avx2", "avx512_vnni"], "ok       oneDNN (TensorFlow's default on a processor with"),
        (
            {},
            ["avx2"],
            "-        oneDNN: disabled by default on this processor; try TF_ENABLE",
        ),
        ({}, [], "-        oneDNN: TensorFlow's default on this processor is unknown"),
        ({"TF_ENABLE_ONEDNN_OPTS": "1"}, ["avx2"], "ok       oneDNN (TF_ENABLE_ONEDNN_OPTS=1)"),
        (
            {"TF_ENABLE_ONEDNN_OPTS": "0"},
            ["amx_tile"],
            "-        oneDNN: disabled by TF_ENABLE_ONEDNN",
        ),
    ],
)
def test_onednn(environ, processor, expected, machine):
    here = dataclasses.replace(machine(), environ=environ, processor=processor)
    assert line(here, "oneDNN").startswith(expected)


@pytest.mark.parametrize(
    ("name", "programs", "expected"),
    [
        ("GPUs", {"nvidia-smi": TWO_GPUS}, "ok       GPUs 2 (NVIDIA A100-SXM4-40GB)"),
        ("GPUs", {"nvidia-smi": ("No devices were found", 6)}, "nvidia-smi lists none"),
        ("GPUs", {"nvidia-smi": (NO_DRIVER, 9)}, "'nvidia-smi -L' prints: NVIDIA-SMI has failed"),
        ("GPUs", {}, "none found, because there is no nvidia-smi"),
        ("NCCL", {"ldconfig": LIBRARIES}, "ok       NCCL (/usr/lib/x86_64-linux-gnu/libnccl.so.2)"),
        ("NCCL", {"ldconfig": ""}, '-        NCCL: pip install "tensorflow[and-cuda]"'),
        (
            "ssh",
            {"ssh": "OpenSSH_9.2p1 Debian-2, OpenSSL"},
            "ok       ssh OpenSSH_9.2p1",
        ),
        ("ssh", {}, "-        ssh: Debian's package openssh-client"),
        ("sshd", {"sshd": (SSHD_OF_OLD, 1)}, "ok       sshd OpenSSH_8.4p1"),
        ("sshd", {}, "-        sshd: Debian's package openssh-server"),
        ("mpirun", {"mpirun": "mpirun (Open MPI) 4.1.4"}, "ok       mpirun (Open MPI 4.1.4)"),
        ("mpirun", {"mpirun": MPICH}, "ok       mpirun (MPICH 4.0.2)"),
        ("mpirun", {"mpirun": INTEL}, "ok       mpirun (Intel MPI 2021.8)"),
        ("mpirun", {"mpirun": ""}, "'mpirun --version' prints nothing"),
        ("mpirun", {}, "-        mpirun: Debian's package openmpi-bin"),
        ("kubectl", {"kubectl": "Client Version: v1.32.4\n"}, "ok       kubectl 1.32.4"),
        ("kubectl", {}, "-        kubectl: https://kubernetes.io/docs/tasks/tools/"),
        ("Slurm", {}, "-        Slurm: Debian's packages slurm-wlm and munge"),
        ("Slurm", {"srun": ""}, "no sbatch, scontrol; Debian's packages slurm-wlm and munge"),
        (
            "Slurm",
            {"srun": "slurm-wlm 22.05.8", "sbatch": "", "scontrol": ""},
            "ok       Slurm 22.05.8",
        ),
        (
            "Slurm",
            {"srun": (NO_CONFIGURATION, 1), "sbatch": "", "scontrol": ""},
            "-        Slurm: installed, but without slurm.conf; set SLURM_CONF to its path",
        ),
        (
            "Slurm",
            {"srun": ("srun: broken", 1), "sbatch": "", "scontrol": ""},
            "'srun --version' prints: srun: broken; fix that first",
        ),
    ],
)
def test_programs(name, programs, expected, machine):
    said = line(machine(programs), name)
    assert said.startswith(expected) if expected[:2] in ("ok", "- ") else expected in said


def horovod(machine, said):
    build = machine({"python": said}, {"horovod": "0.28.1"})
    return [line(build, name) for name in PROBES if name.startswith("Horovod")]


def test_what_horovod_was_built_with(machine):
    plain = horovod(machine, BUILD % {"mpi": "false", "nccl": "false"})
    assert plain[0] == "ok       Horovod 0.28.1"
    assert plain[1] == "ok       Horovod with Gloo (controllers, tensor operations)"
    assert "HOROVOD_WITH_MPI=1 tf-config install-horovod" in plain[2]
    assert plain[3] == "-        Horovod with NCCL: see BUILD.md, 'With NCCL'"
    full = horovod(machine, BUILD % {"mpi": "true", "nccl": "true"})
    assert full[2] == "ok       Horovod with MPI (controllers, tensor operations)"
    assert full[3] == "ok       Horovod with NCCL (tensor operations)"


def test_a_horovod_of_no_use(machine):
    other = horovod(machine, '{"Frameworks": {"TensorFlow": false}}')
    assert "0.28.1 was built for another TensorFlow; rebuild it" in other[0]
    for said in ("", "Traceback ...", ("{}", 1)):
        lines = horovod(machine, said)
        assert "0.28.1 does not report how it was built; rebuild it" in lines[0]
        assert all(line.startswith("-  ") for line in lines)


def test_without_horovod_nothing_is_asked(machine, tmp_path):
    program(tmp_path / "python", f"touch {tmp_path}/asked")
    said = line(machine(packages=NEEDED), "Horovod")
    assert said == "-        Horovod: tf-config install-horovod; manually: BUILD.md"
    assert not (tmp_path / "asked").exists()


def test_horovod_is_asked_once(machine, tmp_path):
    program(tmp_path / "python", f"echo asked >> {tmp_path}/asked")
    this = machine(packages={"horovod": "0.28.1"})
    assert len(list(examine(this))) == len(PROBES)
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_the_exit_code_is_that_of_what_is_needed(machine):
    assert exit_code(examine(machine(packages=NEEDED))) == 0
    for name in NEEDED:
        less = {other: version for other, version in NEEDED.items() if other != name}
        assert exit_code(examine(machine(packages=less))) == 2
    for old in ({"tensorflow": "2.17.1"}, {"keras": "2.15.0"}):
        assert exit_code(examine(machine(packages={**NEEDED, **old}))) == 2
    assert exit_code(examine(machine(packages=NEEDED, python="3.9.2"))) == 2


def test_a_machine_with_nothing_has_a_way_out_on_each_line(machine):
    lines = [str(line) for line in examine(machine(python="2.7.18"))]
    assert len(lines) == len(PROBES)
    assert [line[:9] for line in lines[:4]] == ["missing  "] * 4
    assert all(re.fullmatch(r"(missing |-       ) [\w ]+: \S.*", line) for line in lines)


def test_a_program_that_hangs_is_ended_with_all_it_started(machine, job, monkeypatch, tmp_path):
    program(tmp_path / "mpirun", "sleep 1000 & sleep 1000")
    monkeypatch.setenv("KERAS_STRATEGIES_TEST", job.mark)
    assert machine().ask("mpirun", seconds=0.3) == Answer(None, "")
    job.assert_nothing_left()


def test_a_program_that_cannot_be_started_is_none(machine, tmp_path):
    (tmp_path / "mpirun").write_bytes(b"\x7fELF of another machine")
    (tmp_path / "mpirun").chmod(0o755)
    assert machine().ask("mpirun") is None
    assert line(machine(), "mpirun") == "-        mpirun: Debian's package openmpi-bin"


def test_output_that_is_no_text(machine, tmp_path):
    program(tmp_path / "mpirun", "printf '\\377(Open MPI) 5.0'")
    assert line(machine(), "mpirun") == "ok       mpirun (Open MPI 5.0)"


def test_the_ranges_are_those_of_the_installation():
    text = (ROOT / "setup.py").read_text()
    for entry in (
        f'python_requires="{doctor.PYTHON}"',
        f'"tensorflow{doctor.TENSORFLOW}"',
        f'"keras{doctor.KERAS}"',
    ):
        assert entry in text
    assert not within("2.17.9", doctor.TENSORFLOW)


def test_build_md_has_what_the_lines_send_a_reader_for():
    text = (ROOT / "BUILD.md").read_text()
    for part in ("## By hand", "## With NCCL", "HOROVOD_WITH_MPI=1 tf-config install-horovod"):
        assert part in text


def test_each_item_is_named_before_it_is_looked_for(machine):
    begun = []
    for number, _ in enumerate(examine(machine(), begin=begun.append)):
        assert begun == list(PROBES)[: number + 1]


def test_this_machine():
    result = subprocess.run(
        [sys.executable, "-m", "tf_config", "doctor"], capture_output=True, text=True, cwd=ROOT
    )
    assert result.returncode == 0, result.stdout
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert len(lines) == len(PROBES)
    for start in ("Python 3.", "TensorFlow 2.", "Keras 3.", "NumPy ", "tf_keras ", "Horovod 0."):
        assert any(line.startswith(f"ok       {start}") for line in lines), result.stdout
    assert "ok       Horovod with Gloo (controllers, tensor operations)" in lines

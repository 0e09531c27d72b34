"""A build of Horovod with NCCL: what it finds, what it installs, and what is made of it.

Nothing here needs a GPU. Whether NCCL's sums are right on GPUs is not tested.
"""

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tf_config.horovod import cuda, wheel
from tf_config.horovod.build_error import BuildError

TENSORFLOW = ['nvidia-nccl-cu12<3.0,>=2.27.7; extra == "and-cuda"', "numpy>=1.26.0"]
PROGRAM = Path(__file__).parent / "scripts" / "nccl.py"


def toolkit(home, version):
    """Makes a CUDA toolkit of a version, which can say so."""
    (home / "bin").mkdir(parents=True)
    (home / "include").mkdir()
    (home / "include" / "cuda_runtime.h").touch()
    (home / "lib").mkdir()
    (home / "lib" / "libcudart.so.13").touch()
    nvcc = home / "bin" / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho Cuda compilation tools, release {version}, V{version}.1\n")
    nvcc.chmod(0o755)
    return home


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine without CUDA; returns a function that provides it, given its variables."""
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: TENSORFLOW)
    monkeypatch.setattr(cuda, "_LOCAL", tmp_path / "local")
    (tmp_path / "scratch").mkdir()

    def run_pip(*words):
        target = Path(words[words.index("--target") + 1])
        if "nvidia-nccl-cu12" in words[-1]:
            (target / "nvidia" / "nccl" / "lib").mkdir(parents=True)
            (target / "nvidia" / "nccl" / "lib" / "libnccl.so.2").touch()
        else:
            toolkit(target / "nvidia" / "cu13", "13.0")
        provide.asked.append(words[-1])

    def provide(**environ):
        path = f"{tmp_path}/bin:/usr/bin:/bin"
        return cuda.provide(
            tmp_path / "scratch", {"PATH": path, **environ}, run_pip, provide.said.append
        )

    provide.asked, provide.said = [], []
    return provide


def test_what_the_machine_lacks_comes_from_the_index(machine):
    found = machine()
    assert machine.asked == [cuda.COMPILER, "nvidia-nccl-cu12<3.0,>=2.27.7"]
    home = Path(found["HOROVOD_CUDA_HOME"])
    assert found["PATH"].startswith(f"{home}/bin:")
    for name in ("lib64/libcudart.so", "include/cuda_runtime.h"):
        assert (home / name).exists()
    nccl = Path(found["HOROVOD_NCCL_HOME"])
    assert (nccl / "lib" / "libnccl.so").exists()
    assert found["HOROVOD_RPATH"] == cuda.RPATH
    (warning,) = [text for text in machine.said if "driver must support" in text]
    assert "CUDA 12; CUDA 13.0" in warning


@pytest.mark.parametrize(
    ("versions", "taken"),
    [
        (["11.8", "12.4", "12.6", "13.0"], "12.6"),  # TensorFlow's, if it is there
        (["11.8", "13.1"], "13.1"),  # a later one before a download
        (["11.8"], None),
    ],
)
def test_the_machines_toolkit_is_taken(machine, tmp_path, versions, taken):
    for version in versions:
        toolkit(tmp_path / "local" / f"cuda-{version}", version)
    found = machine()
    assert (cuda.COMPILER in machine.asked) == (taken is None)
    if taken is not None:
        assert found["HOROVOD_CUDA_HOME"] == f"{tmp_path}/local/cuda-{taken}"
    assert any("driver must support" in text for text in machine.said) == (taken != "12.6")


def test_what_the_user_names_is_taken(machine, tmp_path):
    toolkit(tmp_path / "local" / "cuda-12.5", "12.5")
    mine = toolkit(tmp_path / "mine", "13.0")
    (tmp_path / "nccl" / "include").mkdir(parents=True)
    (tmp_path / "nccl" / "include" / "nccl.h").touch()
    nccl = {"HOROVOD_NCCL_HOME": str(tmp_path / "nccl"), "HOROVOD_NCCL_LINK": "static"}
    found = machine(HOROVOD_CUDA_HOME=str(mine), **nccl)
    assert found["HOROVOD_NCCL_LINK"] == "static"
    assert found["HOROVOD_CUDA_HOME"] == str(mine)
    assert machine.asked == [] and "HOROVOD_RPATH" not in found


@pytest.mark.parametrize("missing", ["bin/nvcc", "include/cuda_runtime.h"])
def test_a_named_toolkit_must_be_one(machine, tmp_path, missing):
    mine = toolkit(tmp_path / "mine", "12.5")
    (mine / missing).unlink()
    with pytest.raises(BuildError, match=f"HOROVOD_CUDA_HOME must be .* Received: {mine}"):
        machine(HOROVOD_CUDA_HOME=str(mine))


def test_a_named_nccl_must_be_one(machine, tmp_path):
    with pytest.raises(BuildError, match=f"HOROVOD_NCCL_HOME must be .* Received: {tmp_path}"):
        machine(HOROVOD_NCCL_HOME=str(tmp_path))
    with pytest.raises(BuildError, match="HOROVOD_NCCL_LINK must be 'shared'.*Received: 'static'"):
        machine(HOROVOD_NCCL_LINK="static")
    assert machine.asked == []


def test_tensorflow_must_be_built_for_cuda(machine, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: TENSORFLOW[1:])
    with pytest.raises(BuildError, match="without the extra and-cuda"):
        machine()


def test_a_build_without_nccl_is_the_one_that_it_was():
    assert wheel.fixes({}) == wheel.FIXES
    assert wheel.fixes({"HOROVOD_GPU_ALLREDUCE": "NCCL"}) == (*wheel.FIXES, *cuda.FIXES)
    assert wheel.fixes({"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_GPU": "ROCM"}) == wheel.FIXES
    paths = {str(wheel.cache_directory("2.21.0", options)) for options in ({}, {"HOROVOD_GPU": ""})}
    assert len(paths) == 2


def test_a_streams_handle_is_a_virtual_function():
    """A fix of the source relies on it; this runs on each version that README promises."""
    package = importlib.util.find_spec("tensorflow").submodule_search_locations[0]
    header = Path(package) / "include" / "xla" / "stream_executor" / "stream.h"
    declared = r"virtual PlatformSpecificHandle platform_specific_handle\(\) const = 0;"
    assert re.search(declared, header.read_text())


@pytest.mark.slow  # three to six minutes and 0.46 GB, once; later runs find the wheel
@pytest.mark.processes
def test_it_is_built_and_imported_and_two_processes_sum(forked, tmp_path):
    environ = {**os.environ, "HOROVOD_GPU_OPERATIONS": "NCCL"}
    command = [sys.executable, "-m", "tf_config", "install-horovod", "--wheel"]
    built = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path]
    nccl = str(cuda.nccl_requirement({}))
    subprocess.run([*pip, built.stdout.strip(), nccl], check=True)
    forked.environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    forked.python = sys.executable
    code, output = forked.run("--workers", 2, PROGRAM)
    assert code == 0, output
    found = [json.loads(line) for line in re.findall(r"^\[worker \d\] (\{.*\})$", output, re.M)]
    assert len(found) == 2, output
    for worker in found:
        assert worker["file"].startswith(str(tmp_path))
        assert worker["nccl"] >= 22707 and worker["sum"] == [3.0, 30.0]
        assert all("GPU" in devices for devices in worker["kernels"].values()), worker

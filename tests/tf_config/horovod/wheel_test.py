"""`tf-config install-horovod`, without the minutes that a build takes."""

import importlib.metadata
import importlib.util
import os
from pathlib import Path

import pytest

from tf_config.cli import main
from tf_config.horovod import wheel as horovod_wheel


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """Returns what pip is asked for; it does nothing."""
    asked = []
    monkeypatch.setattr(horovod_wheel, "run_pip", lambda *words, environ=None: asked.append(words))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.21.0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in horovod_wheel.DEFAULTS:
        monkeypatch.delenv(name, raising=False)
    return asked


@pytest.fixture
def builds(monkeypatch):
    """Returns the environments of the builds, each of which makes an empty wheel."""
    environments = []

    def build(scratch, environ, tensorflow, log):
        environments.append(environ)
        log.touch()
        (scratch / "horovod-0.28.1+gloo.iface-cp311-cp311-linux_x86_64.whl").touch()

    monkeypatch.setattr(horovod_wheel, "build", build)
    return environments


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """A compiler and a cmake that are there."""
    for name, text in (("g++", ""), ("cmake", "echo cmake version 3.25.1")):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.delenv("CXX", raising=False)


def test_it_is_built_once_and_installed_over_another_build(pip, builds, compiler):
    assert main(["install-horovod"]) == 0
    assert main(["install-horovod"]) == 0
    assert len(builds) == 1
    (first, second) = [words for words in pip if words[0] == "install"][-2:]
    assert first[-1].endswith(".whl")
    assert second == ("install", "--quiet", "--no-deps", "--force-reinstall", first[-1])


def test_nccl_is_installed_with_a_wheel_that_needs_it(pip, builds, compiler, monkeypatch):
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    monkeypatch.setattr(horovod_wheel.cuda, "provide", lambda *_: {"HOROVOD_CUDA_HOME": "/cuda"})
    assert main(["install-horovod"]) == 0
    assert builds[0]["HOROVOD_CUDA_HOME"] == "/cuda"
    installed = [words[-1] for words in pip if words[0] == "install"]
    assert [word.startswith("nvidia-nccl-cu") for word in installed] == [True, False, False]


def test_the_wheel_alone(pip, builds, compiler, capsys):
    assert main(["install-horovod", "--wheel"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert Path(line).is_file()
    assert [words for words in pip if words[-1].endswith(".whl")] == []


def test_each_tensorflow_and_each_option_has_a_wheel(pip, builds, compiler, monkeypatch):
    assert main(["install-horovod"]) == 0
    monkeypatch.setenv("HOROVOD_WITH_MPI", "1")
    assert main(["install-horovod"]) == 0
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.18.1")
    assert main(["install-horovod"]) == 0
    assert len(builds) == 3
    assert "HOROVOD_WITHOUT_MPI" in builds[0] and "HOROVOD_WITHOUT_MPI" not in builds[1]
    assert "EIGEN_USE_THREADS" in builds[1]["CXXFLAGS"]
    assert "EIGEN_USE_THREADS" not in builds[2].get("CXXFLAGS", "")


def test_setuptools_comes_for_the_build_alone(pip, builds, compiler, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PYTHONPATH", "/mine")
    assert main(["install-horovod"]) == 0
    (words,) = [words for words in pip if "setuptools" in words]
    target = words[words.index("--target") + 1]
    assert builds[0]["PYTHONPATH"] == f"{target}:/mine"


def test_as_many_compilers_run_as_there_are_processors(pip, builds, compiler, monkeypatch):
    monkeypatch.delenv("MAKEFLAGS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 5})
    assert main(["install-horovod", "--wheel"]) == 0
    monkeypatch.setenv("MAKEFLAGS", "-j1")
    monkeypatch.setenv("HOROVOD_DEBUG", "1")  # another wheel
    assert main(["install-horovod", "--wheel"]) == 0
    assert [environ["MAKEFLAGS"] for environ in builds] == ["-j3", "-j1"]


def test_what_is_missing_is_said_in_one_line(pip, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("CXX", raising=False)
    assert main(["install-horovod"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tf-config: error: Building Horovod requires a C++ compiler.")

    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    assert main(["install-horovod", "--wheel"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "must be built for an installed TensorFlow. Received: no TensorFlow" in line

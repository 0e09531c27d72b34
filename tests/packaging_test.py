"""The distributions: the source's has all files, the wheel's only the packages, and it works."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import packaging.metadata
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tracked():
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("There is no repository here to compare with.")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    return {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def distributions(tracked, tmp_path_factory):
    """Builds both as 'make dist' does: the source's from the repository, the wheel from that."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in tracked:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    run(source, "-c", f"from setuptools import build_meta; build_meta.build_sdist({str(made)!r})")
    (archive,) = made.glob("*.tar.gz")
    run(made, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", archive)
    (wheel,) = made.glob("*.whl")
    return archive, wheel


def run(directory, *arguments, python=sys.executable):
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.run(
        [python, *map(str, arguments)], cwd=directory, env=environ, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_the_source_distribution_is_the_repository(distributions, tracked):
    with tarfile.open(distributions[0]) as archive:
        names = {info.name.partition("/")[2] for info in archive if info.isfile()}
    made = {name for name in names if name == "PKG-INFO" or ".egg-info/" in name}
    assert names - made - {"setup.cfg"} == tracked


def test_the_wheel_is_the_packages(distributions, tracked):
    with zipfile.ZipFile(distributions[1]) as wheel:
        names = set(wheel.namelist())
    own = {
        name for name in tracked if re.fullmatch(r"(strategies|tf_config)/.*(\.py|py\.typed)", name)
    }
    assert {name for name in names if ".dist-info/" not in name} == own


def test_the_metadata_is_valid(distributions):
    with zipfile.ZipFile(distributions[1]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        found = packaging.metadata.Metadata.from_email(wheel.read(name), validate=True)
    assert found.name == "keras-strategies"
    assert found.description_content_type == "text/markdown"
    assert found.description.strip() == (ROOT / "README.md").read_text().strip()
    assert {"docs", "examples", "horovod", "parquet", "test"} <= set(found.provides_extra)


def test_the_wheel_works_in_an_environment_of_its_own(distributions, job):
    """One that has the dependencies already, by a path to those of this one."""
    directory = job.directory / "environment"
    venv.create(directory, with_pip=False, symlinks=True)
    (site,) = directory.glob("lib/python*/site-packages")
    with zipfile.ZipFile(distributions[1]) as wheel:
        wheel.extractall(site)
    dependencies = Path(importlib.metadata.distribution("tensorflow").locate_file(""))
    (site / "dependencies.pth").write_text(f"{dependencies}\n")
    python = directory / "bin" / "python"
    where = "import strategies, tf_config; print(strategies.__file__, tf_config.__file__)"
    found = run(job.directory, "-c", where, python=python).splitlines()[-1]
    assert all(str(site) in path for path in found.split()), found
    assert "ok: 1 worker" in run(
        job.directory, "-m", "tf_config", "check", "--file", config(job), python=python
    )


def config(job):
    text = '{"cluster": {"worker": ["node1:2222"]}, "task": {"type": "worker", "index": 0}}'
    return job.script(text, "tf_config.json")

"""An environment in which TensorFlow has devices that look like GPUs; see device.c.

It has `tensorflow-cpu`, of the version of the TensorFlow that is installed: the wheel with CUDA has
a platform of type GPU already. It is in build/gpu_lookalike, and made once.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent.parent
DEVICE = Path(__file__).with_name("device.c")
HOME = ROOT / "build" / "gpu_lookalike"
# What asks for a package named tensorflow, which would be installed over tensorflow-cpu.
_WITHOUT_DEPENDENCIES = ("tf_keras",)


def packages() -> list[str]:
    """Returns what is installed with its dependencies: this package's, at the versions here."""
    required = map(Requirement, importlib.metadata.requires("keras-strategies") or ())
    needed = {requirement.name for requirement in required if requirement.marker is None}
    versions = {name: importlib.metadata.version(name) for name in sorted(needed)}
    versions["tensorflow-cpu"] = versions.pop("tensorflow")
    return [f"{name}=={version}" for name, version in sorted(versions.items())]


def python() -> str:
    """Returns the environment's Python; makes the environment if there is none of this recipe."""
    bare = [f"{name}=={importlib.metadata.version(name)}" for name in _WITHOUT_DEPENDENCIES]
    recipe = repr((sys.version, packages(), bare, DEVICE.read_text()))
    key = hashlib.sha256(recipe.encode()).hexdigest()
    ready, interpreter = HOME / ".ready", HOME / "bin" / "python"
    if not (ready.exists() and ready.read_text() == key):
        shutil.rmtree(HOME, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", HOME], check=True)
        pip = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages()], check=True)
        subprocess.run([*pip, "--no-deps", *bare], check=True)
        compile_device(next(HOME.glob("lib/python*/site-packages")))
        ready.write_text(key)
    return str(interpreter)


def compile_device(site: Path) -> None:
    """Compiles the plug-in to where TensorFlow looks for plug-ins, and makes this package found."""
    plugins = site / "tensorflow-plugins"
    plugins.mkdir()
    subprocess.run(
        [
            "gcc", "-std=gnu11", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", DEVICE,
            f"-I{site}/tensorflow/include", f"-L{site}/tensorflow",
            "-l:libtensorflow_framework.so.2", "-o", plugins / "liblookalike.so",
        ],
        check=True,
    )  # fmt: skip
    (site / "keras_strategies.pth").write_text(f"{ROOT}\n")


if __name__ == "__main__":
    print(python())

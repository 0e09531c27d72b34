"""Horovod's wheel for the installed TensorFlow, built once and cached.

BUILD.md explains what is built and why. The wheel is cached in ~/.cache/keras-strategies (or under
$XDG_CACHE_HOME), in a directory whose name contains everything that the wheel depends on, and is
shared by all Python environments.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tf_config.horovod import cuda
from tf_config.horovod.build_error import BuildError

VERSION = "0.28.1"
NEWEST_WITHOUT_FLAG = (2, 18)
# Horovod's Gloo connects through HOROVOD_GLOO_IFACE, but transfers data over the address that the
# machine's name resolves to: 127.0.1.1 on many machines; on others, no address, which causes a
# crash. The first fix adds the missing assignment; the second marks the version number.
FIXES = (
    (
        "horovod/common/gloo/gloo_context.cc",
        "  auto dev = CreateDevice(device_attr);\n\n  global_ctx",
        "  device_attr.iface = gloo_iface_ = global_context.gloo_iface_;\n"
        "  auto dev = CreateDevice(device_attr);\n\n  global_ctx",
    ),
    ("horovod/__init__.py", f"'{VERSION}'", f"'{VERSION}+gloo.iface'"),
)
DEFAULTS = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
}
_HEARTBEAT_SECONDS = 15


def install() -> Path:
    """Installs the wheel into the current Python environment; returns the path of the wheel.

    Raises:
      BuildError: if the wheel cannot be built or installed.
    """
    path = wheel()
    if cuda.is_requested(os.environ):
        requirement = cuda.nccl_requirement(os.environ)
        if requirement is not None:  # after the build, so that a failure changes no environment
            run_pip("install", "--no-deps", str(requirement))
    run_pip("install", str(path))
    # A wheel of the same version, but for another TensorFlow, may already be installed.
    run_pip("install", "--quiet", "--no-deps", "--force-reinstall", str(path))
    return path


def wheel() -> Path:
    """Returns the path of the wheel for the installed TensorFlow, and builds it if necessary.

    Raises:
      BuildError: if the wheel cannot be built.
    """
    tensorflow = _tensorflow_version()
    options = build_options(tensorflow, os.environ)
    cache = cache_directory(tensorflow, options)
    cached = sorted(cache.glob("*.whl"))
    if cached:
        say(f"Using the cached wheel of Horovod {VERSION} for TensorFlow {tensorflow}: {cached[0]}")
        return cached[0]
    require_compiler()
    with tempfile.TemporaryDirectory() as scratch:
        environ = {**os.environ, **options, **provide_setuptools(Path(scratch))}
        environ["PATH"] = provide_cmake(Path(scratch))
        if cuda.is_requested(options):
            environ |= cuda.provide(Path(scratch), environ, run_pip, say)
        # By default, Horovod runs eight compilers of 0.4 GB each on any machine.
        environ["MAKEFLAGS"] = environ.get("MAKEFLAGS") or f"-j{len(os.sched_getaffinity(0))}"
        log = Path(tempfile.gettempdir()) / f"horovod-{VERSION}-build-{os.getpid()}.log"
        build(Path(scratch), environ, tensorflow, log)
        (built,) = Path(scratch).glob("horovod-*.whl")
        cache.mkdir(parents=True, exist_ok=True)
        # Copied under another name first, so that an incomplete copy is never used as a wheel.
        part = cache / f"{built.name}.{os.getpid()}.part"
        shutil.copyfile(built, part)
        part.replace(cache / built.name)
        log.unlink()
    return cache / built.name


def _tensorflow_version() -> str:
    try:
        return importlib.metadata.version("tensorflow")
    except importlib.metadata.PackageNotFoundError:
        raise BuildError(
            "Horovod must be built for an installed TensorFlow. Received: no TensorFlow for "
            f"{sys.executable}. Install keras-strategies there, which installs TensorFlow."
        ) from None


def build_options(tensorflow: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that Horovod's build reads, including HOROVOD_... set by the user."""
    options = dict(DEFAULTS)
    if "HOROVOD_WITH_MPI" not in environ:
        options["HOROVOD_WITHOUT_MPI"] = "1"
    options.update({name: environ[name] for name in environ if name.startswith("HOROVOD_")})
    major, minor = (int(part) for part in tensorflow.split(".")[:2])
    if (major, minor) > NEWEST_WITHOUT_FLAG:
        number = f"{major * 10**9 + minor * 10**6}"
        flag = f"-UTENSORFLOW_VERSION -DTENSORFLOW_VERSION={number}*EIGEN_USE_THREADS+1"
        options["CXXFLAGS"] = f"{environ.get('CXXFLAGS', '')} {flag}".strip()
    return options


def fixes(options: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    """Returns the fixes to apply to Horovod's source for a build with these variables."""
    return (*FIXES, *cuda.FIXES) if cuda.is_requested(options) else FIXES


def cache_directory(tensorflow: str, options: dict[str, str]) -> Path:
    """Returns the wheel's cache directory; its name contains everything the wheel depends on."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    recipe = hashlib.sha256(repr((sorted(options.items()), fixes(options))).encode()).hexdigest()[
        :8
    ]
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}-{sysconfig.get_platform()}"
    name = f"horovod-{VERSION}-tensorflow-{tensorflow}-{tag}-{platform.libc_ver()[1]}-{recipe}"
    return base / "keras-strategies" / name


def require_compiler() -> None:
    """Raises BuildError if there is no C++ compiler."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise BuildError(
            f"Building Horovod requires a C++ compiler. Received: no {compiler} on the PATH. "
            "Install g++ (Debian: apt-get install g++), or set CXX to another compiler."
        )


def provide_cmake(scratch: Path) -> str:
    """Returns a PATH with cmake >= 3.13, < 4, and installs cmake for the build if necessary."""
    path = os.environ["PATH"]
    cmake = shutil.which("cmake")
    if cmake is not None:
        text = subprocess.run([cmake, "--version"], capture_output=True, text=True).stdout
        version = re.search(r"version (\d+)\.(\d+)", text)
        if version is not None and (3, 13) <= tuple(map(int, version.groups())) < (4, 0):
            return path
    say("Installing cmake 3 from the package index for the build ...")
    target = scratch / "cmake"
    run_pip("install", "--quiet", "--target", str(target), "cmake<4")
    (binary,) = target.glob("cmake/data/bin")
    return os.pathsep.join([str(binary), path])


def provide_setuptools(scratch: Path) -> dict[str, str]:
    """Returns environment variables with which the build finds setuptools and wheel.

    If they are missing, as in new environments of Python 3.12, they are installed from the package
    index for the build only.
    """
    if all(map(importlib.util.find_spec, ("setuptools", "wheel"))):
        return {}
    say("Installing setuptools from the package index for the build ...")
    target = scratch / "setuptools"
    run_pip("install", "--quiet", "--target", str(target), "setuptools", "wheel")
    given = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(target), *([given] if given else [])])}


def build(scratch: Path, environ: Mapping[str, str], tensorflow: str, log: Path) -> None:
    """Runs the build, and prints progress every few seconds."""
    say(
        f"Building Horovod {VERSION} for TensorFlow {tensorflow}, which takes two to four minutes "
        f"on two cores and is done only once. Output: {log}"
    )
    # pip's cache does not distinguish wheels that were built for different TensorFlow versions.
    command = [sys.executable, "-m", "pip", "wheel", "--no-cache-dir", "--no-build-isolation"]
    command += ["--no-deps", "--wheel-dir", str(scratch), str(fix_source(scratch, environ))]
    start = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environ, stdout=output, stderr=output)
        while True:
            try:
                code = process.wait(_HEARTBEAT_SECONDS)
                break
            except subprocess.TimeoutExpired:
                say(f"  ... {time.monotonic() - start:.0f} s")
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        raise BuildError(f"The build failed. Its last lines:\n{tail}\nComplete output: {log}")
    say(f"Built in {time.monotonic() - start:.0f} s.")


def fix_source(scratch: Path, environ: Mapping[str, str]) -> Path:
    """Downloads Horovod's source and applies the fixes; returns the directory of the source."""
    run_pip(
        "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation",
        "--dest", str(scratch), f"horovod=={VERSION}", environ=environ,
    )  # fmt: skip
    (archive,) = scratch.glob("horovod-*.tar.gz")
    shutil.unpack_archive(archive, scratch)
    source = scratch / f"horovod-{VERSION}"
    for name, old, new in fixes(environ):
        text = (source / name).read_text()
        if text.count(old) != 1:
            raise BuildError(
                f"The source of Horovod {VERSION} must contain the text that a fix replaces. "
                f"Received: {name} without {old!r}. See FIXES in tf_config/horovod/wheel.py."
            )
        (source / name).write_text(text.replace(old, new))
    return source


def run_pip(*arguments: str, environ: Mapping[str, str] | None = None) -> None:
    """Runs pip, whose output goes to standard error."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, env=environ, stdout=sys.stderr).returncode != 0:
        raise BuildError(f"'pip {' '.join(arguments)}' failed; its output is above.")


def say(text: str) -> None:
    """Prints a line to standard error."""
    print(text, file=sys.stderr, flush=True)

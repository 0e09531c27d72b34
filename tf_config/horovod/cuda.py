"""A CUDA compiler and NCCL for the build of Horovod's GPU operations.

Nothing here requires a GPU. The packages in the extra `and-cuda` of TensorFlow's wheel tell the
CUDA version that TensorFlow was built for. Of these packages, Horovod is linked with NCCL, which it
finds in the same site-packages directory at run time. The CUDA runtime is linked statically.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

from tf_config.horovod.build_error import BuildError

# TensorFlow's wheel no longer exports AsGpuStreamValue. A virtual function of the stream returns
# the same handle, and a virtual call requires no exported symbol.
_DECLARED = """\
// Forward declaration of AsGpuStreamValue
namespace stream_executor {
namespace gpu {
GpuStreamHandle AsGpuStreamValue(Stream* stream);
} // namespace stream_executor
} // namespace gpu
#if TENSORFLOW_VERSION >= 2011000000
#include "tensorflow/compiler/xla/stream_executor/stream.h"
#else
#include "tensorflow/stream_executor/stream.h"
#endif // TENSORFLOW_VERSION >= 2011000000
"""
_DEFINED = """\
#include "xla/stream_executor/stream.h"
namespace stream_executor {
namespace gpu {
inline GpuStreamHandle AsGpuStreamValue(Stream* stream) {
  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);
}
} // namespace gpu
} // namespace stream_executor
"""
_PROJECT = "project(horovod CXX)\n"
# Otherwise, cmake records the build directory, which is deleted afterwards, as the RPATH.
_RPATH = """\
if(DEFINED ENV{HOROVOD_RPATH})
    set(CMAKE_SKIP_RPATH TRUE)
    string(APPEND CMAKE_SHARED_LINKER_FLAGS " -Wl,-rpath,$ENV{HOROVOD_RPATH}")
endif()
"""
# As in `wheel.FIXES`: file, old text, new text.
FIXES = (
    ("horovod/tensorflow/mpi_ops.cc", _DECLARED, _DEFINED),
    ("CMakeLists.txt", _PROJECT, _PROJECT + _RPATH),
)
# From horovod/tensorflow/libmpi_lib.so to the package of NCCL in the same site-packages.
RPATH = "$ORIGIN/../../nvidia/nccl/lib"
# The oldest packages on the index that contain nvcc; those of CUDA 12 do not.
COMPILER = "cuda-toolkit[nvcc,cudart,crt,cccl]==13.0.*"
# NVIDIA's installers create a directory cuda-X.Y here for each toolkit.
_LOCAL = Path("/usr/local")
_HOME = "HOROVOD_CUDA_HOME"
_NCCL_HOME, _NCCL_LINK = "HOROVOD_NCCL_HOME", "HOROVOD_NCCL_LINK"


class Toolkit(NamedTuple):
    """A CUDA toolkit.

    Attributes:
      home: its directory.
      version: major and minor version number.
    """

    home: Path
    version: tuple[int, int]


def is_requested(options: Mapping[str, str]) -> bool:
    """Returns whether the build's environment variables request NCCL.

    >>> is_requested({"HOROVOD_GPU_OPERATIONS": "NCCL"}), is_requested({"HOROVOD_WITH_MPI": "1"})
    (True, False)
    """
    if options.get("HOROVOD_GPU", "CUDA") != "CUDA":
        return False
    return any(
        name.startswith("HOROVOD_GPU_") and value == "NCCL" for name, value in options.items()
    )


def nccl_requirement(options: Mapping[str, str]) -> Requirement | None:
    """Returns the NCCL package that TensorFlow's wheel requires; None if the user names another.

    Raises:
      BuildError: if TensorFlow's wheel is not built for CUDA.
    """
    if _NCCL_HOME in options:
        return None
    return _nccl_of_tensorflow()


def _nccl_of_tensorflow() -> Requirement:
    for text in importlib.metadata.requires("tensorflow") or ():
        requirement = Requirement(text)
        if requirement.name.startswith("nvidia-nccl-cu"):
            requirement.marker = None
            return requirement
    raise BuildError(
        "NCCL requires a TensorFlow that is built for CUDA, as the wheel for Linux on x86-64 is. "
        "Received: a TensorFlow without the extra and-cuda. Unset HOROVOD_GPU_OPERATIONS."
    )


def provide(
    scratch: Path,
    environ: Mapping[str, str],
    run_pip: Callable[..., None],
    say: Callable[[str], None],
) -> dict[str, str]:
    """Returns environment variables with which Horovod's build finds a CUDA compiler and NCCL.

    If the machine does not have them, they are installed from the package index for the build only.

    Args:
      scratch: a temporary directory that exists until the build is done.
      environ: the environment of the build.
      run_pip: runs pip with the given arguments.
      say: prints a line for the user.

    Raises:
      BuildError: if a component is missing.
    """
    requirement = nccl_requirement(environ)
    if requirement is None:
        _check_nccl(Path(environ[_NCCL_HOME]))
    elif environ.get(_NCCL_LINK, "shared") != "shared":
        raise BuildError(
            f"{_NCCL_LINK} must be 'shared' for the NCCL package, which has no static library. "
            f"Received: {environ[_NCCL_LINK]!r}. Unset it, or set {_NCCL_HOME} to another NCCL."
        )
    major = int(_nccl_of_tensorflow().name.removeprefix("nvidia-nccl-cu"))
    toolkit = _named_toolkit(environ) or _find_toolkit(environ, major)
    if toolkit is None:
        toolkit = _install_toolkit(scratch / "cuda", run_pip, say)
    number = ".".join(map(str, toolkit.version))
    say(f"CUDA {number}: {toolkit.home}")
    if toolkit.version[0] > major:
        say(
            f"TensorFlow is built for CUDA {major}; CUDA {number} compiles Horovod's kernels. To "
            f"run them, the machine's NVIDIA driver must support CUDA {number} (see nvidia-smi). "
            f"With an older driver, set {_HOME} to a toolkit of CUDA {major}."
        )
    variables = {
        _HOME: str(toolkit.home),
        # Horovod queries the first nvcc on the PATH for the GPUs that it can compile for.
        "PATH": f"{toolkit.home / 'bin'}:{environ['PATH']}",
        _NCCL_LINK: environ.get(_NCCL_LINK, "shared"),
    }
    if requirement is not None:
        home = _installed_nccl(requirement)
        if home is None:
            say(f"Installing {requirement} from the package index for the build ...")
            target = scratch / "nccl"
            run_pip("install", "--quiet", "--no-deps", "--target", str(target), str(requirement))
            home = target / "nvidia" / "nccl"
        variables |= {_NCCL_HOME: str(_make_linkable(home, scratch)), "HOROVOD_RPATH": RPATH}
    return variables


def _check_nccl(home: Path) -> None:
    """Raises BuildError if the directory that the user names does not contain NCCL."""
    if not (home / "include" / "nccl.h").exists():
        raise BuildError(
            f"{_NCCL_HOME} must be the directory of NCCL, with include/nccl.h. Received: {home}. "
            "Correct it, or unset it to install the package that TensorFlow requires."
        )


def _named_toolkit(environ: Mapping[str, str]) -> Toolkit | None:
    home = environ.get(_HOME)
    if home is None:
        return None
    toolkit = _toolkit_in(Path(home))
    if toolkit is None:
        raise BuildError(
            f"{_HOME} must be the directory of a CUDA toolkit, with bin/nvcc and "
            f"include/cuda_runtime.h. Received: {home}. Correct it, or unset it to search the "
            "machine."
        )
    return toolkit


def _find_toolkit(environ: Mapping[str, str], major: int) -> Toolkit | None:
    """Returns the machine's newest toolkit of a major version; if none, the newest later one."""
    nvcc = shutil.which("nvcc", path=environ["PATH"])
    homes = [Path(environ["CUDA_HOME"])] if environ.get("CUDA_HOME") else []
    if nvcc is not None:
        homes.append(Path(nvcc).resolve().parent.parent)
    homes += [*_LOCAL.glob("cuda-*"), _LOCAL / "cuda"]
    toolkits = [toolkit for toolkit in map(_toolkit_in, homes) if toolkit is not None]
    same = [toolkit for toolkit in toolkits if toolkit.version[0] == major]
    later = [toolkit for toolkit in toolkits if toolkit.version[0] > major]
    return max(same or later, key=lambda toolkit: toolkit.version, default=None)


def _install_toolkit(
    target: Path, run_pip: Callable[..., None], say: Callable[[str], None]
) -> Toolkit:
    """Installs a toolkit from the package index into a directory."""
    say("Installing CUDA's compiler from the package index for the build ...")
    run_pip("install", "--quiet", "--target", str(target), COMPILER)
    for home in target.glob("nvidia/cu*"):
        # nvcc searches for libraries in `lib64`, but the packages have them in `lib`.
        if not (home / "lib64").exists():
            (home / "lib64").symlink_to("lib")
        _link_libraries(home / "lib", home / "lib")
        toolkit = _toolkit_in(home)
        if toolkit is not None:
            return toolkit
    raise BuildError(
        f"The package {COMPILER} must contain bin/nvcc. Received: no such file under {target}. Set "
        f"{_HOME} to a CUDA toolkit."
    )


def _toolkit_in(home: Path) -> Toolkit | None:
    """Returns the toolkit in a directory; None if it has no compiler or no headers."""
    nvcc = home / "bin" / "nvcc"
    headers = ("include", "targets/*/include")
    if not any(any(home.glob(f"{place}/cuda_runtime.h")) for place in headers):
        return None
    try:
        text = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    except OSError:
        return None
    version = re.search(r"release (\d+)\.(\d+)", text)
    return None if version is None else Toolkit(home, (int(version[1]), int(version[2])))


def _installed_nccl(requirement: Requirement) -> Path | None:
    """Returns the directory of the installed NCCL package; None if it is missing or too old."""
    try:
        package = importlib.metadata.distribution(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return None
    if package.version not in requirement.specifier:
        return None
    return Path(str(package.locate_file("nvidia/nccl")))


def _make_linkable(home: Path, scratch: Path) -> Path:
    """Creates a directory with links to NCCL's files under the names that a linker searches for."""
    directory = scratch / "linkable_nccl"
    (directory / "lib").mkdir(parents=True)
    (directory / "include").symlink_to(home / "include")
    _link_libraries(home / "lib", directory / "lib")
    return directory


def _link_libraries(source: Path, target: Path) -> None:
    """Creates links to shared libraries under the names that a linker searches for.

    NVIDIA's packages contain only the names for the loader, such as libnccl.so.2.
    """
    for library in source.glob("lib*.so.*"):
        link = target / (library.name.partition(".so.")[0] + ".so")
        if not link.exists():
            link.symlink_to(library)

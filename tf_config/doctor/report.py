"""A report of what a training job can use on a machine, and how to install what is missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tf_config.doctor.machine import Answer, Machine

# As in setup.py.
PYTHON, TENSORFLOW, KERAS = ">=3.10,<3.14", ">=2.18,<2.22", ">=3,<4"
OK, MISSING, ABSENT = "ok", "missing", "-"

_INSTALL = "tf-config install-horovod"


class Finding(NamedTuple):
    """The result of a probe.

    Attributes:
      found: whether the item is present and usable.
      text: the version; if the item is unusable, the reason and any special remedy.
    """

    found: bool
    text: str = ""


@dataclass(frozen=True)
class Probe:
    """An item to look for on a machine.

    Attributes:
      name: the item's name.
      find: looks for the item on a machine.
      remedy: how to install the item.
      needed: whether the item is required.
    """

    name: str
    find: Callable[[Machine], Finding]
    remedy: str
    needed: bool = False


class Line(NamedTuple):
    """The line of the report about one item."""

    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.mark:<8} {self.text}"


def examine(
    machine: Machine,
    probes: Sequence[Probe] | None = None,
    begin: Callable[[str], None] = lambda name: None,
) -> Iterator[Line]:
    """Yields a line for each item, as soon as the item has been looked for.

    Args:
      machine: the machine to examine.
      probes: the items to look for; None for all of `PROBES`.
      begin: called with an item's name before it is looked for.
    """
    for probe in PROBES if probes is None else probes:
        begin(probe.name)
        found, text = probe.find(machine)
        if found:
            yield Line(OK, f"{probe.name} {text}".rstrip())
        else:
            yield Line(MISSING if probe.needed else ABSENT, f"{probe.name}: {text or probe.remedy}")


def exit_code(lines: Iterable[Line]) -> int:
    """Returns 2 if a required item is missing, otherwise 0."""
    return 2 if MISSING in {line.mark for line in lines} else 0


def within(version: str, bounds: str) -> bool:
    """Returns whether a version is in a range, by pip's rules; pre-releases count.

    >>> [within(version, ">=2.18,<2.22") for version in ("2.17.1", "2.18.0", "2.22.0rc1")]
    [False, True, False]
    """
    return SpecifierSet(bounds).contains(version, prereleases=True)


def _python(machine: Machine) -> Finding:
    if within(machine.python, PYTHON):
        return Finding(True, machine.python)
    return Finding(
        False, f"{machine.python} is not {PYTHON}; create .venv with a supported version"
    )


def _package(name: str, bounds: str) -> Callable[[Machine], Finding]:

    def find(machine: Machine) -> Finding:
        version = machine.package(name)
        if version is None:
            return Finding(False)
        if within(version, bounds):
            return Finding(True, version)
        return Finding(False, f'{version} is not {bounds}; pip install "{name}{bounds}"')

    return find


def _numpy(machine: Machine) -> Finding:
    version = machine.package("numpy")
    return Finding(version is not None, version or "")


def _tf_keras(machine: Machine) -> Finding:
    version, tensorflow = machine.package("tf_keras"), machine.package("tensorflow")
    if tensorflow is None:
        return Finding(version is not None, version or "")
    # Without a version, pip would install the newest one and replace TensorFlow to match it.
    minor = ".".join(map(str, Version(tensorflow).release[:2]))
    if version and within(version, f"=={minor}.*"):
        return Finding(True, version)
    reason = f"{version} is not for TensorFlow {minor}; " if version else ""
    return Finding(False, f'{reason}pip install "tf_keras=={minor}.*"')


def _onednn(machine: Machine) -> Finding:
    value = machine.environ.get(_ONEDNN)
    if value is not None:
        is_on = value.lower() in ("1", "true")
        setting = f"{_ONEDNN}={value}"
        return Finding(is_on, f"({setting})" if is_on else f"disabled by {setting}")
    if not machine.processor:
        return Finding(False, "TensorFlow's default on this processor is unknown")
    names = [name for name in _FOR_NEURAL_NETWORKS if name in machine.processor]
    if names:
        return Finding(True, f"(TensorFlow's default on a processor with {', '.join(names)})")
    return Finding(False)


def _program(name: str, *arguments: str, pattern: str) -> Callable[[Machine], Finding]:
    """Returns a probe for a program; the first group of `pattern` matches the version it prints."""

    def find(machine: Machine) -> Finding:
        answer = machine.ask(name, *arguments)
        if answer is None:
            return Finding(False)
        version = re.search(pattern, answer.text)
        command = f"{name} {' '.join(arguments)}"
        return Finding(True, version[1]) if version else _unclear(command, answer)

    return find


def _unclear(command: str, answer: Answer) -> Finding:
    """Returns the finding for a program that is present but does not report its version."""
    lines = [line.strip() for line in answer.text.splitlines() if line.strip()]
    problem = "does not exit" if answer.code is None else "prints nothing"
    if lines:
        problem = f"prints: {lines[-1][:160]}"
    return Finding(False, f"installed, but '{command}' {problem}; fix that first")


def _mpirun(machine: Machine) -> Finding:
    answer = machine.ask("mpirun", "--version")
    if answer is None:
        return Finding(False)
    for name, pattern in (
        ("Open MPI", r"\(Open MPI\) (\S+)"),
        ("MPICH", r"(?s)HYDRA.*?Version:\s+(\S+)"),
        ("Intel MPI", r"Intel\(R\) MPI Library.*Version (\S+)"),
    ):
        if version := re.search(pattern, answer.text):
            return Finding(True, f"({name} {version[1]})")
    return _unclear("mpirun --version", answer)


def _slurm(machine: Machine) -> Finding:
    programs = ("srun", "sbatch", "scontrol")
    absent = [name for name in programs if not machine.has(name)]
    if absent:
        remedy = f"no {', '.join(absent)}; {_SLURM_REMEDY}"
        return Finding(False, remedy if len(absent) < len(programs) else "")
    answer = machine.ask("srun", "--version")
    text = answer.text if answer else ""
    if version := re.search(r"(?m)^slurm\S* (\d\S+)", text):
        return Finding(True, version[1])
    if "configuration source" in text:
        return Finding(False, "installed, but without slurm.conf; set SLURM_CONF to its path")
    return _unclear("srun --version", answer or Answer(None, ""))


def _gpus(machine: Machine) -> Finding:
    answer = machine.ask("nvidia-smi", "-L")
    if answer is None:
        return Finding(False)
    names = re.findall(r"(?m)^GPU \d+: (.+?)(?: \(UUID.*)?$", answer.text)
    if names:
        return Finding(True, f"{len(names)} ({', '.join(dict.fromkeys(names))})")
    if answer.code == 0 or "No devices" in answer.text:
        return Finding(False, "nvidia-smi lists none")
    return _unclear("nvidia-smi -L", answer)


def _nccl(machine: Machine) -> Finding:
    for name in ("nvidia-nccl-cu12", "nvidia-nccl-cu13"):
        if version := machine.package(name):
            return Finding(True, f"{version} (Python package {name})")
    answer = machine.ask("ldconfig", "-p")
    library = re.search(r"libnccl\.so\.\S* .*=> (\S+)", answer.text if answer else "")
    return Finding(True, f"({library[1]})") if library else Finding(False)


def _horovod(machine: Machine) -> Finding:
    version = machine.package("horovod")
    if version is None:
        return Finding(False)
    build = machine.horovod
    if build is None:
        return Finding(False, f"{version} does not report how it was built; {_REBUILD}")
    if not build.get("Frameworks", {}).get("TensorFlow"):
        return Finding(False, f"{version} was built for another TensorFlow; {_REBUILD}")
    return Finding(True, version)


def _horovod_with(name: str, *sections: str) -> Callable[[Machine], Finding]:
    """Returns a probe for a feature that Horovod was built with."""

    def find(machine: Machine) -> Finding:
        if machine.package("horovod") is None or machine.horovod is None:
            return Finding(False)
        built = machine.horovod
        present = [section for section in sections if built.get(section, {}).get(name)]
        listed = ", ".join(present).lower()
        return Finding(bool(present), f"({listed})" if present else "")

    return find


_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
# TensorFlow enables oneDNN by default on processors with one of these features.
_FOR_NEURAL_NETWORKS = (
    "avx512_vnni",
    "avx512_bf16",
    "avx_vnni",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
)
_SLURM_REMEDY = "Debian's packages slurm-wlm and munge"
_REBUILD = f"rebuild it: {_INSTALL}; manually: BUILD.md"
_CONTROLLERS, _OPERATIONS = "Controllers", "Tensor Operations"

# Horovod is last, because its probe takes longest.
PROBES = (
    Probe("Python", _python, "", needed=True),
    Probe(
        "TensorFlow",
        _package("tensorflow", TENSORFLOW),
        f'pip install "tensorflow{TENSORFLOW}"',
        needed=True,
    ),
    Probe("Keras", _package("keras", KERAS), f'pip install "keras{KERAS}"', needed=True),
    Probe("NumPy", _numpy, "pip install numpy", needed=True),
    Probe("tf_keras", _tf_keras, "pip install tf_keras"),
    Probe(
        "oneDNN",
        _onednn,
        f"disabled by default on this processor; try {_ONEDNN}=1, and measure",
    ),
    Probe("GPUs", _gpus, "none found, because there is no nvidia-smi; install NVIDIA's driver"),
    Probe("NCCL", _nccl, 'pip install "tensorflow[and-cuda]", on machines with GPUs'),
    Probe(
        "ssh",
        _program("ssh", "-V", pattern=r"(OpenSSH_[^\s,]+)"),
        "Debian's package openssh-client",
    ),
    Probe(
        "sshd",
        _program("sshd", "-V", pattern=r"(OpenSSH_[^\s,]+)"),
        "Debian's package openssh-server",
    ),
    Probe("Slurm", _slurm, _SLURM_REMEDY),
    Probe("mpirun", _mpirun, "Debian's package openmpi-bin"),
    Probe(
        "kubectl",
        _program("kubectl", "version", "--client", pattern=r"v(\d+\.\d+\.[^\s\",]+)"),
        "https://kubernetes.io/docs/tasks/tools/",
    ),
    Probe("Horovod", _horovod, f"{_INSTALL}; manually: BUILD.md"),
    Probe(
        "Horovod with Gloo",
        _horovod_with("Gloo", _CONTROLLERS, _OPERATIONS),
        f"{_INSTALL}; manually: BUILD.md",
    ),
    Probe(
        "Horovod with MPI",
        _horovod_with("MPI", _CONTROLLERS, _OPERATIONS),
        f"HOROVOD_WITH_MPI=1 {_INSTALL}; see BUILD.md",
    ),
    Probe("Horovod with NCCL", _horovod_with("NCCL", _OPERATIONS), "see BUILD.md, 'With NCCL'"),
)

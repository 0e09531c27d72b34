"""The error of this package, and helpers for its messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# What users call a scheduler or launcher whose name here is not similar.
_SYNONYMS = {
    **dict.fromkeys(("k8s", "kube", "kubectl"), "kubernetes"),
    **dict.fromkeys(("srun", "sbatch"), "slurm"),
    **dict.fromkeys(("mpi", "mpirun", "mpiexec", "ompi", "open-mpi"), "openmpi"),
    **dict.fromkeys(("mpich", "hydra", "intelmpi", "intel-mpi"), "pmi"),
    **dict.fromkeys(("torchrun", "torch"), "pytorch"),
    **dict.fromkeys(("fluid", "fleetrun", "paddlepaddle"), "paddle"),
}


class ClusterConfigError(ValueError):
    """Raised when a cluster, task or TF_CONFIG breaks a rule.

    The message is one line: the rule, the value received and the remedy.
    """


def quoted(value: object, limit: int = 160) -> str:
    """Returns `value` as one line of at most about `limit` characters, for a message.

    >>> quoted("a\\nb")
    "'a\\\\nb'"
    """
    try:
        text = ascii(value)
    except (RecursionError, ValueError):
        text = f"a {type(value).__name__} too deep or too long to print"
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def suggestion(value: object, known: Iterable[str]) -> str:
    """Returns a question that suggests the known name closest to `value`; "" if none is close.

    Dashes in front do not make names similar.

    >>> suggestion("--wrokers", ["--workers", "--ps"])
    " Did you mean '--workers'?"
    >>> suggestion("k8s", ["slurm", "kubernetes"])
    " Did you mean 'kubernetes'?"
    >>> suggestion("nonsense", ["workers", "ps"])
    ''
    """
    names = {name.lstrip("-"): name for name in known}
    text = str(value).lstrip("-")
    text = _SYNONYMS.get(text.lower(), text)
    found = difflib.get_close_matches(text, list(names), 1)
    return f" Did you mean {quoted(names[found[0]])}?" if found else ""

"""The exception that this package raises, and helpers for its messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Other names of schedulers and launchers that are too different for difflib to match.
_SYNONYMS = {
    **dict.fromkeys(("k8s", "kube", "kubectl"), "kubernetes"),
    **dict.fromkeys(("srun", "sbatch"), "slurm"),
    **dict.fromkeys(("mpi", "mpirun", "mpiexec", "ompi", "open-mpi"), "openmpi"),
    **dict.fromkeys(("mpich", "hydra", "intelmpi", "intel-mpi"), "pmi"),
    **dict.fromkeys(("torchrun", "torch"), "pytorch"),
    **dict.fromkeys(("fluid", "fleetrun", "paddlepaddle"), "paddle"),
}


class ClusterConfigError(ValueError):
    """Raised when a cluster, a task or TF_CONFIG is invalid.

    The message is a single line that states the rule, the value received and the remedy.
    """


def quoted(value: object, limit: int = 160) -> str:
    """Returns the representation of `value` in one line, cut off after `limit` characters.

    >>> quoted("a\\nb")
    "'a\\\\nb'"
    """
    try:
        text = ascii(value)
    except (RecursionError, ValueError):
        text = f"a {type(value).__name__} too deep or too long to print"
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def suggestion(value: object, known: Iterable[str]) -> str:
    """Returns a question that suggests the known name most similar to `value`; "" if none is.

    Leading dashes are ignored.

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
    matches = difflib.get_close_matches(text, list(names), 1)
    return f" Did you mean {quoted(names[matches[0]])}?" if matches else ""

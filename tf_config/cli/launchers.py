"""Translations of the options of other launchers into those of `tf-config`.

Sources: the options of torchrun, `accelerate launch`, horovodrun, Open MPI's and MPICH's mpirun,
`paddle.distributed.launch`, fleetrun, deepspeed, srun and sbatch.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

_ONE_TASK = (
    "is an option of the launcher that starts tf-config once per task ('mpirun -np 2 tf-config "
    "{name} ...'); 'tf-config run --workers 2 train.py' starts workers itself"
)
_NOT_NEEDED = "is not needed here: omit it"
_STARTED_ONCE = (
    "is not needed here: omit it, and start this once, on one host; it reaches the other hosts "
    "over ssh"
)
_FOUND = "is not needed here: omit it; the tasks find each other, and --port P fixes the ports"
_IN_SCRIPT = "is set in the script"
# Words that users of other launchers type instead of `run`.
STARTERS = frozenset(
    "launch start submit train torchrun horovodrun mpirun mpiexec srun python python3 fleetrun "
    "deepspeed accelerate local".split()
)
_OF_JOBS = {"--workers", "--env"}


class _Translation(NamedTuple):
    """Options of other launchers with the same meaning.

    Attributes:
      names: the options of other launchers, with dashes.
      answers: what to use instead; the first one whose option the command has is printed.
      places: whether they set the tasks or hosts, which a launcher around `tf-config` determines.
    """

    names: str
    answers: tuple[str, ...]
    places: bool = False


_TABLE = (
    _Translation(
        "--nproc-per-node --ntasks-per-node -npernode --npernode -ppn --ppn -perhost "
        "--slots-per-host --slots",
        (
            "is --ntasks-per-node N here",
            "is --workers N here, or --hosts H1:N,H2:N",
        ),
        places=True,
    ),
    _Translation(
        "-np --np -n --n --nproc --num-proc --num-processes --ntasks --num-gpus --num-workers "
        "--worker-num --trainer-num --nworkers --world-size --max-np --max-num-proc --replicas",
        ("is --workers N here",),
        places=True,
    ),
    _Translation("--server-num --num-servers --pserver-num", ("is --ps N here",), places=True),
    _Translation(
        "--servers --pservers --server-endpoints", ("is --ps-hosts here, with --ps N",), places=True
    ),
    _Translation(
        "--nnodes --num-machines --num-nodes -N --nodes",
        ("is --nodes N here", "is --hosts H1:N,H2:N here, the hosts with their numbers of workers"),
        places=True,
    ),
    _Translation(
        "-H -host --host --hosts --ips --trainers --worker-endpoints --cluster-node-ips --include "
        "--nodelist -w",
        ("is --nodes N here", "is --hosts H1:N,H2:N here"),
        places=True,
    ),
    _Translation(
        "-hostfile -machinefile --machinefile --default-hostfile --deepspeed-hostfile --hostfile",
        ("is --hostfile FILE here",),
        places=True,
    ),
    _Translation("-f", ("is --file FILE here", "is --hostfile FILE here")),
    _Translation("--min-np --min-num-proc", ("is --min-workers N here",), places=True),
    _Translation(
        "--node-rank --machine-rank --rank --node-ip --local-addr --role --local-ranks-filter",
        ("is --task TYPE:INDEX here, with --workers and --rendezvous", _STARTED_ONCE),
    ),
    _Translation(
        "--master --master-addr --main-process-ip --master-port --main-process-port "
        "--rdzv-endpoint --rdzv-backend --rdzv-id --rdzv-conf --same-network",
        ("is --rendezvous tcp://first-host:port here", _FOUND),
    ),
    _Translation("--start-port --started-port --gloo-port --http-port", ("is --port P here",)),
    _Translation(
        "--standalone --multi-gpu --use-env --no-python --oversubscribe --allow-run-as-root --gloo "
        "--mpi --tcp --cpu --run-mode --backend --start-method --monitor-interval --job-id --jobid "
        "--tag-output --timestamp-output -l --label --kill-on-bad-exit -launcher --launcher "
        "--training-script --mca -mca --bind-to -bind-to --map-by -map-by --mpi-args "
        "--binding-args --disable-cache --use-paddlecloud --host-discovery-script --run-path "
        "--logs-specs --event-log-handler --signals-to-handle --numa-binding --enable-cpu-affinity "
        "--legacy --sort-ip --with-gloo --elastic-server --ranks",
        (_NOT_NEEDED,),
    ),
    _Translation("--module", ("is -m MODULE here, before the module's arguments",)),
    _Translation("-x -env -genv --export", ("is --env NAME=VALUE here",)),
    _Translation(
        "--gpus --devices --selected-gpus --selected-devices --gpu-ids --xpus --npus "
        "--selected-xpus --gpus-per-task --gpus-per-node",
        ("is --gpus-per-worker N here; CUDA_VISIBLE_DEVICES selects them",),
    ),
    _Translation(
        "--num-cpu-threads-per-process --cpus-per-task --cpus-per-proc -c --cpus-per-rank",
        ("is --cpus-per-worker N here", "is --threads-per-worker N here"),
    ),
    _Translation(
        "--output-filename -output-filename --redirects --tee -r -t --outfile-pattern --log",
        ("is --log-dir DIR here", "is --output FILE here"),
    ),
    _Translation("--max-restart --reset-limit --elastic-level", ("is --max-restarts N here",)),
    _Translation("-p --ssh-port", ("is --ssh 'ssh -p PORT' here",)),
    _Translation("-i --ssh-identity-file", ("is --ssh 'ssh -i FILE' here",)),
    _Translation(
        "--network-interface --network-interfaces --nics --nic -iface",
        ("is --interface NAME here",),
    ),
    _Translation("--elastic-timeout --rdzv-timeout", ("is --start-timeout SECONDS here",)),
    _Translation("-wdir --wdir -wd --wd --chdir -D", ("is done by 'cd' before this command",)),
    _Translation("--dry-run --print-config", ("is --dry-run here",)),
    _Translation("--check-build -cb", ("is 'tf-config doctor' here",)),
    _Translation(
        "--timeline-filename --timeline-mark-cycles",
        ("is --env HOROVOD_TIMELINE=FILE here",),
    ),
    _Translation(
        "--fusion-threshold-mb --cycle-time-ms --cache-capacity --autotune --autotune-log-file "
        "--hierarchical-allreduce --compression",
        (f"{_IN_SCRIPT}: strategies.ReductionOptions",),
    ),
    _Translation("--mixed-precision", (f"{_IN_SCRIPT}: keras.mixed_precision.set_global_policy",)),
    _Translation(
        "--use-deepspeed --use-fsdp --dynamo-backend --gradient-accumulation-steps --deepspeed",
        (_IN_SCRIPT,),
    ),
    _Translation("--config-file --config", ("is not read here: pass its values as options",)),
    _Translation("-q --silent", ("is --quiet here",)),
    _Translation("-v -d --debug --log-level", ("is --verbose here",)),
    # sbatch's and srun's.
    _Translation("-J --job-name", ("is --name NAME here",)),
    _Translation("-A", ("is --account NAME here",)),
    _Translation("--partition", ("is --partition NAME here",)),
    _Translation(
        "--mem --mem-per-cpu", ("is --memory SIZE here", "is up to the scheduler: omit it")
    ),
    _Translation("--qos --constraint -C --exclusive --error -e", ("is --sbatch=OPTION here",)),
)
# The meanings in `sbatch` of letters that other launchers also use.
_SBATCH = {
    "-p": "is --partition NAME here",
    "-t": "is --time H:MM:SS here",
    "-q": "is --sbatch=--qos=NAME here",
}


def translate_option(word: str, known: Collection[str], prog: str) -> str:
    """Returns a sentence with the counterpart of another launcher's option; "" if it is unknown.

    >>> translate_option("--nproc_per_node=4", {"--workers", "--hosts"}, "tf-config run")
    ' --nproc_per_node of other launchers is --workers N here, or --hosts H1:N,H2:N.'
    >>> translate_option("--nonsense", {"--workers"}, "tf-config run")
    ''

    Args:
      word: the option as it was typed.
      known: the options of the command.
      prog: the command.
    """
    name = word.partition("=")[0]
    if re.fullmatch(r"-[A-Za-z]+\d+", name):  # as in -np4
        name = name.rstrip("0123456789")
    plain = name.replace("_", "-")
    if "--sbatch" in known and plain in _SBATCH:
        return f" sbatch's {name} {_SBATCH[plain]}."
    for row in _TABLE:
        if plain in row.names.split():
            answer = _answer(row, known, prog)
            return f" {name} of other launchers {answer}." if answer else ""
    return ""


def _answer(row: _Translation, known: Collection[str], prog: str) -> str:
    if row.places and "--rendezvous" in known:
        return _ONE_TASK.format(name=prog.rpartition(" ")[2])
    for answer in row.answers:
        option = re.match("is (-[-a-z]*)", answer)
        if option is None or option[1] in known:
            return answer
    is_of_jobs = not _OF_JOBS.isdisjoint(known)
    return row.answers[-1].replace(" here", " of 'tf-config run'", 1) if is_of_jobs else ""

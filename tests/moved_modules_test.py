"""Modules of version 0.1.0 can be imported by the names that they had."""

import importlib
import subprocess
import sys

import pytest

import strategies
import strategies.moved_modules
import tf_config.moved_modules

# The modules of version 0.1.0, by package.
MODULES = {
    "strategies": (
        "assertions callbacks central_storage checks collectives core data drawing durable_files "
        "embedding equality factory file_claims files frames gpus loss_scaling mirrored "
        "multi_worker parameter_server partitioning ps reduction serve variables"
    ),
    "strategies.callbacks": (
        "backup base checkpoint first_worker measured nan throughput timeline trace warmup"
    ),
    "strategies.collectives": (
        "base dtypes health horovod hosts ordered_calls replica selection shared_memory "
        "single_worker startup tensorflow workers"
    ),
    "strategies.collectives.health": (
        "agreement calls operations peers progress spans stack watchdog"
    ),
    "strategies.collectives.shared_memory": "channel collectives host memory stream transfers",
    "strategies.collectives.startup": "grpc_server liveness rendezvous waiting",
    "strategies.core": "announcement extended loss_scale random_seeds resolver scope",
    "strategies.data": (
        "distributed_dataset generators iterator_deletion read_files same_rows sharding"
    ),
    "strategies.embedding": (
        "checkpoint config inputs keras_layer layer lookup placement placement_report prefetch "
        "registration shard tables tf_keras_layer validation"
    ),
    "strategies.embedding.checkpoint": (
        "array_specs checkpoint export_import keras_saving npy_stream saved_model snapshot "
        "weight_tokens"
    ),
    "strategies.embedding.lookup": (
        "all_to_all fused_optimizer lookup prefetch_queue replicated router server sharded traffic"
    ),
    "strategies.embedding.shard": (
        "admission capacity eviction hashing id_map initializers lookup remote row_metadata "
        "row_store shard table"
    ),
    "strategies.ps": (
        "barrier client collectives creation extended input last_number lock membership modes "
        "options ordered_caller placement push registry row_log sparse step_program update_mode "
        "updates variables watching"
    ),
    "strategies.ps.modes": "async_ geo half_async sync",
    "strategies.reduction": "cross_device_ops options sparse xla",
    "strategies.variables": (
        "active_rows active_shard elementwise growable_array number on_read partition "
        "sparse_variable state zero"
    ),
    "tf_config": (
        "address agent builder capacity cli cluster commands connect doctor drawing environments "
        "errors guardian horovod horovod_wheel hosts interface interruption join launch listening "
        "machine memory node_list output plan process remote render rendezvous restarts roles "
        "secret session settings sharding sidecar sidecar_process store text_table vitals witness"
    ),
    "tf_config.capacity": "memory plan table traffic",
    "tf_config.cli": (
        "arguments build check completing completion doctor execute install_horovod membership "
        "plan program render render_kubernetes render_slurm rendering run show split"
    ),
    "tf_config.environments": (
        "detect environment kubernetes openmpi paddle pmi pytorch slurm tf_config"
    ),
    "tf_config.render": "kubernetes rules slurm",
    "tf_config.rendezvous": "clock directory meet seat tcp",
    "tf_config.sharding": "crc32c records shards source split",
}
MOVED = {**strategies.moved_modules.MOVED, **tf_config.moved_modules.MOVED}


@pytest.mark.parametrize("package", MODULES)
def test_each_module_can_be_imported(package):
    for name in MODULES[package].split():
        importlib.import_module(f"{package}.{name}")


@pytest.mark.parametrize("old", MOVED)
def test_the_old_name_gives_the_module_of_today(old):
    module = importlib.import_module(old)
    if MOVED[old]:
        assert module is importlib.import_module(MOVED[old])
        assert module.__name__ == module.__spec__.name == MOVED[old]


def test_modules_that_are_packages_today_give_what_they_gave():
    from strategies.files import own_path, writing
    from tf_config.doctor import PROBES, Finding, Line, Probe, examine, exit_code, within
    from tf_config.horovod import RANK_VARIABLE, defaults, place, rendezvous_at

    assert (own_path, writing) == (strategies.own_path, strategies.writing)
    assert all(map(callable, (Finding, Line, Probe, examine, exit_code, within)))
    assert all(map(callable, (defaults, place, rendezvous_at)))
    assert PROBES
    assert RANK_VARIABLE == "HOROVOD_RANK"


@pytest.mark.processes
@pytest.mark.parametrize(
    "statement",
    [
        "from tf_config.output import Console",
        "from tf_config import output; output.Console",
        "import tf_config.output; tf_config.output.Console",
        "import tf_config.rendezvous.meet; tf_config.rendezvous.meet.rendezvous",
    ],
)
def test_each_import_statement_finds_it(statement):
    subprocess.run([sys.executable, "-c", statement], check=True)


def test_what_never_was_is_not_there():
    with pytest.raises(ModuleNotFoundError, match="tf_config.no_such_module"):
        importlib.import_module("tf_config.no_such_module")

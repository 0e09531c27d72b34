"""The modules of version 0.1.0 that have moved can be imported by their old names for one release.

Names inside the modules are those of today. Delete this module, and its users, after that release.
"""

import sys

from tf_config.moved_modules import MovedModules

MOVED = {
    "strategies.assertions": "strategies.utils.assertions",
    "strategies.callbacks.measured": "strategies.profiling.step_timing",
    "strategies.callbacks.trace": "strategies.profiling.trace",
    "strategies.checks": "strategies.utils.argument_checks",
    "strategies.collectives.health": "",
    "strategies.collectives.health.agreement": "strategies.diagnostics.consistency",
    "strategies.collectives.health.calls": "strategies.diagnostics.calls",
    "strategies.collectives.health.operations": "strategies.diagnostics.operations",
    "strategies.collectives.health.peers": "strategies.diagnostics.peers",
    "strategies.collectives.health.progress": "strategies.diagnostics.progress",
    "strategies.collectives.health.spans": "strategies.profiling.spans",
    "strategies.collectives.health.stack": "strategies.diagnostics.stack",
    "strategies.collectives.health.watchdog": "strategies.diagnostics.watchdog",
    "strategies.collectives.hosts": "strategies.collectives.hierarchical",
    "strategies.core.announcement": "strategies.core.startup_message",
    "strategies.core.loss_scale": "strategies.core.loss_reduction_check",
    "strategies.core.random_seeds": "strategies.core.seeds",
    "strategies.data.generators": "strategies.data.bounded_prefetch",
    "strategies.data.same_rows": "strategies.data.input_consistency",
    "strategies.durable_files": "strategies.files.atomic_files",
    "strategies.embedding.checkpoint.checkpoint": "strategies.embedding.checkpoint.row_checkpoint",
    "strategies.embedding.lookup.lookup": "strategies.embedding.lookup.group_lookup",
    "strategies.embedding.shard.lookup": "strategies.embedding.shard.shard_lookup",
    "strategies.embedding.shard.remote": "strategies.embedding.shard.server_shard",
    "strategies.embedding.shard.shard": "strategies.embedding.shard.table_shard",
    "strategies.file_claims": "strategies.files.file_locks",
    "strategies.frames": "strategies.compat.call_stack",
    "strategies.gpus": "strategies.utils.gpus",
    "strategies.partitioning": "strategies.utils.partitioning",
    "strategies.ps.client": "strategies.ps.connection",
    "strategies.ps.creation": "strategies.ps.variable_kinds",
    "strategies.ps.last_number": "strategies.ps.sequence_number",
    "strategies.ps.sparse": "strategies.ps.embedding_rows",
    "strategies.ps.step_program": "strategies.ps.server_program",
    "strategies.ps.update_mode": "strategies.ps.modes.base",
    "strategies.ps.watching": "strategies.ps.watchdog_store",
    "strategies.variables.active_rows": "strategies.variables.row_view",
    "strategies.variables.active_shard": "strategies.variables.active_view",
    "strategies.variables.number": "strategies.variables.scalars",
    "strategies.variables.on_read": "strategies.variables.on_read_variable",
    "strategies.variables.partition": "strategies.variables.partitioned",
    "strategies.variables.sparse_variable": "strategies.variables.row_variable",
    "strategies.variables.state": "strategies.variables.unsynchronized_state",
    "strategies.variables.zero": "strategies.variables.sharded_optimizer_state",
}


def keep_old_names() -> None:
    """Lets the modules of `strategies` be imported by their old names too."""
    sys.meta_path.append(MovedModules(MOVED))

"""Export of a model for serving, and of what training changes in it afterwards.

[Note: live updates]
`export` writes a SavedModel that can be updated where it is served, and begins a chain of deltas.
Each `export_delta` writes the next delta of the chain: the rows that were trained on since the one
before, the ids that were removed, and all other weights as a whole. A SavedModel to which the
deltas of its chain are applied in order serves what the trained model predicts.

* Only the SavedModel knows which deltas have been applied to it: their chain and the last number
  are in the SavedModel itself, and its signature "update" refuses any other delta than the next
  one. If a serving process is killed, its memory is gone, and it starts again from the SavedModel
  and the first delta. So nothing is ever half applied.
* An update is one call. Each table and each variable changes at once in it, so a row is either the
  old or the new one. A prediction that runs at the same moment may use some new rows and variables
  and some old ones; one that starts after the call uses the new ones.
* The mark from which the next delta is counted is set when the delta has been published. If writing
  fails, the next delta has what this one would have had.
* The marks are in the memory of the training processes. A job that was restarted goes on with the
  chain of the directory, by a delta that has all rows and removes all other ids: it has restored a
  checkpoint, whose rows may be older than those of the last delta.
* All rows are written in the same way where rows were set or restored since the last delta.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.collectives.workers import collectives_of, drain, refresh
from strategies.compat.keras import layers_of, tensorflow_variable, variables_of
from strategies.compat.keras_export import export_with, is_model
from strategies.diagnostics.consistency import check_same_call, raise_on_all
from strategies.embedding.checkpoint.part_files import part_files
from strategies.embedding.checkpoint.row_changes import Mark
from strategies.embedding.checkpoint.row_checkpoint import make_folders
from strategies.embedding.layer import EmbeddingLayer
from strategies.embedding.tables import Tables
from strategies.files.atomic_files import all_writing
from strategies.files.collective_writing import writing
from strategies.live import delta_folder
from strategies.live.contents import Contents, ServedRows, ServedVariable
from strategies.live.delta_folder import Delta
from strategies.live.update_signature import UpdateSignature
from strategies.variables.row_variable import RowVariable


@dataclass
class _Chain:
    """Chain of the deltas of a model.

    Attributes:
      id: number of the export.
      last: number of the last delta.
      marks: marks of the last delta in the tables of each layer; None if it is of another process.
    """

    id: int
    last: int
    marks: list[Mark] | None


_chains: weakref.WeakKeyDictionary[Any, _Chain] = weakref.WeakKeyDictionary()


def export(model: Any, path: str | PathLike[str], *, input_signature: Any = None) -> None:
    """Exports a model as a SavedModel whose predictions can follow further training.

    It does what `model.export` does, and adds two signatures that `export_delta` and
    `strategies.follow` use: "update" and "version". Like `model.export`, it needs neither this
    package nor Keras where the SavedModel is served. All workers must call it; the first worker's
    files are kept, and a SavedModel that is there already is replaced.

        strategies.export(model, "served")
        for _ in range(hours):
            model.fit(dataset)
            strategies.export_delta(model, "deltas")

    Args:
      model: a model of Keras 3 or tf_keras that is built.
      path: the path of the SavedModel.
      input_signature: specification of the model's inputs, as in `model.export` of Keras 3; None
        uses those that Keras determines.

    Raises:
      TypeError: if `model` is not a model.
      ValueError: if the model is not built.
    """
    served = _ServedModel(model)
    strategy = model.distribute_strategy
    collectives = collectives_of(strategy)
    own = tf.constant(secrets.randbits(62), tf.int64)
    with writing(path, strategy) as own_path:
        chain = int(collectives.broadcast(own))
        signature = UpdateSignature(chain, served.contents, served.served_tables, served.variables)
        export_with(
            model,
            own_path,
            [
                ("update", signature.update, signature.inputs),
                ("version", signature.version(), None),
            ],
            [signature.number],
            input_signature,
        )
        marks = served.marks()
    _chains[model] = _Chain(chain, 0, marks)


def export_delta(model: Any, directory: str | PathLike[str]) -> str:
    """Exports what training has changed since `export` or the last call of this function.

    A delta has the rows that were trained on, the ids of the rows that were removed, and the values
    of all other weights. All workers must call it with the same directory, and each writes its
    part. The delta is complete or absent: if the job is killed meanwhile, those before it are
    intact.

    All rows are written if rows were set or restored since the last delta, or if the job was
    restarted: it then continues with the deltas in the directory.

    Args:
      model: the model that was passed to `export`.
      directory: a directory for the deltas of one export, which all workers can access.

    Returns:
      The path of the delta, such as `deltas/000001`.

    Raises:
      TypeError: if `model` is not a model.
      ValueError: if the model was not exported, or the directory has deltas of another export.
      OSError: if a file cannot be written. The next delta then has what this one would have had.
      RuntimeError: if there was an error on another worker.
    """
    served = _ServedModel(model)
    strategy = model.distribute_strategy
    drain(strategy)
    collectives = collectives_of(strategy)
    check_same_call(collectives, "export_delta")
    refresh(strategy)
    path = Path(fspath(directory))
    chain, delta = _next_delta(model, path, served.contents, collectives)
    # All workers read them, because this may sum the values of all.
    values = served.values()
    changes = served.changes(chain.marks)
    folder = delta_folder.unpublished(path, delta.number)
    make_folders([folder], str(path), collectives)
    with all_writing(collectives, "A delta", str(path), folder):
        with part_files(folder, collectives.rank) as written:
            for position, (tables, part, _) in enumerate(served.parts):
                with written.of_table(position) as files:
                    tables.serving.write_changes(part, changes[id(tables)], files)
        if collectives.rank == 0:
            delta_folder.write_variables(folder, values)
    with all_writing(collectives, "A delta", str(path)):
        if collectives.rank == 0:
            delta_folder.publish(folder, delta, collectives.size)
    _chains[model] = _Chain(delta.chain, delta.number, served.marks())
    return str(path / delta_folder.folder_name(delta.number))


class _ServedModel:
    """What of a model its SavedModel has, in the order of `Contents`.

    Args:
      model: a model of Keras 3 or tf_keras that is built.
    """

    def __init__(self, model: Any):
        if not is_model(model):
            raise TypeError(
                f"model must be a model of Keras 3 or tf_keras. Received: {type(model).__name__}. "
                "Pass the model that contains the layer."
            )
        layers = {id(each): each for each in layers_of(model) if isinstance(each, EmbeddingLayer)}
        self._tables: list[Tables] = []
        # The tables of a layer, the name of a part of them in the SavedModel, and its description.
        self.parts: list[tuple[Tables, str, ServedRows]] = []
        for layer in layers.values():
            if layer.tables is None:
                raise ValueError(
                    "The model must be built before it is exported. Received: the layer "
                    f"{layer.name!r}, which is not. Call the model on a batch, or fit it."
                )
            self._tables.append(layer.tables)
            widths = layer.tables.serving.widths.items()
            for part, (name, width) in zip(layer.tables.serving.parts, widths, strict=True):
                rows = ServedRows(f"{layer.name}/{name}", width)
                self.parts.append((layer.tables, part, rows))
        weights = {
            id(tensorflow_variable(each)): each
            for each in variables_of(model, "weights")
            if not isinstance(tensorflow_variable(each), RowVariable)
        }
        self.variables = [tensorflow_variable(each) for each in weights.values()]
        self.contents = Contents(
            tuple(rows for _, _, rows in self.parts),
            tuple(
                ServedVariable(
                    getattr(weight, "path", weight.name),
                    tuple(variable.shape),
                    tf.as_dtype(variable.dtype).name,
                )
                for weight, variable in zip(weights.values(), self.variables, strict=True)
            ),
        )

    @property
    def served_tables(self) -> list[Any]:
        """The tables of the SavedModel."""
        return [tables.serving.parts[part] for tables, part, _ in self.parts]

    def values(self) -> list[np.ndarray]:
        """Returns the values of the variables."""
        return [tf.convert_to_tensor(variable).numpy() for variable in self.variables]

    def marks(self) -> list[Mark]:
        """Returns marks of this moment in the tables of each layer."""
        return [tables.mark() for tables in self._tables]

    def changes(self, marks: list[Mark] | None) -> dict[int, Any]:
        """Returns what has changed since marks, by the identity of a layer's tables."""
        none: list[Mark | None] = [None] * len(self._tables)
        of_tables: Sequence[Mark | None] = none if marks is None else marks
        return {
            id(tables): tables.changes(mark)
            for tables, mark in zip(self._tables, of_tables, strict=True)
        }


def _next_delta(
    model: Any, path: Path, contents: Contents, collectives: Collectives
) -> tuple[_Chain, Delta]:
    """Returns the chain that a delta continues, and the delta; the same on all workers."""
    chain = _chains.get(model)
    error = None
    ids = [0, 0]
    try:
        if collectives.rank == 0:
            ids = _continue(chain, path, contents)
    except (OSError, ValueError) as raised:
        error = raised
    raise_on_all(collectives, "Exporting a delta", error)
    number, last = collectives.broadcast(tf.constant(ids, tf.int64)).numpy().tolist()
    if chain is None or chain.id != number:
        chain = _Chain(number, last, None)
    return chain, Delta(number, last + 1, contents.to_text())


def _continue(chain: _Chain | None, path: Path, contents: Contents) -> list[int]:
    """Returns the numbers of the chain to continue and of its last delta.

    Raises:
      ValueError: if the model was not exported, or the directory belongs to another export.
    """
    newest = delta_folder.newest(path)
    if newest is None and chain is None:
        raise ValueError(
            "A model must be exported before its deltas. Received: a model that was not exported, "
            f"and {str(path)!r} without deltas. Call strategies.export(model, path) first."
        )
    if newest is None:
        return [chain.id, chain.last]  # type: ignore[union-attr]
    if chain is not None and newest.chain != chain.id:
        raise ValueError(
            "A directory can only have the deltas of one export. Received: "
            f"{str(path)!r} with deltas of another one. Use a new directory after "
            "strategies.export."
        )
    if newest.contents != contents.to_text():
        raise ValueError(
            "The deltas of a directory must have the same tables and variables. Received: "
            f"{contents.to_text()}, where {str(path)!r} has {newest.contents}. Export the model "
            "again with strategies.export, and use a new directory."
        )
    return [newest.chain, max(newest.number, 0 if chain is None else chain.last)]

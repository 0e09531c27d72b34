"""What a step builds, logs and normalizes on several workers.

steps.py keras|tf_keras [mode of servers]
"""

import importlib
import os
import sys

os.environ["TF_USE_LEGACY_KERAS"] = str(int(sys.argv[1] == "tf_keras"))

import strategies
from tests.support import steps
from tests.support.checks import run_checks

keras = importlib.import_module(sys.argv[1])
mode = {"mode": sys.argv[2]} if len(sys.argv) > 2 else {}
strategy = strategies.from_tf_config(**mode)
in_step = sys.argv[2:] in ([], ["sync"])


def check_models_built_by_fit_start_as_in_one_process():
    steps.check_models_built_by_fit(keras, strategy)


def check_merged_values_are_logged_once():
    eagerly = (False, True) if keras.__name__ == "tf_keras" else (False,)
    for eager in eagerly if in_step else ():
        steps.check_logs_of_merged_values(keras, strategy, eager)


def check_a_subclassed_model_takes_ragged_inputs():
    if in_step:
        steps.check_ragged_inputs_of_a_subclassed_model(keras, strategy)


def check_synchronized_normalization():
    if in_step:
        steps.check_synchronized_normalization(keras, strategy)


if __name__ == "__main__":
    run_checks(globals())

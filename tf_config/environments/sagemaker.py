"""Amazon SageMaker training jobs: each host runs one container, which starts one task.

Variables: github.com/aws/sagemaker-training-toolkit, "ENVIRONMENT_VARIABLES.md".
"""

from __future__ import annotations

import json

from tf_config.address import Address
from tf_config.cluster import ClusterSpec, Task, TFConfig
from tf_config.environments.environment import Variables
from tf_config.errors import ClusterConfigError, quoted

HOSTS_VARIABLE = "SM_HOSTS"
_OWN_HOST_VARIABLE = "SM_CURRENT_HOST"
_PORT = 2222


def read(variables: Variables) -> TFConfig:
    """Returns a cluster with one worker on each host, in the order of the list of hosts."""
    text = variables.text(HOSTS_VARIABLE)
    try:
        hosts = json.loads(text)
    except ValueError:
        hosts = None
    is_list = isinstance(hosts, list) and all(isinstance(host, str) for host in hosts)
    if not is_list or not hosts or len({*hosts}) < len(hosts):
        raise ClusterConfigError(
            f"{HOSTS_VARIABLE} must be a JSON list of different host names. Received: "
            f'{quoted(text)}. For example: \'["algo-1", "algo-2"]\'.'
        )
    own = variables.text(_OWN_HOST_VARIABLE)
    if own not in hosts:
        raise ClusterConfigError(
            f"{_OWN_HOST_VARIABLE} must be one of {HOSTS_VARIABLE}. Received: {quoted(own)}, of "
            f"{quoted(', '.join(hosts))}. Do not change these variables, which SageMaker sets."
        )
    addresses = {
        Task("worker", index): Address.parse(str(Address(host, _PORT)))
        for index, host in enumerate(hosts)
    }
    return TFConfig(ClusterSpec(addresses), Task("worker", hosts.index(own)))

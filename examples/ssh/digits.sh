#!/bin/bash
# Trains the digits on several machines over ssh, from a clone with its environment active. HOSTS has
# the machines, each with its number of workers. Arguments go to tf-config:
#
#     $ HOSTS=node1:1,node2:1 bash examples/ssh/digits.sh
#     $ HOSTS=node1:1,node2:1 bash examples/ssh/digits.sh --dry-run
#     worker 0 on node1: ...
#     worker 1 on node2: ...
#
# "ssh node1 true" must not ask for a password, and each machine must have the clone and the
# environment at the same path.
set -euo pipefail
: "${HOSTS:?must be the machines, such as HOSTS=node1:1,node2:1}"
exec tf-config run --hosts "$HOSTS" --log-dir logs "$@" examples/digits.py

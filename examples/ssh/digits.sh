#!/bin/bash
# Trains the digits on several machines over ssh, from a clone with its environment active. HOSTS has
# the machines, each with its number of workers. Arguments go to tf-config:
#
#     $ HOSTS=node1:1,node2:1 bash examples/ssh/digits.sh
#     [worker 0] test accuracy: 0.9889
#     $ HOSTS=node1:2,node2:2 bash examples/ssh/digits.sh --ps 1 --dry-run
#
# "ssh node1 true" must not ask for a password, and each machine must have the clone and the
# environment at the same path.
set -euo pipefail
: "${HOSTS:?must be the machines, such as HOSTS=node1:1,node2:1}"
exec tf-config run --hosts "$HOSTS" --log-dir logs "$@" examples/digits.py

#!/bin/bash
# Trains the digits on two processes of one MPI job (Open MPI, MPICH or Intel MPI), from a clone with
# its environment active. Arguments go to mpirun:
#
#     $ bash examples/mpi/digits.sh
#     test accuracy: 0.9917
#     $ bash examples/mpi/digits.sh --hostfile hosts
#
# MPI only starts the processes; tf-config tells each its place. They meet in the working directory,
# which all hosts must share. Otherwise, put --rendezvous tcp://node1:2222 after "exec", with the
# first host's name.
set -euo pipefail
exec mpirun -np 2 "$@" tf-config exec -- examples/digits.py

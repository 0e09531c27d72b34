#!/bin/bash
# Learns word vectors on three processes of one MPI job, of which the last is a parameter server:
#
#     $ bash examples/mpi/word2vec_ps.sh
#     loss: 0.4571 in the first epoch, 0.3348 in the last
#     ...
#     near class: ...
#
# Arguments go to mpirun; see digits.sh.
set -euo pipefail
exec mpirun -np 3 "$@" tf-config exec --ps 1 -- examples/word2vec.py --mode sync

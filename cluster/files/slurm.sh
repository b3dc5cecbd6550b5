#!/usr/bin/env bash
# A Ray cluster in a Slurm allocation, with one experiment on it. Edit the allocation, then, from the folder of the files:
#   sbatch slurm.sh run exp.yaml --set output=/shared/runs
# Everything after the script's name is a `hedgerow` command. ENVIRONMENT names the virtual environment that Hedgerow is
# installed in, with the extra `cluster`, on a disk that all nodes mount (default: .venv).
#SBATCH --job-name=hedgerow
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=2
#SBATCH --exclusive
#SBATCH --time=12:00:00
# Ctrl-C a minute before the time is up: `sbatch slurm.sh resume RUN` goes on from the last checkpoint.
#SBATCH --signal=INT@60
set -euo pipefail

source "${ENVIRONMENT:-.venv}/bin/activate"
if (($# == 0)); then
    echo "usage: sbatch slurm.sh run exp.yaml --set output=/shared/runs" >&2
    exit 2
fi

# Others on the network may reach the nodes: all of Ray's processes show each other a token, from the common home folder.
export RAY_AUTH_MODE=token
ray get-auth-token --generate >/dev/null
# No history of calls, which takes kilobytes each.
export RAY_task_events_report_interval_ms=0

head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
head_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address | awk '{print $1}')
port=$((20000 + SLURM_JOB_ID % 10000))

# Starts Ray on every node, and the command on the first when all are there; ends Ray when the command has ended.
srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" \
    ray symmetric-run --address "$head_ip:$port" --min-nodes "$SLURM_NNODES" \
    --num-cpus "$SLURM_CPUS_PER_TASK" --dashboard-host=127.0.0.1 -- \
    hedgerow "$@" --address "$head_ip:$port"

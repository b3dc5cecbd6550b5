#!/usr/bin/env bash
# A Ray cluster in a Slurm allocation, with one `hedgerow` command on it. Edit the #SBATCH lines, then submit:
#   sbatch slurm.sh run exp.yaml --set output=/shared/runs
# Everything after the script's name is the command: run, search, table or resume. HEDGEROW_ENV names the virtual
# environment of Hedgerow, on a disk that all nodes mount (default: .venv).
#SBATCH --job-name=hedgerow
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
# GPUs that the job reserves are used, unless the experiment file has `resources: {device: cpu}`.
##SBATCH --gpus-per-node=2
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# Two minutes before the time limit, the script saves the run and requeues the job, which then continues the run. The
# longest round and its checkpoint must fit into this time.
#SBATCH --signal=B:USR1@120
set -euo pipefail

if (($# == 0)); then
    echo "usage: sbatch slurm.sh run exp.yaml --set output=/shared/runs" >&2
    exit 2
fi

# Slurm sends USR1 before the time limit, and TERM when it cancels or preempts the job. Hedgerow gets TERM from here
# alone, and once: a second TERM would end it before the round is saved.
command='' stopping='' sent=''
stop() {
    stopping=yes
    if [[ -n $command && -z $sent ]]; then
        sent=yes
        kill -TERM "$command" 2>/dev/null || true
    fi
}
trap stop USR1 TERM

# Hedgerow creates the first file when it saves a round. The second file marks that the start before saved none.
export HEDGEROW_SAVED=$(pwd)/.slurm-$SLURM_JOB_ID.saved
idle=${HEDGEROW_SAVED%.saved}.idle
rm -f "$HEDGEROW_SAVED"

source "${HEDGEROW_ENV:-.venv}/bin/activate"
# Other users of the network can reach the nodes: all processes of Ray show a token, from the common home folder.
export RAY_AUTH_MODE=token
ray get-auth-token --generate >/dev/null
# No history of calls, which takes kilobytes per call.
export RAY_task_events_report_interval_ms=0
# When the command has ended, Ray stops at once.
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0

# This script runs on the first node. Its address is the first one that is not the loopback interface's.
head_ip=$({ hostname --ip-address || true; hostname --all-ip-addresses || true; } 2>/dev/null | tr ' ' '\n' |
    awk '!found && /^[0-9.]+$/ && !/^127\./ {found = $0} END {print found ? found : "127.0.0.1"}')
port=$((20000 + SLURM_JOB_ID % 10000))
address="$head_ip:$port"

# On every node, Ray runs in a session of its own until this script sends USR2. TERM does not end it, because the
# command has to save first. At the beginning of the grace time of a preemption, Slurm sends TERM to the nodes alone:
# the first one forwards it to this script.
node='
script=$1 address=$2 ending= folder=/tmp/ray-$SLURM_JOB_ID
trap "ending=yes; kill -TERM \$ray 2>/dev/null" USR2
if ((SLURM_PROCID == 0)); then
    trap "kill -TERM \$script 2>/dev/null" TERM
    set -- --head "--node-ip-address=${address%:*}" "--port=${address#*:}" --include-dashboard=false
    set -- "$@" "--temp-dir=$folder"
else
    trap : TERM
    set -- "--address=$address"
fi
mkdir -m 700 $folder 2>/dev/null || [[ -O $folder && ! -L $folder ]] || exit 1
setsid ray start "$@" "--num-cpus=$SLURM_CPUS_PER_TASK" --min-worker-port=0 --max-worker-port=0 --block >/dev/null &
ray=$!
[[ -z $ending ]] || kill -TERM $ray
while true; do
    wait $ray && code=0 || code=$?
    kill -0 $ray 2>/dev/null || break
done
kill -KILL -- -$ray 2>/dev/null
rm -rf $folder
[[ -n $ending ]] || exit $code
'
setsid srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    bash -c "$node" node $$ "$address" &
ray=$!

# Runs the command once Ray runs on all nodes.
on_ray='
import os, signal, socket, sys, time, ray
address, nodes, step, *command = sys.argv[1:]
host, port = address.split(":")
deadline = time.monotonic() + 300
while True:
    try:
        os.kill(int(step), 0)
        socket.create_connection((host, int(port)), 5).close()
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR")
        # Ray has a handler of its own, which takes seconds.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if sum(node["Alive"] for node in ray.nodes()) >= int(nodes):
            break
    except ProcessLookupError:
        sys.exit("slurm.sh: Ray failed to start")
    except OSError:
        pass
    if time.monotonic() > deadline:
        sys.exit("slurm.sh: Ray did not start on all nodes within 5 minutes")
    time.sleep(0.5)
ray.shutdown()
os.execvp(command[0], command)
'

# A job that starts again continues its own runs: their folders have its number in place of the time.
case $1 in run | search | table) set -- "$@" --job "$SLURM_JOB_ID" ;; esac

setsid python -c "$on_ray" "$address" "$SLURM_NNODES" "$ray" hedgerow "$@" --address "$address" &
command=$!
[[ -z $stopping ]] || stop

# A signal interrupts `wait`.
while true; do
    wait "$command" && code=0 || code=$?
    kill -0 "$command" 2>/dev/null || break
done
if ((code > 128)); then
    # The signal may have come when the command had just ended.
    wait "$command" && code=0 || { ended=$?; ((ended == 127)) || code=$ended; }
fi
# After TERM while it connects, Ray exits with the number of the signal, or crashes (SIGABRT, SIGSEGV).
[[ -z $stopping || ! $code =~ ^(15|134|139)$ ]] || code=143

kill -USR2 "$ray" 2>/dev/null || true
for _ in {1..30}; do
    kill -0 "$ray" 2>/dev/null || break
    sleep 1
done

# 143: the command was stopped. A job that still runs then was neither cancelled nor requeued by Slurm itself.
state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T 2>/dev/null) || true
if [[ -n $stopping && $code == 143 && $state == RUNNING ]]; then
    if [[ -e $HEDGEROW_SAVED ]]; then
        rm -f "$idle"
    elif [[ -e $idle ]]; then
        echo "slurm.sh: the job is not requeued, since two starts in a row saved no new round; raise --time" >&2
        rm -f "$idle"
        exit 1
    else
        touch "$idle"
    fi
    echo "slurm.sh: $(date '+%F %T'): the job is requeued"
    scontrol requeue "$SLURM_JOB_ID"
    # Slurm ends the script here.
    sleep 60
fi
rm -f "$HEDGEROW_SAVED" "$idle"
exit "$code"

#!/usr/bin/env bash
#SBATCH --job-name=tunelight
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
#SBATCH --time=08:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=tunelight-%j.log
#
# A Ray cluster on the nodes of one Slurm job, and a sweep on it:
#
#   sbatch cluster/slurm.sh python sweep.py
#
# Folder and environment (sbatch's --export) are those of the submitter, on a disk that all nodes share. The command has
# to go on with its sweep when it is run again: tl.run(..., name="digits", resume=True). Five minutes before the time is
# over its trials write a checkpoint (SIGTERM), and the job is queued again; so it is when a node or Ray's head is lost,
# at most MAX_RESTARTS (100) times. scancel ends it for good.
set -euo pipefail
(($#)) || { echo "usage: sbatch $0 COMMAND..." >&2; exit 64; }

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=${nodes[0]}
port=${RAY_PORT:-$((20000 + SLURM_JOB_ID % 20000))} # several jobs may share a node
cpus=${SLURM_CPUS_PER_TASK:-1}
limit=${START_LIMIT_S:-120}

# The address by which the others know the first node, not that of its loopback.
address=$(srun --nodes=1 --ntasks=1 --nodelist="$first" hostname -I | awk '{print $1}')
export RAY_ADDRESS=$address:$port
export SRUN_CPUS_PER_TASK=$cpus # since Slurm 22.05 srun does not take sbatch's number

# Nobody else on these machines may use the cluster (from Ray 2.52 on).
umask 077
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN
export TUNELIGHT_GRACE_S=${TUNELIGHT_GRACE_S:-240} # how long trials may take for that; see --signal
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0 # nodes end after the sweep: nobody is left to be told

started=()
stop() {
  trap - EXIT
  if ((${#started[@]})); then
    kill -TERM "${started[@]}" 2>/dev/null || true
    wait "${started[@]}" 2>/dev/null || true
  fi
}
trap stop EXIT

common=(--num-cpus="$cpus" --disable-usage-stats --block)
if [[ -n ${SLURM_GPUS_ON_NODE:-} ]]; then common+=(--num-gpus="$SLURM_GPUS_ON_NODE"); fi

srun --nodes=1 --ntasks=1 --overlap --nodelist="$first" \
  ray start --head --node-ip-address="$address" --port="$port" --include-dashboard=false "${common[@]}" &
started+=($!)

answers() { (exec 3<>"/dev/tcp/$address/$port") 2>/dev/null; }
for ((waited = 0; waited < limit; waited++)); do
  answers && break
  sleep 1
done
((waited < limit)) || { echo "Ray's head did not answer at $RAY_ADDRESS within $limit s" >&2; exit 1; }

if ((${#nodes[@]} > 1)); then
  rest=$((${#nodes[@]} - 1))
  srun --nodes="$rest" --ntasks="$rest" --ntasks-per-node=1 --overlap --exclude="$first" \
    ray start --address="$RAY_ADDRESS" "${common[@]}" &
  started+=($!)
fi

# In the background, so that the signal at the end of the time is passed on; as a job of its own, for a script's other
# background processes are deaf to it.
set -m
"$@" &
sweep=$!
set +m
again=0
over=0
trap 'caught=1; kill -INT "$sweep" 2>/dev/null || true' INT
trap 'caught=1 over=1; kill -TERM "$sweep" 2>/dev/null || true' TERM # scancel, or a preemption, after which Slurm queues the job
trap 'caught=1 again=1; kill -TERM "$sweep" 2>/dev/null || true' USR1 # trials write their checkpoints
caught=1
while ((caught)); do # a signal ends the wait, and the sweep takes its leave
  caught=0 status=0
  wait "$sweep" || status=$?
done
if ((status)) && ! answers; then again=1; fi # Ray's head is lost
if ((!over && (again || status == 75) && ${SLURM_RESTART_COUNT:-0} < ${MAX_RESTARTS:-100})); then # 75: a temporary failure
  stop
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"

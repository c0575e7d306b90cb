#!/usr/bin/env bash
# Ray nodes with addresses of their own on one machine: network namespaces, joined by a bridge in one more.
#
#   tests/cluster/namespaces.sh NODES COMMAND...
#
# starts a Ray head in the first namespace (10.77.0.1) and a node in each other one, two CPUs each, runs COMMAND in the
# first, with RAY_ADDRESS set, and returns what it returns. Everything is removed again, whatever happened: processes,
# namespaces and with them the links, and Ray's files. Needs root, iproute2, and a kernel that allows it.
#
# PYTHON names the interpreter (python3), CPUS a node's CPUs (2). BLOCKED=all: nodes reach one another at Ray's own
# ports, and drop what is sent to any that the system chooses, as behind a firewall; BLOCKED=later: but the first is
# reached, and reaches the others. PRIVATE=FOLDER gives each node an empty folder of its own there. UNLIKE="NAME=VALUE
# ..." sets variables for the last node alone. Returns 75 where a node does not come up.
set -euo pipefail

((EUID == 0)) || { echo "namespaces.sh needs root" >&2; exit 77; }
command -v ip >/dev/null || { echo "namespaces.sh needs ip (iproute2)" >&2; exit 77; }
nodes=${1:?how many nodes}
shift
start_limit_s=90 tries=3

python=$(command -v "${PYTHON:-python3}")
ray=$(dirname "$python")/ray
prefix=tl$$
work=$(mktemp -d /tmp/$prefix.XXXX) # short: Ray's sockets lie in it, and their paths are limited
export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token} RAY_USAGE_STATS_ENABLED=0
export RAY_AUTH_TOKEN=${RAY_AUTH_TOKEN:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')}
export RAY_ADDRESS=10.77.0.1:6379 RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0

namespaces() { ip netns list | awk -v p="^$prefix-" '$1 ~ p {print $1}'; }

processes() { for name in "$@"; do ip netns pids "$name"; done; }

# end NAMESPACE...: end all that runs there.
end() {
  local signal pids
  for signal in TERM KILL; do
    pids=$(processes "$@")
    [[ -z $pids ]] && break
    # shellcheck disable=SC2086 # one word a process
    kill -$signal $pids 2>/dev/null || true
    for _ in $(seq 50); do
      [[ -z $(processes "$@") ]] && break
      sleep 0.1
    done
  done
}

remove() {
  trap '' INT TERM
  trap - EXIT
  local name
  # shellcheck disable=SC2046 # one word a namespace
  end $(namespaces)
  for name in $(namespaces); do ip netns del "$name"; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap remove EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

echo "127.0.0.1 localhost" >"$work/hosts"
for number in $(seq "$nodes"); do echo "10.77.0.$number node$number" >>"$work/hosts"; done

ip netns add "$prefix-switch" || { echo "namespaces.sh: this system allows no network namespaces" >&2; exit 77; }
ip -n "$prefix-switch" link add switch type bridge
ip -n "$prefix-switch" link set switch up
for number in $(seq "$nodes"); do
  name=$prefix-$number
  ip netns add "$name"
  ip -n "$name" link set lo up
  ip -n "$name" link add tlnet0 type veth peer name "port$number" netns "$prefix-switch"
  ip -n "$name" address add "10.77.0.$number/24" dev tlnet0
  ip -n "$name" link set tlnet0 up
  ip -n "$prefix-switch" link set "port$number" master switch up
  if [[ -n ${BLOCKED:-} ]]; then
    [[ $BLOCKED == later ]] && ip -n "$name" rule add pref 1 from 10.77.0.1 lookup local
    # The ports of both sides, else an answer of Ray's would be dropped too.
    [[ $BLOCKED == later && $number == 1 ]] ||
      ip -n "$name" rule add pref 2 iif tlnet0 ipproto tcp sport 32768-60999 dport 32768-60999 blackhole
    ip -n "$name" rule add pref 3 lookup local
    ip -n "$name" rule del pref 0
  fi
done

# on NUMBER COMMAND...: run it on that node, which has a host name of its own.
on() {
  local number=$1
  shift
  # shellcheck disable=SC2016 # expanded by the inner shell
  ip netns exec "$prefix-$number" unshare --uts --mount bash -c '
    hostname "$0"
    mount --bind "$1" /etc/hosts
    if [[ -n ${PRIVATE:-} ]]; then mkdir -p "$2" "$PRIVATE" && mount --bind "$2" "$PRIVATE"; fi
    shift 2
    exec "$@"' "node$number" "$work/hosts" "$work/private$number" "$@"
}

# run_node NUMBER: run Ray there, until it is ended.
run_node() {
  local number=$1 unlike=()
  local options=(--node-ip-address="10.77.0.$number" --num-cpus="${CPUS:-2}" --block --disable-usage-stats)
  options+=(--object-store-memory=150000000 --node-manager-port=6380 --object-manager-port=6381)
  if ((number == 1)); then
    options+=(--head --port=6379 --include-dashboard=false --temp-dir="$work/ray")
    options+=(--system-config='{"prestart_worker_first_driver": false}')
  else
    options+=(--address="$RAY_ADDRESS")
  fi
  ((number == nodes)) && read -ra unlike <<<"${UNLIKE:-}"
  on "$number" env ${unlike[@]+"${unlike[@]}"} "$ray" start "${options[@]}"
}

# start_node NUMBER: start Ray there, and wait until it says that it runs. Ray gives a node up that has not joined within
# 30 s, which a busy machine can take: then it is tried again.
start_node() {
  local number=$1 try node log=$work/node$1.log
  for try in $(seq "$tries"); do
    run_node "$number" >"$log" 2>&1 &
    node=$!
    for _ in $(seq $((start_limit_s * 10))); do
      grep -q "Ray runtime started" "$log" && return
      kill -0 $node 2>/dev/null || break
      sleep 0.1
    done
    end "$prefix-$number"
    echo "namespaces.sh: node$number did not come up (try $try of $tries): $(grep -v '^$' "$log" | tail -n 1)" >&2
  done
  tail -n 20 "$log" "$work"/ray/session_latest/logs/raylet*.{out,err} >&2 || true
  exit 75
}

for number in $(seq "$nodes"); do start_node "$number"; done # one by one: starting takes processor time

NODES=$nodes on 1 "$@" & # in the background: a signal is then heeded at once
status=0
wait $! || status=$?
if ((status)); then tail -n 20 "$work"/node*.log >&2; fi
exit $status

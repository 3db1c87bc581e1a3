# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# A Slurm of its own in the folder $work, on this machine and on loopback: nodes n1 and n2 of four CPUs each, and two
# partitions, of which `urgent` preempts `low`. With gpus=N, each node has N emulated GPUs. To be sourced; needs root.
daemons=()
work=${work:?}
gpus=${gpus:-0}

stop_slurm() {
    scancel --signal=KILL --user=root 2>/dev/null || true
    scancel --user=root 2>/dev/null || true
    sleep 0.5
    for ((i = ${#daemons[@]} - 1; i >= 0; i--)); do kill "${daemons[i]}" 2>/dev/null || true; done
    sleep 0.5
    kill -KILL "${daemons[@]}" 2>/dev/null || true
}

start() { # LOG COMMAND...: a daemon.
    local log=$1
    shift
    "$@" >"$work/$log" 2>&1 &
    daemons+=($!) && disown
}

write_config() { # HOST PORT
    cat >"$work/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$1(127.0.0.1)
SlurmctldPort=$2
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SwitchType=switch/none
MpiDefault=pmix
KillWait=5
ReturnToService=2
SlurmdTimeout=10
MessageTimeout=4
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
StateSaveLocation=$work/state
SlurmctldPidFile=$work/slurmctld.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdSpoolDir=$work/spool/%n
SlurmdPidFile=$work/slurmd.%n.pid
SlurmdLogFile=$work/slurmd.%n.log
TmpFS=$work/tmp/%n
SchedulerParameters=sched_min_interval=2000,sched_interval=2,bf_interval=2,batch_sched_delay=0
GresTypes=gpu
TaskProlog=$work/prolog
NodeName=n1 NodeHostname=$1 NodeAddr=127.0.0.1 Port=$(($2 + 1)) CPUs=4 Gres=gpu:$gpus State=UNKNOWN
NodeName=n2 NodeHostname=$1 NodeAddr=127.0.0.1 Port=$(($2 + 2)) CPUs=4 Gres=gpu:$gpus State=UNKNOWN
PartitionName=low Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=n1,n2 MaxTime=INFINITE State=UP PriorityTier=2
CONF
}

# Emulated GPUs belong to a host by its name, and both nodes have this host's.
write_gpus() {
    local files=""
    for ((i = 0; i < gpus; i++)); do
        touch "$work/gpu$i"
        files+="${files:+,}$work/gpu$i"
    done
    echo "${files:+Name=gpu File=$files}" >"$work/gres.conf"
    echo "#!/bin/sh" >"$work/prolog"
    echo "echo \"export NCCL_HOSTID=\$SLURMD_NODENAME\"" >>"$work/prolog"
    chmod 755 "$work/prolog"
}

# All processes of a node of this Slurm: its slurmd, the steps and their tasks.
processes_of() { # NODE
    local found
    pgrep -f "^slurmd -D -N $1 -f $SLURM_CONF" || true
    found=$(grep -lz "^SLURMD_NODENAME=$1\$" /proc/[0-9]*/environ 2>/dev/null || true)
    # shellcheck disable=SC2086
    [ -z "$found" ] || grep -lz "^SLURM_CONF=$SLURM_CONF\$" $found 2>/dev/null | cut -d/ -f3 || true
}

# The first of three successive ports, of which the first is free.
free_ports() {
    local port=$((20000 + $$ % 4000 * 3))
    while (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((20000 + (port - 20000 + 3) % 12000)); done
    echo $port
}

start_slurmd() { # NODE
    start "slurmd.$1.out" slurmd -D -N "$1" -f "$SLURM_CONF"
}

start_slurm() {
    local host node
    host=$(hostname)
    mkdir -p "$work"/{munge,state,spool/n1,spool/n2,tmp/n1,tmp/n2}
    mungekey -c -k "$work/munge/key"
    chown -R munge "$work/munge"
    start munged.out setpriv --reuid=munge --regid=munge --clear-groups munged -F -f --num-threads=1 \
        --key-file="$work/munge/key" --socket="$work/munge/socket" --pid-file="$work/munge/pid" \
        --seed-file="$work/munge/seed"
    write_config "$host" "$(free_ports)"
    write_gpus
    export SLURM_CONF=$work/slurm.conf
    start slurmctld.out slurmctld -D -f "$SLURM_CONF"
    for node in n1 n2; do start_slurmd $node; done
    for _ in $(seq 200); do
        [ "$(sinfo -h -p low -t idle -o %D 2>/dev/null)" = 2 ] && return
        sleep 0.1
    done
    echo "the nodes did not start" >&2
    return 1
}

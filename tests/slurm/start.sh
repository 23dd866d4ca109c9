#!/bin/bash
# Starts a SLURM of one node, this machine; needs no root, systemd, munge or /etc/slurm.
#   tests/slurm/start.sh FOLDER ['Key=value' of slurm.conf ...]
#   export SLURM_CONF=FOLDER/slurm.conf
# All files and pids are in FOLDER; stop.sh FOLDER ends it. SLURM_PORT and the next port
# are used. The node has two feigned GPUs; jobs of the partition "urgent" preempt those
# of "debug".
set -eu
site=$(realpath -m "$1"); shift
host=$(hostname -s) port=${SLURM_PORT:-16817}
mkdir -p "$site"/{state,spool,log}
cat > "$site/gres.conf" <<END
NodeName=$host Name=gpu File=/dev/zero
NodeName=$host Name=gpu File=/dev/full
END
cat > "$site/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
StateSaveLocation=$site/state
SlurmdSpoolDir=$site/spool
SlurmctldPidFile=$site/slurmctld.pid
SlurmdPidFile=$site/slurmd.pid
SlurmctldLogFile=$site/log/slurmctld.log
SlurmdLogFile=$site/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
MpiDefault=none
ReturnToService=2
KillWait=10
MailProg=/bin/true
$(printf '%s\n' "$@")
NodeName=$host NodeAddr=127.0.0.1 Gres=gpu:2 $(slurmd -C | grep -o 'CPUs=.*RealMemory=[0-9]*')
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP
END
export SLURM_CONF="$site/slurm.conf"
slurmctld -c
slurmd -c
for _ in $(seq 100); do
    if [ "$(sinfo -h -p debug -o %t 2>/dev/null)" = idle ]; then exit 0; fi
    sleep 0.1
done
tail -n 5 "$site/log/slurmctld.log" "$site/log/slurmd.log" >&2
exit 1

#!/bin/sh
# May a job start on its nodes? For slurm.conf: PrologSlurmctld=/path/to/prolog.sh (all nodes of the job at once).
#
# Exit code 0: yes. 1: a node is unfit; Slurm requeues a batch job and cancels another one. As Prolog (on each node) it
# works too, but then Slurm drains the node with a reason of its own, which fabrictime never ends.
# If it is not known whether the nodes are fit, the job starts; with FABRICTIME_UNKNOWN=closed it does not.
set -u
[ -r /etc/default/fabrictime ] && . /etc/default/fabrictime
nodes=${SLURMD_NODENAME:-$(scontrol show hostnames "${SLURM_JOB_NODELIST:-}" | paste -sd, -)}
text=$(timeout "${FABRICTIME_LIMIT_S:-20}" "${FABRICTIME:-fabrictime}" audit gate \
  --hosts "$nodes" --max-age "${FABRICTIME_MAX_AGE:-2h}" 2>&1)
code=$?
[ "$code" = 0 ] && exit 0
logger -t fabrictime -p daemon.warning "job ${SLURM_JOB_ID:-?} on $nodes: exit code $code: $text" 2>/dev/null
[ "$code" = 1 ] && exit 1
[ "${FABRICTIME_UNKNOWN:-open}" = closed ] && exit 1
exit 0

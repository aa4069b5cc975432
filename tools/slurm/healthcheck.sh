#!/bin/sh
# Audits this node and logs the verdict. For slurm.conf: HealthCheckProgram=/path/to/healthcheck.sh, HealthCheckInterval=300
#
# Needs no log and no service. It changes nothing, and its exit code is always 0, unless FABRICTIME_DRAIN=yes: then it
# drains its node on an error, and ends its own drain once there is none. There is no circuit breaker: each node decides
# alone. `fabrictime audit act` has one; use either. Slurm ends the program after 60 s.
set -u
[ -r /etc/default/fabrictime ] && . /etc/default/fabrictime
text=$(timeout "${FABRICTIME_LIMIT_S:-50}" "${FABRICTIME:-fabrictime}" audit 2>/dev/null)
code=$?
verdict=$(printf '%s\n' "$text" | tail -n 1 | tr -d "\"'" | cut -c 1-200)
[ "$code" = 0 ] || logger -t fabrictime -p daemon.warning "audit: exit code $code: $verdict" 2>/dev/null
[ "${FABRICTIME_DRAIN:-no}" = yes ] || exit 0
node=${SLURMD_NODENAME:-$(hostname -s)}
state=$(scontrol --oneliner show node "$node") || exit 0
case "$code $state" in
  "0 "*" Reason=fabrictime-local: "*) scontrol update NodeName="$node" State=UNDRAIN ;;
  *DRAIN*) ;;
  "1 "*) scontrol update NodeName="$node" State=DRAIN Reason="fabrictime-local: $verdict" ;;
esac
exit 0

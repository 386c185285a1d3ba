#!/usr/bin/env bash
# One night: look at the machine, measure a plan, prove the gate, judge, write what people and programs read.
#
#   ci/nightly.sh PLAN [OPTIONS OF cachemark run]
#
# The exit code is that of `cachemark check`: 0 pass, 1 regressed, 2 no baseline or wrong usage, 3 inconclusive, 4 nothing or too little
# measured, 5 infrastructure. Where measuring itself fails, it is that of `cachemark run`; where the gate takes equal arms for unequal ones or
# misses a slow-down that is injected, it is 5: such a gate judges nothing. A night that ran out of time (`--budget`) is judged by what it
# has measured and ends with 4 at best, and a report that cannot be written turns a pass into 5.
#
# CACHEMARK_STORE   database that all nights share; keep it where the next night finds it   [nightly.sqlite]
# CACHEMARK_OUT     folder for what this night writes                                       [nightly]
# CACHEMARK_DEVICE  cuda or cpu                                                             [cuda]
# CACHEMARK_CANARY  frozen commit that every night is compared with, pair by pair, equal arms among the pairs  [none]
# CACHEMARK_MINUTES how long these pairs may take                                           [60]
# CACHEMARK_INCIDENTS register of incidents; keep it where the next night finds it          [baselines/incidents.json]
# CACHEMARK_MACHINE options about devices of the run, the pairs and the self-test, such as "--gpu 1 --lock-clocks 1410"  [none]
set -euo pipefail

plan=${1:?give a plan, such as: ci/nightly.sh nightly}
shift
export CACHEMARK_STORE=${CACHEMARK_STORE:-nightly.sqlite}
out=${CACHEMARK_OUT:-nightly}
register=${CACHEMARK_INCIDENTS:-baselines/incidents.json}
read -ra machine <<<"--device ${CACHEMARK_DEVICE:-cuda} ${CACHEMARK_MACHINE:-}"
mkdir -p "$out" "$(dirname "$register")"

cachemark doctor | tee "$out/doctor.txt"
measured=0
cachemark run "$plan" "${machine[@]}" --fresh --carry-quality "$@" || measured=$?
case $measured in 0 | 4) ;; *) exit "$measured" ;; esac

set +e # whatever fails from here on, what was measured is judged and shown
cachemark check --self-test "${machine[@]}" 2>&1 | tee "$out/self-test.txt"
proved=${PIPESTATUS[0]}
if [ -n "${CACHEMARK_CANARY:-}" ]; then # what comes out of it is judged by `check`
    cachemark compare "$plan" --commits "$CACHEMARK_CANARY" HEAD "${machine[@]}" --minutes "${CACHEMARK_MINUTES:-60}" 2>&1 |
        tee "$out/compare.txt"
fi
cachemark check --incidents "$register" 2>&1 | tee "$out/check.txt"
verdict=${PIPESTATUS[0]}

written=0
cachemark report "$out/report.html" || written=5
cachemark report --site "$out/site" || written=5
cachemark export github --comment "$out/comment.md" || written=5
cachemark export csv "$out/figures.csv" || written=5
case $verdict in 2 | 4) ;; *) cachemark export junit "$out/junit.xml" || written=5 ;; esac # else there may be nothing to compare with
[ "$proved" -eq 0 ] || exit 5
for code in "$verdict" "$measured" "$written"; do
    [ "$code" -eq 0 ] || exit "$code"
done

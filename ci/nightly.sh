#!/usr/bin/env bash
# One night: check the machine, measure a plan, compare it in pairs, test the gate, check the run, and write reports and exports.
#
#   ci/nightly.sh PLAN [--no-self-test] [OPTIONS OF cachemark run]
#
# --no-self-test skips the self-test of the gate, for nights that must be short.
# Options about the device (--threads, --gpu, --lock-clocks, --memory-cap) apply to the self-test and the pairs too.
#
# Exits with the code of `cachemark check`: 0 pass, 1 regressed, 2 wrong usage, 3 inconclusive, 4 nothing or too little measured,
# 5 infrastructure. The first night has no baseline: it proposes its run as the baseline, in the folder `proposed` of CACHEMARK_OUT, and
# passes. Times are tested in pairs with the canary; without one, with the commit of the baseline. If requested pairs could not be measured,
# a night that would pass exits with their code. If the measurement fails, the code is the one of `cachemark run`. If the gate reports a
# change in A/A tests or misses an injected slowdown, it is 5, since such a gate is not reliable. A night that ran out of time (`--time`)
# is checked with its results so far and exits with 4 at best, and a report that cannot be written turns a pass into 5.
#
# CACHEMARK_STORE   database of all nights; keep it for the next night                      [nightly.sqlite]
# CACHEMARK_OUT     folder for the output of this night                                     [nightly]
# CACHEMARK_DEVICE  cuda or cpu                                                             [cuda]
# CACHEMARK_CANARY  commit that every night is compared with in pairs, with A/A tests; "none" for no pairs
#                                                                                           [the baseline's commit]
# CACHEMARK_MINUTES time limit of these pairs                                               [60]
# CACHEMARK_INCIDENTS register of incidents; keep it for the next night                     [baselines/incidents.json]
# CACHEMARK_MACHINE options about the device, such as "--gpu 1 --lock-clocks 1410"          [none]
# CACHEMARK_PLUGIN  file of a plug-in in a repository of its own: the night measures it, and the pairs compare its commit in the baseline with
#                   the file as it is, instead of two commits of cachemark                  [none]
# CACHEMARK_PAIRS   more options of `cachemark compare`, such as "--plugin 'my method.py'"  [none]
set -euo pipefail

plan=${1:?give a plan, such as: ci/nightly.sh nightly}
shift
export CACHEMARK_STORE=${CACHEMARK_STORE:-nightly.sqlite}
out=${CACHEMARK_OUT:-nightly}
register=${CACHEMARK_INCIDENTS:-baselines/incidents.json}
words() { xargs -r printf '%s\n' <<<"$1"; } # one a line; quotes group words as in a shell, and nothing is expanded
mapfile -t machine < <(words "--device ${CACHEMARK_DEVICE:-cuda} ${CACHEMARK_MACHINE:-}")
mapfile -t more < <(words "${CACHEMARK_PAIRS:-}")
plugin=${CACHEMARK_PLUGIN:-}
options=(${plugin:+--plugin "$plugin"})
self_test=1
while [ $# -gt 0 ]; do
    case $1 in
    --no-self-test)
        self_test=0
        shift
        ;;
    --threads | --gpu | --lock-clocks | --memory-cap)
        machine+=("$1" "${2:?$1 needs a value}")
        shift 2
        ;;
    *)
        options+=("$1")
        shift
        ;;
    esac
done
mkdir -p "$out" "$(dirname "$register")"

cachemark doctor | tee "$out/doctor.txt"
measured=0
cachemark run "$plan" "${machine[@]}" --fresh --reuse-quality "${options[@]}" || measured=$?
case $measured in 0 | 4) ;; *) exit "$measured" ;; esac

set +e # even if a later step fails, check and report the results
proved=0
if [ "$self_test" = 1 ]; then
    cachemark test gate "${machine[@]}" 2>&1 | tee "$out/self-test.txt"
    proved=${PIPESTATUS[0]}
fi
canary=${CACHEMARK_CANARY:-$(cachemark baseline commit ${plugin:+--plugin} 2>/dev/null)} # nothing on the first night
sides=(--commits "$canary" HEAD)
[ -z "$plugin" ] || sides=(--versions "$canary" "$plugin" --plugin "$plugin")
compared=0
if [ -n "$canary" ] && [ "$canary" != none ]; then # `check` evaluates the result
    cachemark compare "$plan" "${sides[@]}" "${machine[@]}" --minutes "${CACHEMARK_MINUTES:-60}" "${more[@]}" 2>&1 |
        tee "$out/compare.txt"
    compared=${PIPESTATUS[0]}
    case $compared in 1 | 3) compared=0 ;; esac
fi
cachemark check --incidents "$register" --propose "$out/proposed" 2>&1 | tee "$out/check.txt"
verdict=${PIPESTATUS[0]}

written=0
cachemark report "$out/report.html" --incidents "$register" || written=5
cachemark report --site "$out/site" --incidents "$register" || written=5
cachemark export github --comment "$out/comment.md" --incidents "$register" || written=5
cachemark export csv "$out/figures.csv" || written=5
if [ ! -d "$out/proposed" ]; then # else there is no baseline to compare with
    case $verdict in 2 | 4) ;; *) cachemark export junit "$out/junit.xml" --incidents "$register" || written=5 ;; esac
fi
[ "$proved" -eq 0 ] || exit 5
for code in "$verdict" "$measured" "$compared" "$written"; do
    [ "$code" -eq 0 ] || exit "$code"
done

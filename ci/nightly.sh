#!/usr/bin/env bash
# One night: look at the machine, measure a plan, judge it, write what people and programs read.
#
#   ci/nightly.sh PLAN [OPTIONS OF cachemark run]
#
# The exit code is that of `cachemark check`: 0 pass, 1 regressed, 2 no baseline or wrong usage, 3 inconclusive, 4 nothing or too little
# measured, 5 infrastructure. Where measuring itself fails, it is that of `cachemark run`.
#
# CACHEMARK_STORE   database that all nights share; keep it where the next night finds it   [nightly.sqlite]
# CACHEMARK_OUT     folder for what this night writes                                       [nightly]
# CACHEMARK_DEVICE  cuda or cpu                                                             [cuda]
set -euo pipefail

plan=${1:?give a plan, such as: ci/nightly.sh nightly}
shift
export CACHEMARK_STORE=${CACHEMARK_STORE:-nightly.sqlite}
out=${CACHEMARK_OUT:-nightly}
mkdir -p "$out"

cachemark doctor | tee "$out/doctor.txt"
cachemark run "$plan" --device "${CACHEMARK_DEVICE:-cuda}" --fresh "$@"

set +e
cachemark check 2>&1 | tee "$out/check.txt"
verdict=${PIPESTATUS[0]}
set -e

cachemark report "$out/report.html"
cachemark report --site "$out/site"
cachemark export github --comment "$out/comment.md"
cachemark export csv "$out/figures.csv"
if [ "$verdict" -ne 2 ]; then # there is a baseline
    cachemark export junit "$out/junit.xml"
fi
exit "$verdict"

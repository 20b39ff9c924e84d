#!/usr/bin/env bash
# Checks and measures tokenmill on a machine with a GPU, part by part, and writes a JSON file for each and summary.json.
#
# ./run.sh [RESULTS_FOLDER]     exit code 0: every part that ran passed; 1: one failed; 5: there is no GPU to use
# PARTS="doctor parity"         runs only these; BENCH_PRESETS="llama-3.2-1b:Q4_K_M ..." chooses the models of the benches, and
# BENCH_ARGS="--n-prompt 64 --n-gen 8 --batches 1,4" their lengths; PART_LIMIT_S is what a part may take.
set -u
cd "$(dirname "$0")"
here=$PWD
results=${1:-results}
mkdir -p "$results"
results=$(cd "$results" && pwd)
models=${MODELS_FOLDER:-$results/models}
parts=${PARTS:-doctor conformance parity run sanitizer bench}
presets=${BENCH_PRESETS:-llama-3.2-1b:Q4_K_M llama-3-8b:Q4_K_M llama-3-8b:Q8_0}
part_limit_s=${PART_LIMIT_S:-600}
bin=$results/bin
# Always anew: a folder of older results may have older programs.
rm -rf "$bin"
tar -xzf "$here/bin.tar.gz" -C "$results" || exit 1
export PATH="$bin:$PATH"

rows=()
n_failed=0
n_passed=0

escaped() { printf '%s' "$1" | tr '\n\t\r"\\' "    '/" | cut -c1-600; }

# record PART STATUS REASON SECONDS
record() {
    rows+=("$(printf '    {"part": "%s", "status": "%s", "reason": "%s", "seconds": %s}' "$1" "$2" "$(escaped "$3")" "$4")")
    printf '%-28s %-10s %s\n' "$1" "$2" "$(escaped "$3")"
    case $2 in
        passed) n_passed=$((n_passed + 1)) ;;
        failed) n_failed=$((n_failed + 1)) ;;
    esac
}

# part NAME COMMAND...: runs it with its output in a log; without a GPU that can be used, says so and runs nothing.
part() {
    local name=$1 start status
    shift
    if [ -n "$no_device" ]; then
        record "$name" "no device" "$no_device" 0
        return 1
    fi
    start=$(date +%s)
    timeout "$part_limit_s" "$@" >"$results/$name.log" 2>&1
    status=$?
    if [ $status -eq 0 ]; then
        record "$name" passed "" $(($(date +%s) - start))
    elif [ $status -eq 124 ]; then
        record "$name" failed "took more than $part_limit_s s" $(($(date +%s) - start))
    else
        record "$name" failed "exit code $status: $(tail -n 1 "$results/$name.log")" $(($(date +%s) - start))
    fi
    return $status
}

wanted() { [[ " $parts " == *" $1 "* ]]; }

# Whether there is a GPU to use is asked first, and written whatever the answer is.
start=$(date +%s)
tokenmill doctor --device cuda --json >"$results/doctor.json" 2>"$results/doctor.log"
status=$?
no_device=
case $status in
    0) ;;
    5) no_device=$(sed 's/^error: //' "$results/doctor.log" | tail -n 1) ;;
    *) no_device="doctor ended with exit code $status: $(tail -n 1 "$results/doctor.log")" ;;
esac
if wanted doctor; then
    if [ -n "$no_device" ]; then
        record doctor "no device" "$no_device" $(($(date +%s) - start))
    elif grep -q '"passed": true' "$results/doctor.json"; then
        record doctor passed "" $(($(date +%s) - start))
    else
        record doctor failed "the self-test did not pass" $(($(date +%s) - start))
    fi
fi

wanted conformance && part conformance xtask conformance --device cuda --json "$results/conformance.json"
wanted parity && part parity xtask parity --device cuda --data "$here/fixtures" --json "$results/parity.json"

if wanted run; then
    compare_runs() {
        tokenmill run demo "Once upon a time" --temp 0 -n 64 --device cpu >"$results/run-cpu.txt" 2>/dev/null &&
            tokenmill run demo "Once upon a time" --temp 0 -n 64 --device cuda >"$results/run-cuda.txt" 2>/dev/null &&
            cmp "$results/run-cpu.txt" "$results/run-cuda.txt"
    }
    export -f compare_runs
    export results
    part run bash -c compare_runs
fi

if wanted sanitizer; then
    if [ -n "$no_device" ]; then
        record sanitizer "no device" "$no_device" 0
    elif command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck initcheck synccheck; do
            part "sanitizer-$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 \
                "$bin/tokenmill" run demo "Once upon a time" --temp 0 -n 4 -c 64 --device cuda
        done
    else
        record sanitizer absent "compute-sanitizer is not installed" 0
    fi
fi

if wanted bench; then
    for preset in $presets; do
        name=${preset%%:*}
        type=${preset##*:}
        if [ -z "$no_device" ] && [ ! -f "$models/$name-$type.gguf" ]; then
            mkdir -p "$models"
            part "synth-$name-$type" xtask synth "$name" "$type" "$models/$name-$type.gguf" || continue
        fi
        part "bench-$name-$type" xtask device-bench "$models/$name-$type.gguf" \
            --json "$results/bench-$name-$type.json" ${BENCH_ARGS:-}
    done
fi

{
    echo '{'
    printf '  "machine": "%s",\n' "$(escaped "$(uname -srm)")"
    printf '  "gpu": "%s",\n' "$(escaped "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1)")"
    printf '  "no_device": "%s",\n' "$(escaped "$no_device")"
    echo '  "parts": ['
    for index in "${!rows[@]}"; do
        printf '%s' "${rows[$index]}"
        [ "$index" -lt $((${#rows[@]} - 1)) ] && printf ','
        echo
    done
    echo '  ]'
    echo '}'
} >"$results/summary.json"
echo "$n_passed parts passed, $n_failed failed; $results/summary.json"
[ "$n_failed" -gt 0 ] && exit 1
[ -n "$no_device" ] && exit 5
exit 0

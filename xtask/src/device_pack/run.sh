#!/usr/bin/env bash
# Checks and measures tokenmill on a machine with a GPU, part by part, and writes a JSON file for each and summary.json, which is
# whole after every part. Without a GPU the parts that need none run, and the others say in their file why they did not.
#
# ./run.sh [RESULTS_FOLDER]     exit code 0: every part that ran passed; 1: one failed; 5: there is no GPU to use
# PARTS="doctor parity"         runs only these; BENCH_PRESETS="llama-3.2-1b:Q4_K_M ..." chooses the models of the benches, and
# BENCH_ARGS="--n-prompt 64 --n-gen 8 --batches 1,4" their lengths; PART_LIMIT_S is what a part may take.
# WORK_FOLDER                   its folder tokenmill-pack gets the programs and the models of the benches (14 GB by default);
#                               beside the results unless named. Nothing there is deleted.
set -u
# What a user set here must not reach the parts.
unset TOKENMILL_TEST_DATA
began_in=$PWD
cd "$(dirname "$0")" || exit 1
here=$PWD
# A path that is not absolute is one of the folder that the caller stands in.
absolute() { case $1 in /*) printf '%s' "$1" ;; *) printf '%s/%s' "$began_in" "$1" ;; esac }
results=$(absolute "${1:-results}")
results=${results%/}
work=$(absolute "${WORK_FOLDER:-$results.work}")
# A name of the pack's own: the folder may be one that has other things, such as somebody's home.
work=${work%/}/tokenmill-pack
mkdir -p "$results" "$work" || exit 1
models=$work/models
parts=${PARTS:-doctor conformance-cpu parity-cpu conformance parity run sanitizer bench}
presets=${BENCH_PRESETS:-llama-3.2-1b:Q4_K_M llama-3-8b:Q4_K_M llama-3-8b:Q8_0}
part_limit_s=${PART_LIMIT_S:-600}
bin=$work/bin
# Always anew, over older programs.
tar -xzf "$here/bin.tar.gz" -C "$work" || exit 1
export PATH="$bin:$PATH"

rows=()
n_failed=0
n_passed=0
no_device=
doctor_failed=

escaped() { printf '%s' "$1" | tr '\n\t\r"\\' "    '/" | tr -d '\000-\037' | cut -c1-600; }

# record PART STATUS REASON SECONDS: a row of the summary, which is written anew, and the part's file, which has the row until the
# part's own replaces it.
record() {
    local row
    row=$(printf '{"part": "%s", "status": "%s", "reason": "%s", "seconds": %s}' "$1" "$2" "$(escaped "$3")" "$4")
    rows+=("$row")
    printf '%s\n' "$row" >"$results/$1.json"
    printf '%-28s %-10s %s\n' "$1" "$2" "$(escaped "$3")"
    case $2 in
        passed) n_passed=$((n_passed + 1)) ;;
        failed) n_failed=$((n_failed + 1)) ;;
    esac
    summarize
}

summarize() {
    {
        echo '{'
        printf '  "machine": "%s",\n' "$(escaped "$(uname -sm), $(nproc) CPUs")"
        printf '  "gpu": "%s",\n' "$(escaped "$gpu")"
        printf '  "no_device": "%s",\n' "$(escaped "$no_device")"
        echo '  "parts": ['
        for index in "${!rows[@]}"; do
            printf '    %s' "${rows[$index]}"
            [ "$index" -lt $((${#rows[@]} - 1)) ] && printf ','
            echo
        done
        echo '  ]'
        echo '}'
    } >"$results/summary.json.new"
    mv "$results/summary.json.new" "$results/summary.json"
}

# keep PART EXIT_CODE: what a part wrote to its file.json.new becomes its file, unless it was killed or what it wrote has no end.
keep() {
    local written=$results/$1.json.new
    if [ "$2" -lt 124 ] && [ -s "$written" ] && [ "$(tail -n 1 "$written" | tail -c 2)" = "}" ]; then
        mv "$written" "$results/$1.json"
    else
        rm -f "$written"
    fi
}

# why_failed PART EXIT_CODE SECONDS: the reason of a row. timeout exits with 124 where it ended a part, and with 137 where the
# part had to be killed; before the limit somebody else did that.
why_failed() {
    if [ "$3" -ge "$part_limit_s" ] && { [ "$2" -eq 124 ] || [ "$2" -eq 137 ]; }; then
        echo "took more than $part_limit_s s"
    else
        echo "exit code $2: $(tail -n 1 "$results/$1.log")"
    fi
}

# part_anywhere NAME COMMAND...: runs it with its output in a log.
part_anywhere() {
    local name=$1 start status seconds
    shift
    rm -f "$results/$name.json.new"
    start=$(date +%s)
    timeout -k 10 "$part_limit_s" "$@" >"$results/$name.log" 2>&1
    status=$?
    seconds=$(($(date +%s) - start))
    if [ $status -eq 0 ]; then
        record "$name" passed "" $seconds
    else
        record "$name" failed "$(why_failed "$name" $status $seconds)" $seconds
    fi
    keep "$name" $status
    return $status
}

# part NAME COMMAND...: the same for what needs a GPU; without one that can be used, says so and runs nothing.
part() {
    if [ -n "$no_device" ]; then
        rm -f "$results/$1.log"
        record "$1" "no device" "skipped: $no_device" 0
        return 1
    fi
    part_anywhere "$@"
}

wanted() { [[ " $parts " == *" $1 "* ]]; }

# Whether there is a GPU to use is asked first, and written whatever the answer is.
gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1)
start=$(date +%s)
timeout -k 10 "$part_limit_s" tokenmill doctor --device cuda --json >"$results/doctor.json.new" 2>"$results/doctor.log"
status=$?
seconds=$(($(date +%s) - start))
case $status in
    0) ;;
    5) no_device=$(sed 's/^error: //' "$results/doctor.log" | tail -n 1) ;;
    *) doctor_failed=$(why_failed doctor $status $seconds) ;;
esac
if wanted doctor || [ -n "$doctor_failed" ]; then
    if [ -n "$doctor_failed" ]; then
        # Something is there and does not work; the other parts say what.
        record doctor failed "$doctor_failed" $seconds
    elif [ -n "$no_device" ]; then
        record doctor "no device" "skipped: $no_device" $seconds
    elif grep -q '"passed": true' "$results/doctor.json.new"; then
        record doctor passed "" $seconds
    else
        record doctor failed "the self-test did not pass" $seconds
    fi
fi
keep doctor $status

wanted conformance-cpu && part_anywhere conformance-cpu xtask conformance --device cpu --json "$results/conformance-cpu.json.new"
wanted parity-cpu && part_anywhere parity-cpu xtask parity --device cpu --data "$here/fixtures" --json "$results/parity-cpu.json.new"
wanted conformance && part conformance xtask conformance --device cuda --json "$results/conformance.json.new"
wanted parity && part parity xtask parity --device cuda --data "$here/fixtures" --json "$results/parity.json.new"

if wanted run; then
    compare_runs() {
        tokenmill run demo "Once upon a time" --temp 0 -n 64 --device cpu >"$results/run-cpu.txt" &&
            tokenmill run demo "Once upon a time" --temp 0 -n 64 --device cuda >"$results/run-cuda.txt" &&
            cmp "$results/run-cpu.txt" "$results/run-cuda.txt"
    }
    export -f compare_runs
    export results
    part run bash -c compare_runs
fi

if wanted sanitizer; then
    if [ -n "$no_device" ]; then
        part sanitizer
    elif command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck initcheck synccheck; do
            part "sanitizer-$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 \
                "$bin/tokenmill" run demo "Once upon a time" --temp 0 -n 4 -c 64 --device cuda
        done
    else
        record sanitizer absent "skipped: compute-sanitizer is not installed" 0
    fi
fi

if wanted bench; then
    for preset in $presets; do
        name=${preset%%:*}
        type=${preset##*:}
        model=$models/$name-$type.gguf
        if [ -z "$no_device" ] && [ ! -f "$model" ]; then
            mkdir -p "$models"
            # Under its name only when it is whole.
            part "synth-$name-$type" xtask synth "$name" "$type" "$model.part" || continue
            if ! mv "$model.part" "$model"; then
                record "bench-$name-$type" failed "cannot name the model $model" 0
                continue
            fi
        fi
        part "bench-$name-$type" xtask bench device "$model" \
            --json "$results/bench-$name-$type.json.new" ${BENCH_ARGS:-}
    done
fi

echo "$n_passed parts passed, $n_failed failed; $results/summary.json"
[ "$n_failed" -gt 0 ] && exit 1
[ -n "$no_device" ] && exit 5
exit 0

#!/usr/bin/env bash
# Checks and measures tokenmill on a machine with a GPU, part by part, the most telling first. After every part RESULTS_FOLDER has two files,
# all results so far as results.tar.gz, and summary.json; a run that is cut off loses one part, and one that is told to end (SIGHUP, SIGINT,
# SIGTERM) says so in both files and ends what it started. Without a GPU the parts that need none run, and the others say why they did not.
#
# ./run.sh [RESULTS_FOLDER [SECONDS]]   SECONDS: how long all of it may take; a part that does not fit into the rest is left out
#                               exit code 0: every part that ran passed; 1: one failed; 5: there is no GPU to use; 128 and more: cut off
# PARTS="self-test parity"      runs only these, in their order here
# BENCH_PRESETS="llama-3-8b:Q4_K_M ..."  chooses the models of the benches, the first of them also for what follows
# BENCH_ARGS, MORE_ARGS, PREFILL_ARGS, DEPTH_8K_ARGS, DEPTH_32K_ARGS, SAMPLED_ARGS, KERNEL_ARGS, SERVE_ARGS, LOAD_ARGS
#                               lengths of the benches, the server's options and the load; PART_LIMIT_S is what a part may take
# PARITY_ARGS, CONFORMANCE_ARGS  further arguments of these, such as --filter
# PREDICTIONS=h200              takes the predictions for this GPU instead of those for the one that is there
# CUBINS=FILE                   kernels compiled ahead, instead of the pack's
# WORK_FOLDER                   its folder tokenmill-pack gets the programs and the models (5 to 40 GB by default); beside the results
#                               unless named. Nothing there is deleted but the last run's parts.
#
# Functions are called by `bash -c` too, in single quotes; options of the programs are split into words on purpose.
# shellcheck disable=SC2016,SC2086,SC2317
set -u
started=$(date +%s)
# What a user set here must not reach the parts.
export TOKENMILL_CUDA_NO_CHECK=1
unset TOKENMILL_TEST_DATA RUST_BACKTRACE RUST_LIB_BACKTRACE CUDA_DISABLE_PTX_JIT TOKENMILL_CUDA_CUBINS
command_line="$0 $*"
began_in=$PWD
cd "$(dirname "$0")" || exit 1
here=$PWD
# A path that is not absolute is one of the folder that the caller stands in.
absolute() { case $1 in /*) printf '%s' "$1" ;; *) printf '%s/%s' "$began_in" "$1" ;; esac }
out=$(absolute "${1:-results}")
out=${out%/}
deadline_s=${2:-0}
case $deadline_s in *[!0-9]*) echo "SECONDS is a number, not $deadline_s" >&2; exit 2 ;; esac
work=$(absolute "${WORK_FOLDER:-$out.work}")
# A name of the pack's own: the folder may be one that has other things, such as somebody's home.
work=${work%/}/tokenmill-pack
# One file a part: with the programs, since some machines give few files back.
results=$work/parts
rm -rf "$results"
mkdir -p "$out" "$results" || exit 1
models=$work/models
parts=${PARTS:-self-test compare parity conformance cubins bench kernels prefill depth sampled serving batches more doctor conformance-cpu \
parity-cpu baselines sanitizer}
presets=${BENCH_PRESETS:-llama-3-8b:Q4_K_M llama-3-8b:Q8_0 llama-3.2-1b:Q4_K_M llama-3-8b:BF16}
first=${presets%% *}
part_limit_s=${PART_LIMIT_S:-600}
bin=$work/bin
fixtures=$work/fixtures
# Always, over older programs. The kernels are in the pack once, and in each program.
rm -rf "$bin" "$fixtures"
tar -xzf "$here/pack.tar.gz" -C "$work" || exit 1
for head in "$bin"/*.head; do
    program=${head%.head}
    cat "$head" "$bin/kernels.z" "$program.tail" >"$program" && chmod +x "$program" || exit 1
    rm "$head" "$program.tail"
done
export PATH="$bin:$PATH"
# For drivers that do not find their compiler.
cubins=${CUBINS:-$here/cubins.z}
if [ -f "$cubins" ]; then export TOKENMILL_CUDA_CUBINS="$cubins"; fi

rows=()
# What runs now: the part, since when, its command line and its process group; the model that is made next to the parts, and its group.
running=
running_since=$started
running_command=
running_pid=
first_pid=
# The signal that cut the run off.
cut_by=
n_failed=0
n_passed=0
no_device=

# What a log says went wrong: its first line that says so, or its last.
said() { { grep -m 1 -i '^error' "$1" || tail -n 1 "$1"; } 2>/dev/null; }
# shellcheck disable=SC1003
escaped() { printf '%s' "$1" | tr '\n\t\r"\\' "    '/" | tr -d '\000-\037' | cut -c1-600; }
# What the pack says of itself: pack_says KEY.
pack_says() { sed -n "s/^ *\"$1\": \"\\(.*\\)\",*\$/\\1/p" "$here/pack.json" | head -n 1; }
# Seconds left; many where there is no deadline.
left() { if [ "$deadline_s" -gt 0 ]; then echo $((started + deadline_s - $(date +%s))); else echo 1000000; fi; }
ask_gpu() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -n 1; }
gpu_state() { ask_gpu clocks.sm,clocks.mem,clocks.max.sm,power.draw,power.limit,temperature.gpu,pstate; }

gpu=$(ask_gpu name,driver_version,memory.total)
gpu_before=$(gpu_state)
began=$(date -u +%Y-%m-%dT%H:%M:%SZ)

# note PART STATUS REASON SECONDS COMMAND: a row of the summary, and the part's file, which has the row until the part's own replaces it.
note() {
    local row
    row=$(printf '{"part": "%s", "status": "%s", "reason": "%s", "seconds": %s, "command": "%s"}' \
        "$1" "$2" "$(escaped "$3")" "$4" "$(escaped "${5:-}")")
    rows+=("$row")
    last_status=$2
    [ -f "$results/$1.json" ] || printf '%s\n' "$row" >"$results/$1.json"
    printf '%-28s %-10s %4s s  %s\n' "$1" "$2" "$4" "$(escaped "$3")"
    case $2 in
        passed) n_passed=$((n_passed + 1)) ;;
        failed) n_failed=$((n_failed + 1)) ;;
    esac
}

# record PART STATUS REASON SECONDS COMMAND: the same, and writes the summary again with the archive if something ran.
record() {
    note "$@"
    running=
    # What did not run is archived with the next that did, or at the end: writing takes time, which is short where parts are late.
    case $2 in late | absent | "no device") [ "$4" -eq 0 ] && return 0 ;; esac
    summarize
}

summarize() {
    {
        echo '{'
        printf '  "date": "%s",\n' "$began"
        printf '  "seconds": %s,\n' $(($(date +%s) - started))
        printf '  "deadline_s": %s,\n' "$deadline_s"
        printf '  "command": "%s",\n' "$(escaped "$command_line")"
        printf '  "commit": "%s",\n' "$(escaped "$(pack_says commit)")"
        printf '  "kernels_sha256": "%s",\n' "$(escaped "$(pack_says kernels_sha256)")"
        printf '  "predictions": "%s",\n' "$(escaped "${predictions_name:-none for this GPU}")"
        printf '  "machine": "%s",\n' "$(escaped "$(uname -sm), $(nproc) CPUs")"
        printf '  "gpu": "%s",\n' "$(escaped "$gpu")"
        printf '  "gpu_before": "%s",\n' "$(escaped "$gpu_before")"
        # Asking takes seconds on some machines, which a run that is cut off may not have.
        printf '  "gpu_after": "%s",\n' "$([ -n "$cut_by" ] || escaped "$(gpu_state)")"
        printf '  "cut_off": "%s",\n' "$cut_by"
        printf '  "no_device": "%s",\n' "$(escaped "$no_device")"
        echo '  "parts": ['
        for index in "${!rows[@]}"; do
            printf '    %s' "${rows[$index]}"
            [ "$index" -lt $((${#rows[@]} - 1)) ] && printf ','
            echo
        done
        echo '  ]'
        echo '}'
    } >"$out/summary.json.new"
    cp "$out/summary.json.new" "$results/summary.json"
    mv "$out/summary.json.new" "$out/summary.json"
    tar -czf "$out/results.tar.gz.new" -C "$results" --exclude='*.new' . && mv "$out/results.tar.gz.new" "$out/results.tar.gz"
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

# limited SECONDS COMMAND...: runs it for so long at most, and leaves nothing behind that it started. It is waited for, since bash obeys a signal
# only between commands that it runs itself.
limited() {
    local status
    timeout -k 5 "$@" 4>&- &
    running_pid=$!
    wait "$running_pid"
    status=$?
    end_group "$running_pid"
    running_pid=
    return $status
}

# end_group PID: ends what is left of the process group that `timeout` made, within two seconds.
end_group() {
    kill -TERM -- "-$1" 2>/dev/null || return 0
    for _ in {1..20}; do
        kill -0 -- "-$1" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL -- "-$1" 2>/dev/null
}

# cut_off SIGNAL NUMBER: what is there is written first, since whoever cuts a run off may not wait for the rest.
cut_off() {
    local pid name=${first%%:*}-${first##*:}
    trap '' HUP INT TERM
    # The part that runs may have its log here.
    exec >&4
    cut_by=SIG$1
    for pid in $running_pid $first_pid; do kill -TERM "$pid"; done 2>/dev/null
    if [ -n "$running" ]; then
        keep "$running" 124
        note "$running" late "cut off by $cut_by" $(($(date +%s) - running_since)) "$running_command"
    fi
    if [ -n "$first_pid" ]; then
        note "synth-$name" late "cut off by $cut_by" $(($(date +%s) - first_started)) "lab synth ${name%-*} ${name##*-}"
    fi
    summarize
    for pid in $running_pid $first_pid; do end_group "$pid"; done
    echo "cut off by $cut_by after $(($(date +%s) - started)) s, $n_passed parts passed, $n_failed failed; $out/summary.json, $out/results.tar.gz"
    exit $((128 + $2))
}
exec 4>&1
trap 'cut_off HUP 1' HUP
trap 'cut_off INT 2' INT
trap 'cut_off TERM 15' TERM

# begins NAME COMMAND...: what runs from now on.
begins() {
    running=$1
    running_since=$(date +%s)
    shift
    running_command=$*
}

# anywhere NEEDS NAME COMMAND...: runs it with its output in a log, if so many seconds are left.
anywhere() {
    local needs=$1 name=$2 status seconds limit reason rest
    shift 2
    rm -f "$results/$name.json" "$results/$name.json.new" "$results/$name.log"
    rest=$(left)
    if [ "$rest" -lt "$needs" ]; then
        record "$name" late "left out: it needs some $needs s, $((rest > 0 ? rest : 0)) s are left" 0 "$*"
        return 1
    fi
    limit=$part_limit_s
    [ "$rest" -lt "$limit" ] && limit=$rest
    begins "$name" "$@"
    limited "$limit" "$@" >"$results/$name.log" 2>&1
    status=$?
    seconds=$(($(date +%s) - running_since))
    keep "$name" $status
    if [ $status -eq 0 ]; then
        record "$name" passed "" $seconds "$*"
    else
        reason="exit code $status: $(said "$results/$name.log")"
        # timeout ends with 124 where it ended a part, and with 137 where the part had to be killed.
        if [ "$seconds" -ge "$limit" ] && { [ $status -eq 124 ] || [ $status -eq 137 ]; }; then
            reason="took more than $limit s"
            if [ "$limit" -lt "$part_limit_s" ]; then
                record "$name" late "$reason, all that was left" $seconds "$*"
                return $status
            fi
        fi
        record "$name" failed "$reason" $seconds "$*"
    fi
    return $status
}

# part NEEDS NAME COMMAND...: the same for what needs a GPU; without one that can be used, says so and runs nothing.
part() {
    if [ -n "$no_device" ]; then
        rm -f "$results/$2.log" "$results/$2.json"
        record "$2" "no device" "skipped: $no_device" 0
        return 1
    fi
    anywhere "$@"
}

wanted() { [[ " ${parts//$'\n'/ } " == *" $1 "* ]]; }

# Makes the first model while the GPU is tried, since that takes a minute of CPUs alone.
begin_first() {
    local name=${first%%:*} type=${first##*:} limit
    local made=$models/$name-$type.gguf
    if [ -n "$no_device" ] || [ -f "$made" ]; then return 0; fi
    limit=$part_limit_s
    [ "$(left)" -lt "$limit" ] && limit=$(left)
    [ "$limit" -gt 0 ] || return 0
    mkdir -p "$models"
    first_started=$(date +%s)
    timeout -k 5 "$limit" bash -c 'lab synth "$0" "$1" "$2.part" && mv "$2.part" "$2"' "$name" "$type" "$made" \
        >"$results/synth-$name-$type.log" 2>&1 4>&- &
    first_pid=$!
}

# model PRESET:TYPE SECONDS: makes a model unless it is there; its path is in $made.
model() {
    local name=${1%%:*} type=${1##*:} status
    made=$models/$name-$type.gguf
    if [ -n "$no_device" ]; then return 0; fi
    if [ "$1" = "$first" ] && [ -n "$first_pid" ]; then
        wait "$first_pid"
        status=$?
        first_pid=
        if [ $status -eq 0 ]; then
            record "synth-$name-$type" passed "" $(($(date +%s) - first_started)) "lab synth $name $type, beside the parts before"
        elif [ "$(left)" -le 0 ]; then
            record "synth-$name-$type" late "took all that was left" $(($(date +%s) - first_started)) "lab synth $name $type"
        else
            record "synth-$name-$type" failed "exit code $status: $(said "$results/synth-$name-$type.log")" \
                $(($(date +%s) - first_started)) "lab synth $name $type"
        fi
        if [ $status -ne 0 ]; then
            not_made[$1]=$last_status
            return 1
        fi
    fi
    if [ -f "$made" ]; then return 0; fi
    # Once is enough.
    [ -z "${not_made[$1]:-}" ] || return 1
    mkdir -p "$models"
    # Under its name only when it is whole.
    part "$2" "synth-$name-$type" lab synth "$name" "$type" "$made.part" && mv "$made.part" "$made" && return 0
    not_made[$1]=$last_status
    return 1
}
# The models that could not be made, with the status of making them.
declare -A not_made=()

# with_model PRESET:TYPE NAME: makes the model that a part needs, or says why the part is left out.
with_model() {
    # A 1B model is made in seconds.
    local making=60 status=absent
    case $1 in *1b*|tiny*) making=5 ;; esac
    model "$1" $making && return 0
    rm -f "$results/$2.json" "$results/$2.log"
    # A model that could not be made in time is late, and so is what needs it; one that could not be made at all is absent.
    [ "${not_made[$1]}" = late ] && status=late
    record "$2" "$status" "left out: its model was not made" 0
    return 1
}

# bench PRESET:TYPE SUFFIX NEEDS ARGUMENTS...
bench() {
    local preset=$1 name
    name=bench-${preset%%:*}-${preset##*:}$2
    local needs=$3
    shift 3
    with_model "$preset" "$name" || return 1
    part "$needs" "$name" lab bench device "$made" --json "$results/$name.json.new" "$@"
}

# Whether the server on a port answers that it is well.
is_healthy() {
    exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
    printf 'GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n' >&3
    head -n 1 <&3 | grep -q ' 200'
    local status=$?
    exec 3>&-
    return $status
}
export -f is_healthy

# serve_load MODEL FILE ARGUMENTS...: starts the server, loads it, and ends it.
serve_load() {
    local model=$1 file=$2 port=$((20000 + $$ % 20000)) server status
    shift 2
    tokenmill serve "$model" --device cuda --port "$port" ${SERVE_ARGS:-} &
    server=$!
    # Until it has loaded the model, or ends.
    until is_healthy "$port" 2>/dev/null; do
        kill -0 "$server" 2>/dev/null || { echo "error: the server ended" >&2; return 1; }
        sleep 0.3
    done
    tokenmill bench-serve "http://127.0.0.1:$port" --json "$file" "$@"
    status=$?
    kill "$server" 2>/dev/null
    wait "$server" 2>/dev/null
    [ $status -eq 0 ] || return $status
    grep -q '"first_failure": null' "$file" || { echo "error: the server refused a request" >&2; return 1; }
}
export -f serve_load
export SERVE_ARGS=${SERVE_ARGS:-}

# Whether there is a GPU to use is asked first: the program computes something, for which it loads the kernels that it needs.
limit=$part_limit_s
[ "$(left)" -lt "$limit" ] && limit=$(left)
begins self-test tokenmill run demo --device cuda
limited "$limit" tokenmill run demo "Once upon a time" --temp 0 -n 32 --device cuda \
    >"$results/self-test.txt" 2>"$results/self-test.log"
status=$?
seconds=$(($(date +%s) - running_since))
running=
rm -f "$results/self-test.json"
case $status in
    0) wanted self-test && record self-test passed "" $seconds "$running_command" ;;
    5)
        no_device=$(sed 's/^error: //' "$results/self-test.log" | tail -n 1)
        record self-test "no device" "skipped: $no_device" $seconds
        ;;
    # Something is there and does not work; the other parts say what.
    *) record self-test failed "exit code $status: $(said "$results/self-test.log")" $seconds ;;
esac

wanted bench && begin_first
wanted compare && part 10 compare lab device-compare "$fixtures/llama/$(pack_says compared_model)" \
    --json "$results/compare.json.new"
wanted parity && part 20 parity lab parity --device cuda --data "$fixtures" --json "$results/parity.json.new" ${PARITY_ARGS:-}
wanted conformance && part 30 conformance lab conformance --device cuda --json "$results/conformance.json.new" ${CONFORMANCE_ARGS:-}
if wanted cubins; then
    if [ -f "$cubins" ]; then
        # The variable takes the driver's compiler away.
        part 10 cubins env CUDA_DISABLE_PTX_JIT=1 tokenmill run demo "Once upon a time" --temp 0 -n 8 --device cuda
    else
        record cubins absent "skipped: the pack has no kernels compiled ahead" 0
    fi
fi
wanted bench && bench "$first" "" 20 ${BENCH_ARGS:---n-prompt 512 --n-gen 64 --batches 1,4,16,64}
# What the timing model predicts for this GPU, where it knows it.
predictions=()
predictions_name=
rm -f "$results/predictions.json"
# Others of a family have other rates.
wants=${PREDICTIONS:-$gpu}
case ${wants,,} in
    *gh200* | *h100*nvl*) name= ;;
    *h100*pcie*) name=h100-pcie ;;
    *h200*) name=h200 ;;
    *h100*) name=h100 ;;
    *a100*) name=a100 ;;
    *4090*) name=rtx-4090 ;;
    *) name= ;;
esac
file=$here/predictions-$name.json
if [ -n "$name" ] && [ -f "$file" ]; then
    predictions=(--predictions "$file")
    predictions_name=$name
    # With the results, for whoever compares.
    cp "$file" "$results/predictions.json"
fi
wanted kernels && part 45 kernel-bench lab kernel-bench --json "$results/kernel-bench.json.new" \
    ${predictions[@]+"${predictions[@]}"} ${KERNEL_ARGS:-}
wanted prefill && bench "$first" -pp4096 30 ${PREFILL_ARGS:---n-prompt 4096 --n-gen 16 --batches 1}
if wanted depth; then
    bench "$first" -depth8k 30 ${DEPTH_8K_ARGS:---n-prompt 8192 --n-gen 32 --batches 1,8 --once}
    bench "$first" -depth32k 30 ${DEPTH_32K_ARGS:---n-prompt 32768 --n-gen 32 --batches 1 --once}
fi
wanted sampled && bench "$first" -sampled 20 ${SAMPLED_ARGS:---n-prompt 512 --n-gen 64 --batches 1,16,64 --sampled --once}
# On a GPU the server has two steps in flight.
if wanted serving && with_model "$first" serving; then
    part 30 serving bash -c 'serve_load "$@"' serve_load "$made" "$results/serving.json.new" \
        ${LOAD_ARGS:---concurrency 16 --requests 64 --prompt-words 100 --max-tokens 64 --ignore-eos}
fi
wanted batches && bench "$first" -batches 30 ${MORE_ARGS:---n-prompt 128 --n-gen 32 --batches 32,64,128,256}
if wanted more; then
    for preset in $presets; do
        [ "$preset" = "$first" ] || bench "$preset" "" 20 ${BENCH_ARGS:---n-prompt 512 --n-gen 64 --batches 1,4,16,64}
    done
fi
# The command succeeds where it could say what is wrong.
examine() { tokenmill doctor --device cuda --json >"$1" && grep -q '"passed": true' "$1"; }
export -f examine
wanted doctor && part 40 doctor bash -c 'examine "$0"' "$results/doctor.json.new"
wanted conformance-cpu && anywhere 30 conformance-cpu lab conformance --device cpu --json "$results/conformance-cpu.json.new" \
    ${CONFORMANCE_ARGS:-}
wanted parity-cpu && anywhere 20 parity-cpu lab parity --device cpu --data "$fixtures" --json "$results/parity-cpu.json.new" \
    ${PARITY_ARGS:-}
# Other programs, where they are installed.
llama_bench() {
    { printf '{"llama_bench": ' && llama-bench -m "$1" -ngl 99 -fa 1 -p 512 -n 64 -o json && printf '}\n'; } >"$2"
}
export -f llama_bench
if wanted baselines; then
    if [ -n "$no_device" ]; then
        for name in baseline-llama.cpp baseline-torch baseline-ncu; do part 0 $name; done
    else
        if command -v llama-bench >/dev/null; then
            with_model "$first" baseline-llama.cpp &&
                part 40 baseline-llama.cpp bash -c 'llama_bench "$@"' llama_bench "$made" "$results/baseline-llama.cpp.json.new"
        else
            record baseline-llama.cpp absent "skipped: there is no llama-bench in PATH" 0
        fi
        # Looking for torch takes seconds itself.
        if [ "$(left)" -lt 40 ]; then
            record baseline-torch late "left out: it needs some 40 s, fewer are left" 0
        elif limited 60 python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
            part 40 baseline-torch python3 "$here/torch_baseline.py" "$results/baseline-torch.json.new"
        else
            record baseline-torch absent "skipped: there is no python3 with a torch that sees the GPU" 0
        fi
        if command -v ncu >/dev/null; then
            part 60 baseline-ncu ncu --csv --set basic --launch-count 12 lab kernel-bench --filter "gate, up" --launches 1
        else
            record baseline-ncu absent "skipped: ncu is not installed" 0
        fi
    fi
fi
if wanted sanitizer; then
    if [ -n "$no_device" ]; then
        part 0 sanitizer
    elif command -v compute-sanitizer >/dev/null; then
        # Each buffer is an allocation of its own, or the tools see no access beyond one.
        export TOKENMILL_CUDA_APART=1
        for tool in memcheck racecheck initcheck synccheck; do
            part 60 "sanitizer-$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 \
                "$bin/tokenmill" run demo "Once upon a time" --temp 0 -n 4 -c 64 --device cuda
        done
    else
        record sanitizer absent "skipped: compute-sanitizer is not installed" 0
    fi
fi

summarize
echo "$n_passed parts passed, $n_failed failed in $(($(date +%s) - started)) s; $out/summary.json, $out/results.tar.gz"
[ "$n_failed" -gt 0 ] && exit 1
[ -n "$no_device" ] && exit 5
exit 0

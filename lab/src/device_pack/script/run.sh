#!/usr/bin/env bash
# Checks and measures tokenmill on a machine with a GPU, part by part, the most telling first. After every part RESULTS_FOLDER has two files,
# all results so far as results.tar.gz, and summary.json; a run that is cut off loses one part, and one that is told to end (SIGHUP, SIGINT,
# SIGTERM) says so in both files and ends what it started. Without a GPU the parts that need none run, and the others say why they did not.
#
# ./run.sh [RESULTS_FOLDER [SECONDS]]   SECONDS: how long all of it may take; a part that does not fit into the rest is left out
#                               exit code 0: every part that ran passed; 1: one failed; 5: there is no GPU to use; 128 and more: cut off
# CALL=1, CALL=2                the parts of the first of two calls: checks, then the figures that matter most; and of the second, which measures
#                               more if the first passed, and otherwise looks for the wrong kernel and leaves its launch in failing-launch.bin
# FIRST=FILE                    the summary of the first call, if the second is on another machine or in another WORK_FOLDER
# PARTS="self-test parity"      runs only these, in their order here
# BENCH_PRESETS="llama-3-8b:Q4_K_M ..."  chooses the models of the benches, the first of them also for what follows; SMALL_PRESET that of the checks
# BENCH_ARGS, BATCHES_ARGS, ... lengths of the benches, the server's options and the load, as they stand in the files of calls
# PART_LIMIT_S, NEEDS_PERCENT   what a part may take, and the share of the usual seconds that must be left for one to begin
# RED_PARTS                     the parts of the second call if the first failed
# PARITY_ARGS, CONFORMANCE_ARGS, CHECK_ARGS, BISECT_ARGS  further arguments of these, such as --filter
# PREDICTIONS=h200              takes the predictions for this GPU instead of those for the one that is there
# CUBINS=FILE                   kernels compiled ahead, instead of the pack's
# WORK_FOLDER                   its folder tokenmill-pack gets the programs and the models (5 to 40 GB by default); beside the results
#                               unless named. Nothing there is deleted but the last run's parts.
#
# Here is what a run is given and its order; the files beside this one have a subject each.
# shellcheck disable=SC1091,SC2034
set -u
started=$(date +%s)
# Settings of the user's must not reach the parts.
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
# A number that begins with 0 would be octal.
deadline_s=$((10#$deadline_s))
call=${CALL:-}
case $call in '' | 1 | 2) ;; *) echo "CALL is 1 or 2, not $call" >&2; exit 2 ;; esac
work=$(absolute "${WORK_FOLDER:-$out.work}")
# A name of the pack's own: the folder may be one that has other things, such as somebody's home.
work=${work%/}/tokenmill-pack
# One file a part: with the programs, since some machines give few files back.
results=$work/parts
rm -rf "$results"
mkdir -p "$out" "$results" || exit 1
models=$work/models
presets=${BENCH_PRESETS:-llama-3-8b:Q4_K_M llama-3-8b:Q8_0 llama-3.2-1b:Q4_K_M llama-3-8b:BF16}
first=${presets%% *}
small=${SMALL_PRESET:-llama-3.2-1b:Q4_K_M}
part_limit_s=${PART_LIMIT_S:-$([ -n "$call" ] && echo 120 || echo 600)}
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

# pack_says KEY: a value of the pack's description of itself.
pack_says() { sed -n "s/^ *\"$1\": \"\\(.*\\)\",*\$/\\1/p" "$here/pack.json" | head -n 1; }
# Seconds left; many where there is no deadline.
left() { if [ "$deadline_s" -gt 0 ]; then echo $((started + deadline_s - $(date +%s))); else echo 1000000; fi; }
ask_gpu() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -n 1; }
gpu_state() { ask_gpu clocks.sm,clocks.mem,clocks.max.sm,power.draw,power.limit,temperature.gpu,pstate; }
gpu=$(ask_gpu name,driver_version,memory.total)
gpu_before=$(gpu_state)
began=$(date -u +%Y-%m-%dT%H:%M:%SZ)

. "$here/script/rows.sh"
. "$here/script/limits.sh"
. "$here/script/models.sh"
. "$here/script/serving.sh"
. "$here/script/checks.sh"
. "$here/script/figures.sh"
. "$here/script/others.sh"

# Whether the first call found something wrong: by its summary, or unknown without one.
verdict() { sed -n 's/^ *"verdict": "\(.*\)",$/\1/p' "$1" 2>/dev/null | head -n 1; }
first_summary=${FIRST:-$work/first.json}
case $call in
    1) parts=$first_parts ;;
    2)
        parts=$green_parts
        [ "$(verdict "$first_summary")" = red ] && parts=$red_parts
        # Nothing is known: the checks say what to do.
        [ -f "$first_summary" ] || parts="kernel-checks ways $green_parts"
        ;;
    *) parts="$first_parts $green_parts" ;;
esac
parts=${PARTS:-$parts}
wanted() { [[ " ${parts//$'\n'/ } " == *" $1 "* ]]; }

find_predictions
check_device
run_checks
# A fault is looked for at once where the first call could not say it.
if [ "$call" = 2 ] && [ "$n_failed" -gt 0 ] && ! wanted bisect; then parts=$red_parts; fi
run_bisect
run_figures
run_others
give_up_model

summarize
[ "$call" = 1 ] && cp "$out/summary.json" "$work/first.json"
echo "$n_passed parts passed, $n_failed failed in $(($(date +%s) - started)) s; $out/summary.json, $out/results.tar.gz"
[ "$n_failed" -gt 0 ] && exit 1
[ -n "$no_device" ] && exit 5
exit 0

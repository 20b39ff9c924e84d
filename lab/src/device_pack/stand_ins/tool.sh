#!/usr/bin/env bash
# Stands for llama-bench, ncu, compute-sanitizer or nvidia-smi, by the name that it is called by, in a rehearsal of the pack: takes the options that the tool
# has, with the values that they take, refuses others, and writes a little of what the tool would. The program that it is given runs.
set -u
tool=${0##*/}
refuse() {
    echo "error: $tool: $*" >&2
    exit 64
}
# number OPTION VALUE
number() { case $2 in '' | *[!0-9]*) refuse "$1 takes a number, not '$2'" ;; esac }
# one_of OPTION VALUE CHOICES
one_of() { case " $3 " in *" $2 "*) ;; *) refuse "$1 takes one of $3, not '$2'" ;; esac }

model=
while [ $# -gt 0 ]; do
    case "$tool $1" in
        "llama-bench -m")
            [ -s "${2:-}" ] || refuse "no model '${2:-}'"
            model=$2
            ;;
        "llama-bench -ngl" | "llama-bench -fa" | "llama-bench -p" | "llama-bench -n") number "$1" "${2:-}" ;;
        "llama-bench -o") one_of "$1" "${2:-}" "csv json jsonl md sql" ;;
        "ncu --csv")
            shift
            continue
            ;;
        "nvidia-smi -q")
            echo "==============NVSMI LOG=============="
            exit 0
            ;;
        "nvidia-smi --query-gpu="*)
            [ "${2:-}" = --format=csv,noheader ] || refuse "unknown argument '${2:-}'"
            echo "simulated GPU"
            exit 0
            ;;
        "ncu --clock-control") one_of "$1" "${2:-}" "base none" ;;
        "ncu --set") one_of "$1" "${2:-}" "basic detailed full none roofline" ;;
        "ncu --launch-count" | "compute-sanitizer --error-exitcode") number "$1" "${2:-}" ;;
        "compute-sanitizer --tool") one_of "$1" "${2:-}" "memcheck racecheck initcheck synccheck" ;;
        "$tool -"* | llama-bench*) refuse "unknown argument '$1'" ;;
        *) break ;;
    esac
    shift 2
done
if [ "$tool" = llama-bench ]; then
    [ -n "$model" ] || refuse "no model"
    printf '[{"model_filename": "%s", "n_prompt": 512, "n_gen": 0, "avg_ts": 0.0}]\n' "$model"
    exit 0
fi
[ $# -gt 0 ] || refuse "no program to run"
"$@" || refuse "the program ended with $?"
if [ "$tool" = ncu ]; then
    echo '"ID","Kernel Name","Metric Name","Metric Value"'
else
    [ "${TOKENMILL_CUDA_APART:-}" = 1 ] || refuse "buffers are not allocated apart"
    echo "========= ERROR SUMMARY: 0 errors"
fi

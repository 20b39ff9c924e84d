#!/usr/bin/env bash
# The parts that take longest or tell least at a first contact: the suites on GPU and CPU, all kernels, other programs, and NVIDIA's tools.
#
# Read by run.sh after models.sh. Functions are called by `bash -c` too, in single quotes.
# shellcheck disable=SC2016,SC2086,SC2154,SC2317

# The command succeeds where it could say what is wrong.
examine() { tokenmill doctor --device cuda --json >"$1" && grep -q '"passed": true' "$1"; }
llama_bench() {
    { printf '{"llama_bench": ' && llama-bench -m "$1" -ngl 99 -fa 1 -p 512 -n 64 -o json && printf '}\n'; } >"$2"
}
export -f examine llama_bench

run_others() {
    wanted conformance && part 30 conformance lab conformance --device cuda --json "$results/conformance.json.new" ${CONFORMANCE_ARGS:-}
    wanted ncu && run_ncu
    wanted baselines && run_baselines
    wanted sanitizer && run_sanitizer
    wanted doctor && part 40 doctor bash -c 'examine "$0"' "$results/doctor.json.new"
    wanted more && run_more
    wanted conformance-cpu && anywhere 30 conformance-cpu lab conformance --device cpu --json "$results/conformance-cpu.json.new" \
        ${CONFORMANCE_ARGS:-}
    wanted parity-cpu && anywhere 20 parity-cpu lab parity --device cpu --data "$fixtures" --json "$results/parity-cpu.json.new" \
        ${PARITY_ARGS:-}
}

# Counters of two kernels, at the clocks that the card has under load.
run_ncu() {
    if [ -n "$no_device" ]; then
        part 0 ncu
    elif command -v ncu >/dev/null; then
        part 30 ncu ncu --csv --set basic --clock-control none --launch-count 12 \
            lab kernel-bench --filter "${NCU_FILTER:-gate, up}" --model q4_k_m --launches 1 ${NCU_ARGS:-}
    else
        record ncu absent "skipped: ncu is not installed" 0
    fi
}

run_baselines() {
    local name
    if [ -n "$no_device" ]; then
        for name in baseline-llama.cpp baseline-torch; do part 0 $name; done
        return 0
    fi
    if command -v llama-bench >/dev/null; then
        with_model "$first" baseline-llama.cpp &&
            part 40 baseline-llama.cpp bash -c 'llama_bench "$@"' llama_bench "$made" "$results/baseline-llama.cpp.json.new"
    else
        record baseline-llama.cpp absent "skipped: there is no llama-bench in PATH" 0
    fi
    # Looking for torch takes seconds itself.
    local look=$((30 * ${NEEDS_PERCENT:-100} / 100))
    if [ "$(left)" -lt "$look" ]; then
        record baseline-torch late "left out: it needs some $look s, fewer are left" 0
    elif limited $((look > 0 ? look : 1)) python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
        part 20 baseline-torch python3 "$here/torch_baseline.py" "$results/baseline-torch.json.new"
    else
        record baseline-torch absent "skipped: there is no python3 with a torch that sees the GPU" 0
    fi
}

run_sanitizer() {
    local tool
    if [ -n "$no_device" ]; then
        part 0 sanitizer
    elif command -v compute-sanitizer >/dev/null; then
        # Each buffer is an allocation of its own, or the tools see no access beyond one.
        export TOKENMILL_CUDA_APART=1
        # The first is the verdict. The others know little of barriers in memory and of bulk copies.
        for tool in memcheck ${SANITIZER_TOOLS-racecheck initcheck synccheck}; do
            part 30 "sanitizer-$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 \
                "$bin/tokenmill" run demo "Once upon a time" --temp 0 -n 4 -c 64 --device cuda
        done
        unset TOKENMILL_CUDA_APART
    else
        record sanitizer absent "skipped: compute-sanitizer is not installed" 0
    fi
}

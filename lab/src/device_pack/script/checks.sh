#!/usr/bin/env bash
# The checks: whether there is a GPU, each kernel, the driver's compiler, the ways of launching, models against the CPU and references; and the search
# for the wrong kernel where one of them failed.
#
# Read by run.sh after models.sh.
# shellcheck disable=SC2016,SC2034,SC2086,SC2154

# In their order. Models are made next to checks that need none, after the driver's compiler, which needs all CPUs.
first_parts="facts self-test kernel-checks jit ways compare parity cubins bench kernels"
red_parts=${RED_PARTS:-bisect conformance doctor}

# Whether there is a GPU to use: the program computes something, for which it loads the kernels that it needs.
check_device() {
    local limit=$part_limit_s status seconds
    if wanted facts; then
        if command -v nvidia-smi >/dev/null; then
            anywhere 5 facts nvidia-smi -q
        else
            record facts absent "skipped: there is no nvidia-smi in PATH" 0
        fi
    fi
    [ "$(left)" -lt "$limit" ] && limit=$(left)
    # `timeout 0` would have no limit.
    [ "$limit" -gt 0 ] || limit=1
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
        # Something is there and does not work; the other parts say what. A call that has little time left says nothing about the GPU.
        *)
            if [ "$limit" -lt "$part_limit_s" ] && was_ended $status $seconds "$limit"; then
                record self-test late "took more than $limit s, all that was left" $seconds "$running_command"
            else
                record self-test failed "exit code $status: $(said "$results/self-test.log")" $seconds
            fi
            ;;
    esac
}

run_checks() {
    wanted kernel-checks && part 20 kernel-checks lab kernel-bench --check --model q4_k_m \
        --json "$results/kernel-checks.json.new" ${CHECK_ARGS:-}
    # All modules are compiled again, and the code is checked too: the check before may have had that which was compiled ahead.
    wanted jit && part 10 jit env TOKENMILL_CUDA_CUBINS= CUDA_CACHE_DISABLE=1 lab kernel-bench --check --model q4_k_m \
        --json "$results/jit.json.new" ${JIT_ARGS:---slice 64}
    # From here on the CPUs have time.
    if wanted ways; then with_model "$small" ways && begin_big &&
        part 10 ways lab device-ways "$made" --json "$results/ways.json.new"; fi
    begin_big
    if wanted compare; then
        part 10 compare lab device-compare "$fixtures/llama/$(pack_says compared_model)" --json "$results/compare.json.new"
        with_model "$small" compare-small &&
            part 15 compare-small lab device-compare "$made" --n-gen 8 --json "$results/compare-small.json.new"
    fi
    wanted parity && part 20 parity lab parity --device cuda --data "$fixtures" --json "$results/parity.json.new" ${PARITY_ARGS:-}
    if wanted cubins; then
        if [ -f "$cubins" ]; then
            # The variable takes the driver's compiler away.
            part 10 cubins env CUDA_DISABLE_PTX_JIT=1 tokenmill run demo "Once upon a time" --temp 0 -n 8 --device cuda
        else
            record cubins absent "skipped: the pack has no kernels compiled ahead" 0
        fi
    fi
    if wanted compare; then
        with_model "$first" compare-big &&
            part 20 compare-big lab device-compare "$made" --n-gen 8 --json "$results/compare-big.json.new"
    fi
}

# Begins the model of the benches, if there will be some.
begin_big() { if wanted bench || wanted compare || wanted batches; then begin_model "$first"; fi; return 0; }

# The wrong kernel: its launch is a file of its own.
run_bisect() {
    wanted bisect || return 0
    rm -f "$out/failing-launch.bin"
    with_model "$small" bisect && part 20 bisect lab device-bisect --model "$made" --json "$results/bisect.json.new" \
        --dump "$out/failing-launch.bin" ${BISECT_ARGS:-}
}

#!/usr/bin/env bash
# The figures: models by batches, prompts, depth and switches, the kernels one by one, and the server under load.
#
# Read by run.sh after models.sh and serving.sh.
# shellcheck disable=SC2016,SC2034,SC2086,SC2154

# The last of them are for the time that is left.
green_parts="batches prefill depth q8 switches serving sampled conformance ncu baselines sanitizer doctor more conformance-cpu parity-cpu"

# Finds the timing model's predictions for this GPU, if it knows the GPU.
find_predictions() {
    local wants=${PREDICTIONS:-$gpu} name file
    predictions=()
    rm -f "$results/predictions.json"
    # Others of a family have other rates.
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
}

# switched SUFFIX VARIABLE: one sequence with one thing turned off.
switched() {
    export "$2=1"
    bench "$first" "-$1" 12 ${SWITCH_ARGS:---n-prompt 512 --n-gen 64 --batches 1 --once}
    unset "$2"
}

run_figures() {
    wanted bench && bench "$first" "" 20 ${BENCH_ARGS:---n-prompt 512 --n-gen 128 --batches 1 --once}
    wanted kernels && part 45 kernel-bench lab kernel-bench --model q4_k_m --json "$results/kernel-bench.json.new" \
        ${predictions[@]+"${predictions[@]}"} ${KERNEL_ARGS:-}
    if wanted batches; then
        bench "$first" -batches 20 ${BATCHES_ARGS:---n-prompt 512 --n-gen 64 --batches 16,64 --once}
    fi
    if wanted prefill; then
        bench "$first" -pp2048 15 ${PREFILL_ARGS:---n-prompt 2048 --n-gen 16 --batches 1 --once}
        export TOKENMILL_CUDA_NO_WIDE=1
        bench "$first" -pp2048-no-wide 15 ${PREFILL_ARGS:---n-prompt 2048 --n-gen 16 --batches 1 --once}
        unset TOKENMILL_CUDA_NO_WIDE
    fi
    # The next model is made next to what needs none.
    if wanted q8; then begin_model "${presets%%:*}:Q8_0"; fi
    wanted depth && bench "$first" -depth8k 20 ${DEPTH_ARGS:---n-prompt 8192 --n-gen 32 --batches 1,8 --once}
    if wanted switches; then
        bench "$first" -plain 12 ${SWITCH_ARGS:---n-prompt 512 --n-gen 64 --batches 1 --once}
        switched in-order TOKENMILL_CUDA_IN_ORDER
        switched eager TOKENMILL_CUDA_NO_GRAPHS
        switched no-carveout TOKENMILL_CUDA_NO_CARVEOUT
    fi
    # On a GPU the server has two steps in flight.
    if wanted serving && with_model "$first" serving; then
        part 30 serving bash -c 'serve_load "$@"' serve_load "$made" "$results/serving.json.new" \
            ${LOAD_ARGS:---concurrency 16 --requests 64 --prompt-words 100 --max-tokens 64 --ignore-eos}
    fi
    wanted q8 && bench "${presets%%:*}:Q8_0" "" 20 ${BENCH_ARGS:---n-prompt 512 --n-gen 64 --batches 1 --once}
    wanted sampled && bench "$first" -sampled 20 ${SAMPLED_ARGS:---n-prompt 512 --n-gen 64 --batches 1,16,64 --sampled --once}
}

# Longer contexts, more sequences, and the other models.
run_more() {
    local preset
    bench "$first" -depth32k 30 ${DEPTH_32K_ARGS:---n-prompt 32768 --n-gen 32 --batches 1 --once}
    bench "$first" -many 30 ${MANY_ARGS:---n-prompt 128 --n-gen 32 --batches 32,64,128,256}
    for preset in $presets; do
        [ "$preset" = "$first" ] || bench "$preset" -more 20 ${MORE_ARGS:---n-prompt 512 --n-gen 64 --batches 1,4,16,64}
    done
}

// The likeliest token of each row, the lowest id among equals: what greedy sampling of unchanged logits needs.
//
// argmax_partial: best[row][part] = the highest (logit, lowest id) of the row's part, or 2^64 - 1 where a logit is NaN or
//   positive infinity. grid: (n_parts, n_rows); block: 256. logits [n_rows, n_vocab] f32; best [n_rows, n_parts] u64.
// argmax_combine: sampled[row] = id, or 0xffffffff where the row has such a logit or only negative infinity.
//   grid: n_rows; block: 32. sampled [n_rows] u32.
// Shared: 64 bytes. Alignment: 8 bytes. Measured on the simulator only: bench/runs.
#include "reduce.cuh"

constexpr uint64_t BROKEN = ~0ull;

KERNEL __launch_bounds__(256) argmax_partial(const float* logits, int n_vocab, uint64_t* best) {
    begin_after_earlier();
    __shared__ uint64_t shared[8];
    const float* row = logits + (size_t)blockIdx.y * n_vocab;
    uint64_t top = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n_vocab; i += gridDim.x * blockDim.x) {
        float x = row[i];
        uint64_t key = (uint64_t)ordered_bits(x) << 32 | (0xffffffffu - (uint32_t)i);
        if (!(x < INFINITY)) key = BROKEN;
        top = key > top ? key : top;
    }
    top = block_max(top, shared);
    if (threadIdx.x == 0) best[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = top;
}

KERNEL __launch_bounds__(32) argmax_combine(const uint64_t* best, int n_parts, uint32_t* sampled) {
    begin_after_earlier();
    uint64_t top = 0;
    for (int i = threadIdx.x; i < n_parts; i += WARP) {
        uint64_t key = best[(size_t)blockIdx.x * n_parts + i];
        top = key > top ? key : top;
    }
    top = warp_max(top);
    bool is_broken = top == BROKEN || top >> 32 <= ordered_bits(-INFINITY);
    if (threadIdx.x == 0) sampled[blockIdx.x] = is_broken ? 0xffffffffu : 0xffffffffu - (uint32_t)top;
}

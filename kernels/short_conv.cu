// A causal convolution of each channel by itself, over each sequence's rows and those before them, which its state holds.
//
// short_conv_t4, _t16: y[t][c] = bias[c] + sum_j weight[c][j] * x[t - (n_taps - 1) + j][c], then SiLU where asked; up to 4 and 16 taps.
//   grid: (ceil(n_channels / 128), ceil(tokens of the longest sequence / 32), n_seqs); block: 128; a thread has one channel of 32 tokens.
//   x, y [n_tokens, n_channels] f32; weight [n_channels, n_taps], newest row's factor last; bias [n_channels] or null; state
//   [n_taps - 1, n_channels] in each slot, oldest row first. The first thread block of a channel alone reads and writes the state.
// Shared: none. Alignment: 4 bytes, records 16 bytes. Measured on the simulator only.
//
// Bytes: a token moves 8 n_channels, and a thread block's 32 tokens read n_taps - 1 more rows, from L2, since the previous thread block reads
// them too; a sequence reads and writes 4 n_channels (n_taps - 1) of state. A prompt is limited by DRAM (8 bytes for about 2 n_taps
// operations), a decode step of few sequences by the latency of one load and one store: all loads of a thread are independent.
#include "states.cuh"

constexpr int TOKENS = 32, BATCH = 8;

template <int MAX_TAPS>
DEVICE void convolve(const float* x, const float* weight, const float* bias, int n_channels, int n_taps, int has_silu,
                     const uint32_t* seq_starts, const SeqState* states, float* state, int stride, float* y) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= n_channels) return;
    Run run = run_of(seq_starts, states, blockIdx.z);
    uint32_t begin = run.first + blockIdx.y * TOKENS, end = min(run.end, begin + TOKENS);
    if (run.first == run.end && blockIdx.y == 0) y[(size_t)blockIdx.z * n_channels + c] = 0.0f;
    if (begin >= run.end) return;
    auto input = [&](uint32_t token) { return x[(size_t)token * n_channels + c]; };
    int n_past = n_taps - 1, unused = MAX_TAPS - n_taps;
    bool is_first = blockIdx.y == 0;
    const float* past = run.slots.from == NO_SLOT ? nullptr : state + (size_t)run.slots.from * stride + c;
    // Rows and factors stand at the end of their arrays: index MAX_TAPS - 1 is the newest row's.
    float factor[MAX_TAPS], window[MAX_TAPS];
#pragma unroll
    for (int j = 0; j < MAX_TAPS; j++) {
        factor[j] = j >= unused ? weight[(size_t)c * n_taps + j - unused] : 0.0f;
        window[j] = 0.0f;
        if (j <= unused) continue;
        // The row MAX_TAPS - j before the first; the loop shifts before it adds.
        if (!is_first) window[j] = input(begin - (MAX_TAPS - j));
        else if (past) window[j] = past[(size_t)(j - unused - 1) * n_channels];
    }
    auto remember = [&](uint32_t slot) {
        float* own = state + (size_t)slot * stride + c;
#pragma unroll
        for (int j = 1; j < MAX_TAPS; j++) {
            if (j > unused) own[(size_t)(j - unused - 1) * n_channels] = window[j];
        }
    };
    // The rows before `token`, which is more than n_past behind the first.
    auto remember_inputs = [&](uint32_t slot, uint32_t token) {
        float* own = state + (size_t)slot * stride + c;
        for (int i = 0; i < n_past; i++) own[(size_t)i * n_channels] = input(token - n_past + i);
    };
    float shift = bias ? bias[c] : 0.0f;
    for (uint32_t at = begin; at < end; at += BATCH) {
        float next[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) next[i] = at + i < end ? input(at + i) : 0.0f;
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (at + i >= end) break;
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < MAX_TAPS; j++) {
                window[j] = j + 1 < MAX_TAPS ? window[j + 1] : next[i];
                if (j >= unused) sum += factor[j] * window[j];
            }
            sum += shift;
            y[(size_t)(at + i) * n_channels + c] = has_silu ? sum / (1.0f + expf(-sum)) : sum;
            if (is_first && at + i == run.slots.save_after) remember(run.slots.save);
        }
    }
    if (!is_first) return;
    bool is_whole = end == run.end;
    if (is_whole) remember(run.slots.to);
    else remember_inputs(run.slots.to, run.end);
    uint32_t save_after = run.slots.save_after;
    if (save_after != NO_SLOT && save_after >= end) remember_inputs(run.slots.save, save_after + 1);
}

#define CONVOLVE(MAX_TAPS)                                                                                                       \
    KERNEL __launch_bounds__(128)                                                                                                \
        short_conv_t##MAX_TAPS(const float* x, const float* weight, const float* bias, int n_channels, int n_taps, int has_silu, \
                               const uint32_t* seq_starts, const SeqState* states, float* state, int stride, float* y) {         \
        convolve<MAX_TAPS>(x, weight, bias, n_channels, n_taps, has_silu, seq_starts, states, state, stride, y);                 \
    }

CONVOLVE(4)
CONVOLVE(16)

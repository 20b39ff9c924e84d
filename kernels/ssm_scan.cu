// Selective state space models, token by token: Mamba 2, and Mamba as heads of width 1 whose decay depends on the state's index.
//
// ssm_scan_r4, _r16, ssm_scan_own_r4, _own_r16: for head h of group g, with dt = softplus(dt[h] + dt_bias[h]):
//     S[p][n] = exp(dt * a[h]) * S[p][n] + dt * x[h][p] * b[g][n]        own: a[n][h] instead of a[h]
//     y[h][p] = sum_n c[g][n] * S[p][n] + skip[h] * x[h][p]
//   grid: (ceil(n_heads * head_dim / (256 / lanes)), n_seqs); block: 256. A channel (h, p) has `lanes` neighbouring lanes, a power of two,
//   each of which keeps 4 or 16 (r) of its n_state values in registers: n_state <= lanes * r. x [n_tokens, n_heads * head_dim], b and c
//   [n_tokens, n_groups * n_state] in rows of their own widths; dt [n_tokens, n_heads]; a [n_heads] or [n_state, n_heads]; skip, dt_bias
//   [n_heads]; y [n_tokens, n_heads * head_dim]; matrices [n_heads * head_dim, n_state] `state_start` floats into each slot.
// Shared: none. Alignment: 4 bytes; 16 bytes where is_aligned. Measured on the simulator only.
//
// Bytes: a sequence reads and writes its state once a step, 8 n_heads head_dim n_state; that is what limits a decode step, by DRAM, and
// each thread has up to 64 bytes of it in flight. A token moves 8 n_heads head_dim for x and y, and each thread block reads its b and c,
// 8 n_state, from L2. A prompt is limited by the chain from token to token: 3 operations a value and one sum over lanes, some 100
// cycles, which the warps of an SM hide for one another; the next token's b and c are loaded meanwhile.
#include "states.cuh"

template <int R>
DEVICE void load_values(float4 (&values)[R / 4], const float* row, int lane, int lanes, int n_state, bool is_aligned) {
#pragma unroll
    for (int g = 0; g < R / 4; g++) values[g] = four_at(row, 4 * (g * lanes + lane), n_state, is_aligned);
}

struct ScanRows {
    const float *x, *b, *c, *dt;
    int x_width, b_width, c_width;
};

template <int R, bool HAS_OWN_DECAYS>
DEVICE void scan(ScanRows rows, int n_heads, int head_dim, int n_groups, int n_state, int lanes, bool is_aligned, const float* a,
                 const float* skip, const float* dt_bias, const uint32_t* seq_starts, const SeqState* states, float* state, int stride,
                 int state_start, float* y) {
    constexpr int G = R / 4;
    int width = n_heads * head_dim, lane = threadIdx.x % lanes, first_lane = threadIdx.x % WARP - lane;
    int channel = blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes;
    bool is_inside = channel < width;
    // Surplus lanes repeat the last channel without storing, because the shuffles need whole warps.
    channel = min(channel, width - 1);
    int head = channel / head_dim, group = head / (n_heads / n_groups);
    Run run = run_of(seq_starts, states, blockIdx.y);
    if (run.first == run.end) {
        if (is_inside && lane == 0) y[(size_t)blockIdx.y * width + channel] = 0.0f;
        return;
    }
    auto matrix = [&](uint32_t slot) { return state + (size_t)slot * stride + state_start + (size_t)channel * n_state; };
    float4 s[G], next_b[G], next_c[G], own_a[G];
#pragma unroll
    for (int g = 0; g < G; g++) s[g] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (is_inside && run.slots.from != NO_SLOT) load_values<R>(s, matrix(run.slots.from), lane, lanes, n_state, is_aligned);
    auto load_token = [&](uint32_t token) {
        load_values<R>(next_b, rows.b + (size_t)token * rows.b_width + group * n_state, lane, lanes, n_state, is_aligned);
        load_values<R>(next_c, rows.c + (size_t)token * rows.c_width + group * n_state, lane, lanes, n_state, is_aligned);
    };
    load_token(run.first);
    auto keep = [&](uint32_t slot) {
        if (!is_inside) return;
#pragma unroll
        for (int g = 0; g < G; g++) put_four(matrix(slot), 4 * (g * lanes + lane), n_state, is_aligned, s[g]);
    };
    if (HAS_OWN_DECAYS) {
        auto decay_of = [&](int n) { return n < n_state ? a[(size_t)n * n_heads + head] : 0.0f; };
#pragma unroll
        for (int g = 0; g < G; g++) {
            int n = 4 * (g * lanes + lane);
            own_a[g] = make_float4(decay_of(n), decay_of(n + 1), decay_of(n + 2), decay_of(n + 3));
        }
    }
    float head_a = HAS_OWN_DECAYS ? 0.0f : a[head], bias = dt_bias[head], through = skip[head];
    // The lanes of a channel prepare as many tokens at a time, one each.
    for (uint32_t at = run.first; at < run.end; at += lanes) {
        uint32_t own = at + lane;
        bool has_own = own < run.end;
        float own_dt = has_own ? softplus(rows.dt[(size_t)own * n_heads + head] + bias) : 0.0f;
        float own_x = has_own ? rows.x[(size_t)own * rows.x_width + channel] : 0.0f;
        float own_decay = HAS_OWN_DECAYS ? 0.0f : expf(own_dt * head_a), own_y = 0.0f;
        int n = min((uint32_t)lanes, run.end - at);
#pragma unroll 1
        for (int i = 0; i < n; i++) {
            float4 b[G], c[G];
#pragma unroll
            for (int g = 0; g < G; g++) b[g] = next_b[g], c[g] = next_c[g];
            if (at + i + 1 < run.end) load_token(at + i + 1);
            float dt = __shfl_sync(FULL_WARP, own_dt, first_lane + i), x = __shfl_sync(FULL_WARP, own_x, first_lane + i);
            float decay = __shfl_sync(FULL_WARP, own_decay, first_lane + i), sum = 0.0f, added = dt * x;
            auto advance = [&](float& value, float b, float c, float a) {
                value = (HAS_OWN_DECAYS ? expf(dt * a) : decay) * value + added * b;
                sum += c * value;
            };
#pragma unroll
            for (int g = 0; g < G; g++) {
                advance(s[g].x, b[g].x, c[g].x, own_a[g].x);
                advance(s[g].y, b[g].y, c[g].y, own_a[g].y);
                advance(s[g].z, b[g].z, c[g].z, own_a[g].z);
                advance(s[g].w, b[g].w, c[g].w, own_a[g].w);
            }
            sum = lanes_sum(sum, lanes) + through * x;
            if (i == lane) own_y = sum;
            if (at + i == run.slots.save_after) keep(run.slots.save);
        }
        if (has_own && is_inside) y[(size_t)own * width + channel] = own_y;
    }
    keep(run.slots.to);
}

#define SCAN(NAME, R, HAS_OWN_DECAYS)                                                                                              \
    KERNEL __launch_bounds__(256)                                                                                                  \
        NAME(const float* x, int x_width, const float* b, int b_width, const float* c, int c_width, const float* dt, int n_heads,  \
             int head_dim, int n_groups, int n_state, int lanes, int is_aligned, const float* a, const float* skip,                \
             const float* dt_bias, const uint32_t* seq_starts, const SeqState* states, float* state, int stride, int state_start,  \
             float* y) {                                                                                                           \
        ScanRows rows = {x, b, c, dt, x_width, b_width, c_width};                                                                  \
        scan<R, HAS_OWN_DECAYS>(rows, n_heads, head_dim, n_groups, n_state, lanes, is_aligned != 0, a, skip, dt_bias, seq_starts,  \
                                states, state, stride, state_start, y);                                                            \
    }

SCAN(ssm_scan_r4, 4, false)
SCAN(ssm_scan_r16, 16, false)
SCAN(ssm_scan_own_r4, 4, true)
SCAN(ssm_scan_own_r16, 16, true)

// Selective state space models, token by token: Mamba 2, and Mamba as heads of width 1 whose decay depends on the state's index.
//
// ssm_scan_r4, _r16, ssm_scan_own_r4, _own_r16: for head h of group g, with dt = softplus(dt[h] + dt_bias[h]):
//     S[p][n] = exp(dt * a[h]) * S[p][n] + dt * x[h][p] * b[g][n]        own: a[n][h] instead of a[h]
//     y[h][p] = sum_n c[g][n] * S[p][n] + skip[h] * x[h][p]
//   grid: (ceil(n_heads * head_dim / (256 / lanes)), n_seqs); block: 256. A channel (h, p) has `lanes` neighbouring lanes, a power of two,
//   each of which keeps 4 or 16 (r) of its n_state values in registers: n_state <= lanes * r. x [n_tokens, n_heads * head_dim], b and c
//   [n_tokens, n_groups * n_state] in rows of their own widths; dt [n_tokens, n_heads]; a [n_heads] or [n_state, n_heads]; skip, dt_bias
//   [n_heads]; y [n_tokens, n_heads * head_dim]; matrices [n_heads * head_dim, n_state] `state_start` floats into each slot.
// ssm_chunks: ssm_scan_r16 with 16 tokens at a time where a sequence's step has them; chunks.cuh has the formula. `positions` of the step's
//   tokens; lanes from 2 to 16; head_dim a multiple of 256 / lanes. Grid, block and arguments otherwise as ssm_scan_r16.
// Shared: none; of chunks 4 KiB times lanes and 26 KiB. Alignment: 4 bytes; 16 bytes where is_aligned. Measured on the simulator only.
//
// Bytes: a sequence reads and writes its state once a step, 8 n_heads head_dim n_state; that is what limits a decode step, by DRAM, and
// each thread has up to 64 bytes of it in flight. A token moves 8 n_heads head_dim for x and y, and each thread block reads its b and c,
// 8 n_state, from L2. A prompt is limited by the chain from token to token: 3 operations a value and one sum over lanes, some 100
// cycles, which the warps of an SM hide for one another; the next token's b and c are loaded meanwhile.
#include "chunks.cuh"

template <int R>
DEVICE void load_values(float4 (&values)[R / 4], const float* row, int lane, int lanes, int n_state, bool is_aligned) {
#pragma unroll
    for (int g = 0; g < R / 4; g++) values[g] = four_at(row, 4 * (g * lanes + lane), n_state, is_aligned);
}

struct ScanRows {
    const float *x, *b, *c, *dt;
    int x_width, b_width, c_width;
};

// LOADS_AHEAD: the next token's b and c are in registers while a token is taken.
template <int R, bool HAS_OWN_DECAYS, bool LOADS_AHEAD>
DEVICE void scan(ScanRows rows, int n_heads, int head_dim, int n_groups, int n_state, int lanes, bool is_aligned, const float* a,
                 const float* skip, const float* dt_bias, const Run& run, float* state, int stride, int state_start, float* y) {
    constexpr int G = R / 4;
    int width = n_heads * head_dim, lane = threadIdx.x % lanes, first_lane = threadIdx.x % WARP - lane;
    int channel = blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes;
    bool is_inside = channel < width;
    // Surplus lanes repeat the last channel without storing, because the shuffles need whole warps.
    channel = min(channel, width - 1);
    int head = channel / head_dim, group = head / (n_heads / n_groups);
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
    if (LOADS_AHEAD) load_token(run.first);
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
            if (!LOADS_AHEAD) load_token(at + i);
#pragma unroll
            for (int g = 0; g < G; g++) b[g] = next_b[g], c[g] = next_c[g];
            if (LOADS_AHEAD && at + i + 1 < run.end) load_token(at + i + 1);
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
        scan<R, HAS_OWN_DECAYS, true>(rows, n_heads, head_dim, n_groups, n_state, lanes, is_aligned != 0, a, skip, dt_bias,        \
                                        run_of(seq_starts, states, blockIdx.y), state, stride, state_start, y);                      \
    }

SCAN(ssm_scan_r4, 4, false)
SCAN(ssm_scan_r16, 16, false)
SCAN(ssm_scan_own_r4, 4, true)
SCAN(ssm_scan_own_r16, 16, true)

// The rows of a head, as chunks take them: keys are b, queries c, what is written dt x.
struct HeadRows {
    // Of the head, the first token's: x, b, c and dt in rows of their widths.
    ScanRows rows;
    int n_heads, head_dim, n_state;
    float a, dt_bias, skip;
    // [n_tokens, n_heads head_dim], from the head's first column on.
    float* y;

    __device__ __forceinline__ float input(uint32_t token, int column) const { return rows.x[(size_t)token * rows.x_width + column]; }
    __device__ __forceinline__ void output(uint32_t token, int column, float answer, float x) const {
        y[(size_t)token * n_heads * head_dim + column] = answer + skip * x;
    }
    __device__ __forceinline__ void stage(const ChunkRoom& room, uint32_t first, int warp, int lane) const {
        if (warp == 0) {
            float dt = softplus(rows.dt[(size_t)(first + lane % CHUNK) * n_heads] + dt_bias);
            put_decays(room, dt * a, lane);
            if (lane < CHUNK) room.rates()[lane] = dt;
        }
        for (int token = warp; token < CHUNK; token += N_WARPS) {
            put_row(room.queries(), token, rows.c + (size_t)(first + token) * rows.c_width, lane);
            put_row(room.keys(), token, rows.b + (size_t)(first + token) * rows.b_width, lane);
        }
    }
    __device__ __forceinline__ void put_row(const TokenRows& to, int token, const float* row, int lane) const {
        for (int n = 2 * lane; n < to.width; n += 2 * WARP) {
            to.put_pair(token, n, n < n_state ? row[n] : 0.0f, n + 1 < n_state ? row[n + 1] : 0.0f);
        }
    }
};

KERNEL __launch_bounds__(256, 2)
    ssm_chunks(const float* x, int x_width, const float* b, int b_width, const float* c, int c_width, const float* dt, int n_heads,
               int head_dim, int n_groups, int n_state, int lanes, int is_aligned, const float* a, const float* skip,
               const float* dt_bias, const uint32_t* seq_starts, const SeqState* states, const uint32_t* positions, float* state,
               int stride, int state_start, float* y) {
    extern __shared__ __align__(16) uint32_t words[];
    ScanRows all = {x, b, c, dt, x_width, b_width, c_width};
    auto step_by_step = [&](const Run& part) {
        scan<16, false, false>(all, n_heads, head_dim, n_groups, n_state, lanes, is_aligned != 0, a, skip, dt_bias, part, state,
                               stride, state_start, y);
    };
    Run run = run_of(seq_starts, states, blockIdx.y);
    run_sequence(run, chunks_of(run, positions), step_by_step, [&](const Run& part) {
        int columns = blockDim.x / lanes, blocks_per_head = head_dim / columns, head = blockIdx.x / blocks_per_head;
        int first_column = blockIdx.x % blocks_per_head * columns, group = head / (n_heads / n_groups) * n_state;
        HeadRows rows = {{x + head * head_dim, b + group, c + group, dt + head, x_width, b_width, c_width},
                         n_heads,
                         head_dim,
                         n_state,
                         a[head],
                         dt_bias[head],
                         skip[head],
                         y + head * head_dim};
        auto matrix = [&](uint32_t slot) {
            return state + (size_t)slot * stride + state_start + (size_t)head * head_dim * n_state;
        };
        run_chunks<false, false>(rows, matrix, {words, lanes}, part, first_column, head_dim, n_state, lanes);
    });
}

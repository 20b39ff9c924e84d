// Paged attention of many query rows, flash style on tensor cores, for f16 stores.
//
// The formula is that of attention_decode.cu: causal, or in both directions where `both` is 1; optional window
// or chunks, cap, slopes and sinks.
// attention_prefill_d64, _d128: heads of up to 64 or 128 values.
//   grid: (n_kv_heads, ceil(longest run of tokens * group / 128), n_seqs) where group = n_heads / n_kv_heads; block: 256.
//   A row is a token of one sequence with one of the query heads that share a KV head, heads fastest; a thread block takes 128
//   rows, a warp 16 of them, and walks over the context 64 positions at a time, so that these heads read keys and values once.
//   A tile beyond its sequence's rows returns at once, so a grid captured for a bucket serves every batch below it.
// Shapes: q, out [n_tokens, n_heads, dim] f32; positions [n_tokens] u32, consecutive within a sequence; seq_starts [n_seqs + 1],
//   page_starts [n_seqs + 1], pages [..] u32; stores as kv.cuh says. A sequence whose first position is 0xffffffff is padding;
//   its rows become zeros.
// Queries and weights are split into two halves each (value and rest), so products keep about 21 bits as f32 ones would. The
// queries stay in registers: a lane reads the pairs of values that its tensor core operands have, a whole sector with three others.
// Shared: 2 * 64 * (D + 8) * 2 bytes, dynamic: 18432 (D = 64) and 34816 (D = 128). Values arrive by asynchronous copies while the
// scores are computed, and the next keys while they are weighted. Measured on the simulator only: bench/runs.
#include "kv.cuh"
#include "mma.cuh"

constexpr int TILE = 64;    // positions of a tile
constexpr int ROWS = 128;   // query rows of a thread block
constexpr int THREADS = 256;

template <int D>
DEVICE void attention_prefill(const float* q, float* out, const uint32_t* positions, const uint32_t* seq_starts,
                              const uint32_t* page_starts, const uint32_t* pages, const __half* k_store,
                              const __half* v_store, const float* sinks, const float* slopes, float scale, float cap,
                              int window, int is_chunked, int both,
                              int n_heads, int n_kv_heads, int dim_k, int dim_v) {
    constexpr int STRIDE = D + 8;
    extern __shared__ __align__(16) __half shared[];
    __half(*keys)[STRIDE] = (__half(*)[STRIDE])shared;
    __half(*values)[STRIDE] = keys + TILE;
    const int g_kv = blockIdx.x, seq = blockIdx.z, group = n_heads / n_kv_heads, row0 = blockIdx.y * ROWS;
    const int first = seq_starts[seq], n_rows = ((int)seq_starts[seq + 1] - first) * group - row0;
    if (n_rows <= 0) return;
    const int thread = threadIdx.x, lane = thread % WARP, warp = thread / WARP, t = lane % 4;
    const uint32_t position0 = positions[first];
    if (position0 == 0xffffffffu) {
        for (int i = thread; i < min(n_rows, ROWS) * dim_v; i += THREADS) {
            int row = row0 + i / dim_v;
            out[((size_t)(first + row / group) * n_heads + g_kv * group + row % group) * dim_v + i % dim_v] = 0.0f;
        }
        return;
    }
    const uint32_t* table = pages + page_starts[seq];
    const int row_k = kv_row(dim_k), row_v = kv_row(dim_v);
    // The last position that a query at p sees, and the last that one of the rows sees.
    const int length = (int)(seq_starts[seq + 1] - first);
    auto last_seen = [&](int p) { return both ? (window > 0 ? min(length - 1, p + window - 1) : length - 1) : p; };
    const int last = last_seen(position0 + (row0 + min(n_rows, ROWS) - 1) / group);
    // Pages before the oldest position that the first token sees may be gone.
    const int oldest = first_seen((int)position0 + row0 / group, window, is_chunked);
    const int begin = oldest / TILE * TILE;

    // A lane's two rows: whether they are there, their head and position, and where they stand in the queries and outputs.
    bool is_there[2];
    int head[2], position[2], first_position[2];
    size_t place[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = warp * 16 + lane / 4 + 8 * r, token = (row0 + row) / group;
        is_there[r] = row < n_rows;
        head[r] = g_kv * group + (row0 + row) % group;
        position[r] = position0 + token;
        first_position[r] = first_seen(position[r], window, is_chunked);
        place[r] = (size_t)(first + token) * n_heads + head[r];
    }
    uint32_t queries[D / 16][4], rests[D / 16][4];
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 pair = make_float2(0.0f, 0.0f);
            if (is_there[i % 2]) pair = load_pair(q + place[i % 2] * dim_k, k * 16 + i / 2 * 8 + 2 * t, dim_k);
            split(pair.x * scale, pair.y * scale, queries[k][i], rests[k][i]);
        }

    auto fetch = [&](const __half* store, int row, __half(*to)[STRIDE], int base) {
        for (int i = thread; i < TILE * D / 8; i += THREADS) {
            int local = i / (D / 8), c = i % (D / 8), j = base + local;
            bool is_there = j >= oldest && j <= last && c * 8 < row;
            const __half* from = store;
            if (is_there) from += kv_index(table[j / PAGE] * PAGE + j % PAGE, g_kv, n_kv_heads, row) + c * 8;
            copy16(&to[local][c * 8], from, is_there);
        }
        commit_copies();
    };

    float slope[2] = {};
    if (slopes) slope[0] = slopes[head[0]], slope[1] = slopes[head[1]];
    float acc[D / 8][4] = {};
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    fetch(k_store, row_k, keys, begin);
#pragma unroll 1
    for (int base = begin; base <= last; base += TILE) {
        wait_copies<0>();
        __syncthreads();  // The keys are there, and everyone is done with the values of the step before.
        fetch(v_store, row_v, values, base);

        float s[TILE / 8][4] = {};
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
#pragma unroll
            for (int n = 0; n < TILE / 16; n++) {
                uint32_t b[4];
                load_matrices(b, &keys[n * 16 + lane / 16 * 8 + lane % 8][k * 16 + lane / 8 % 2 * 8]);
                mma(s[2 * n], queries[k], b[0], b[1]);
                mma(s[2 * n], rests[k], b[0], b[1]);
                mma(s[2 * n + 1], queries[k], b[2], b[3]);
                mma(s[2 * n + 1], rests[k], b[2], b[3]);
            }
        }
        wait_copies<0>();
        __syncthreads();  // The values are there, and everyone is done with the keys.
        if (base + TILE <= last) fetch(k_store, row_k, keys, base + TILE);

        float highest[2] = {top[0], top[1]};
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int j = base + n * 8 + 2 * t + i % 2;
                bool is_seen = j <= last_seen(position[i / 2]) && j >= first_position[i / 2];
                float biased = s[n][i] - slope[i / 2] * fabsf((float)(position[i / 2] - j));
                float x = cap > 0.0f ? cap * tanhf(biased / cap) : biased;
                s[n][i] = is_seen ? x : -INFINITY;
                highest[i / 2] = fmaxf(highest[i / 2], s[n][i]);
            }
        }
        float factor[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            highest[r] = row_max(highest[r]);
            // A row that has seen nothing yet keeps zeros.
            factor[r] = highest[r] == -INFINITY ? 1.0f : expf(top[r] - highest[r]);
            top[r] = highest[r];
            sum[r] *= factor[r];
        }
#pragma unroll
        for (int d = 0; d < D / 8; d++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[d][i] *= factor[i / 2];
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[n][i] = s[n][i] == -INFINITY ? 0.0f : expf(s[n][i] - top[i / 2]);
                sum[i / 2] += s[n][i];
            }

#pragma unroll
        for (int n = 0; n < TILE / 16; n++) {
            uint32_t a[4], rest[4];
            split(s[2 * n][0], s[2 * n][1], a[0], rest[0]);
            split(s[2 * n][2], s[2 * n][3], a[1], rest[1]);
            split(s[2 * n + 1][0], s[2 * n + 1][1], a[2], rest[2]);
            split(s[2 * n + 1][2], s[2 * n + 1][3], a[3], rest[3]);
#pragma unroll
            for (int d = 0; d < D / 16; d++) {
                uint32_t b[4];
                load_matrices_transposed(b, &values[n * 16 + lane % 16][d * 16 + lane / 16 * 8]);
                mma(acc[2 * d], a, b[0], b[1]);
                mma(acc[2 * d], rest, b[0], b[1]);
                mma(acc[2 * d + 1], a, b[2], b[3]);
                mma(acc[2 * d + 1], rest, b[2], b[3]);
            }
        }
    }

#pragma unroll
    for (int r = 0; r < 2; r++) {
        float denominator = row_sum(sum[r]), weight = 1.0f;
        if (sinks) {
            float higher = fmaxf(top[r], sinks[head[r]]);
            weight = expf(top[r] - higher);
            denominator = denominator * weight + expf(sinks[head[r]] - higher);
        }
        if (!is_there[r]) continue;
#pragma unroll
        for (int d = 0; d < D / 8; d++)
            store_pair(out + place[r] * dim_v, d * 8 + 2 * t, dim_v, acc[d][2 * r] * weight / denominator,
                       acc[d][2 * r + 1] * weight / denominator);
    }
}

#define ATTENTION_PREFILL(D)                                                                                            \
    KERNEL __launch_bounds__(THREADS, 1)                                                                                \
        attention_prefill_d##D(const float* q, float* out, const uint32_t* positions, const uint32_t* seq_starts,       \
                               const uint32_t* page_starts, const uint32_t* pages, const __half* k_store,               \
                               const __half* v_store, const float* sinks, const float* slopes, float scale, float cap,  \
                               int window, int is_chunked, int both,                                                    \
                               int n_heads, int n_kv_heads, int dim_k, int dim_v) {                                     \
        attention_prefill<D>(q, out, positions, seq_starts, page_starts, pages, k_store, v_store, sinks, slopes, scale, cap, \
                             window, is_chunked, both, n_heads, n_kv_heads, dim_k, dim_v);                                          \
    }

ATTENTION_PREFILL(64)
ATTENTION_PREFILL(128)

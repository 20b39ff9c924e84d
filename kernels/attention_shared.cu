// Attention of many tokens over pages that all of them see: a system prompt before each of many sequences. What is behind those pages, and the
// sum of both, are attention_decode.cu's (attention_rest_*).
//
// For each item [first row, rows, first page, pages, record] of u32, with the tokens rows[first row ..] and the pages pages[first page ..], head h
// of a token and its KV head g, over the positions j of those pages:
//   s[j] = scale * dot(q[token][h], k[j][g]), then cap * tanh(s / cap) where cap > 0; m = max_j s[j];
//   partial[token][h][record] = (sum_j exp(s[j] - m) v[j][g], then m and sum_j exp(s[j] - m)).
// attention_shared_f16_d{64,128}: f16 keys and values of so many numbers.
//   grid: (n_kv_heads, items, ceil(most rows of an item * group / 64)); block: 128. An item of no rows is nothing, so a grid captured for a
//   number of items serves every lower one.
// Shapes: q [n_tokens, n_heads, dim] f32, normed and rotated; items [gridDim.y, 5], rows, pages u32; store as kv.cuh says; partial
//   [n_tokens, n_heads, n_splits, dim + 4] f32. Pages of an item are an even number, and every one is whole.
//
// A thread block has 64 rows, each a token with one of the heads that share a KV head; a warp 16 of them, as fragments of mma.m16n8k16. Keys and
// values go through a ring of three stages of two pages, of which each warp copies one tile. Queries and weights are split into two halves
// each (value and rest), as decode attention has them.
// Shared, dynamic: 12 tiles of 16 rows (52 KB for 128 numbers).
// Bytes: keys and values once for 64 rows; 4 (dim + 4) bytes a row and item. On tensor cores, 4 dim FMA a row and position: two products with
// keys and two with values. Limit: by the estimate latency, of a stage waiting for the one before.
// Measured on the simulator only: bench/runs.
#include "attention_tiles.cuh"
#include "early.cuh"

constexpr int WARPS = 4;
constexpr int ROWS = 16 * WARPS;
constexpr int STAGES = 3;
constexpr int AT_ONCE = 2;                   // pages of a stage
constexpr int ITEM_WORDS = 5;

template <int D>
DEVICE void attend_shared(const float* q, const uint32_t* items, const uint32_t* rows, const uint32_t* pages, const __half* k_store,
                          const __half* v_store, float scale, float cap, int n_heads, int n_kv_heads, int n_splits, float* partial) {
    extern __shared__ __align__(16) uint8_t shared[];
    constexpr int STRIDE = (D / 8 | 1) * 16, TILE = PAGE * STRIDE, STEPS = D / 16;
    const uint32_t* item = items + blockIdx.y * ITEM_WORDS;
    const int first_row = item[0], n_tokens = item[1], n_pages = item[3], record = item[4];
    const uint32_t* table = pages + item[2];
    const int g = blockIdx.x, group = n_heads / n_kv_heads, row0 = blockIdx.z * ROWS, n_rows = n_tokens * group;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, t = lane % 4;
    let_next_begin();
    await_earlier();
    if (row0 >= n_rows) return;

    // The tiles of a stage are a warp's each: keys of two pages, then their values.
    const TileCopy<__half, D / 8> copy({}, D, D);
    const __half* store = warp < AT_ONCE ? k_store : v_store;
    const int n_steps = n_pages / AT_ONCE, own = warp % AT_ONCE;
    uint32_t page = table[own];
    auto copy_step = [&](int step) {
        if (step < n_steps) {
            uint8_t* tile = shared + (step % STAGES * WARPS + warp) * TILE;
            copy.start(tile, store, page, g, n_kv_heads, 0, D, 0, 0, PAGE);
            if (step + 1 < n_steps) page = table[(step + 1) * AT_ONCE + own];
        }
        commit_copies();
    };
#pragma unroll 1
    for (int step = 0; step < STAGES - 1; step++) copy_step(step);

    bool is_there[2];
    size_t place[2];
    uint32_t value[STEPS][4], rest[STEPS][4];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = row0 + warp * 16 + lane / 4 + 8 * r;
        is_there[r] = row < n_rows;
        const int token = rows[first_row + (is_there[r] ? row / group : 0)];
        place[r] = (size_t)token * n_heads + g * group + row % group;
        const float* from = q + place[r] * D + 2 * t;
#pragma unroll
        for (int k = 0; k < STEPS; k++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float2 x = is_there[r] ? *(const float2*)(from + k * 16 + half * 8) : make_float2(0.0f, 0.0f);
                split_beyond(x.x * scale, x.y * scale, value[k][2 * half + r], rest[k][2 * half + r]);
            }
    }

    float acc[2 * STEPS][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
#pragma unroll 1
    for (int step = 0; step < n_steps; step++) {
        wait_copies<STAGES - 2>();
        __syncthreads();
        copy_step(step + STAGES - 1);
        const uint8_t* tiles = shared + step % STAGES * WARPS * TILE;
        float s[2 * AT_ONCE][4] = {};
        const uint8_t* keys = tiles + (lane % 8 + lane / 16 * 8) * STRIDE + lane / 8 % 2 * 16;
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            uint32_t b[AT_ONCE][4];
#pragma unroll
            for (int p = 0; p < AT_ONCE; p++) load_matrices(b[p], (const __half*)(keys + p * TILE + k * 32));
#pragma unroll
            for (int n = 0; n < 2 * AT_ONCE; n++) mma(s[n], value[k], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
#pragma unroll
            for (int n = 0; n < 2 * AT_ONCE; n++) mma(s[n], rest[k], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
        float highest[2] = {top[0], top[1]}, factor[2];
#pragma unroll
        for (int n = 0; n < 2 * AT_ONCE; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (cap > 0.0f) s[n][i] = cap * tanhf(s[n][i] / cap);
                highest[i / 2] = fmaxf(highest[i / 2], s[n][i]);
            }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            highest[r] = row_max(highest[r]);
            factor[r] = expf(top[r] - highest[r]);
            top[r] = highest[r];
            sum[r] *= factor[r];
        }
#pragma unroll
        for (int d = 0; d < 2 * STEPS; d++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[d][i] *= factor[i / 2];
        const uint8_t* values = tiles + AT_ONCE * TILE + lane % 16 * STRIDE + lane / 16 * 16;
#pragma unroll
        for (int p = 0; p < AT_ONCE; p++) {
            uint32_t weight[4], lost[4];
#pragma unroll
            for (int n = 0; n < 2; n++) {
                float(&x)[4] = s[2 * p + n];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    x[i] = expf(x[i] - top[i / 2]);
                    sum[i / 2] += x[i];
                }
                split(x[0], x[1], weight[2 * n], lost[2 * n]);
                split(x[2], x[3], weight[2 * n + 1], lost[2 * n + 1]);
            }
#pragma unroll
            for (int m = 0; m < STEPS; m += 2) {
                uint32_t b[2][4];
#pragma unroll
                for (int i = 0; i < 2; i++) load_matrices_transposed(b[i], (const __half*)(values + p * TILE + (m + i) * 32));
#pragma unroll
                for (int n = 0; n < 4; n++) mma(acc[2 * m + n], weight, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
#pragma unroll
                for (int n = 0; n < 4; n++) mma(acc[2 * m + n], lost, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float denominator = row_sum(sum[r]);
        if (!is_there[r]) continue;
        float* to = partial + (place[r] * n_splits + record) * (D + 4);
#pragma unroll
        for (int d = 0; d < 2 * STEPS; d++) *(float2*)(to + d * 8 + 2 * t) = make_float2(acc[d][2 * r], acc[d][2 * r + 1]);
        if (t == 0) *(float2*)(to + D) = make_float2(top[r], denominator);
    }
}

#define SHARED_ATTENTION(D)                                                                                                       \
    KERNEL __launch_bounds__(128, 2)                                                                                              \
        attention_shared_f16_d##D(const float* q, const uint32_t* items, const uint32_t* rows, const uint32_t* pages,             \
                                  const __half* k_store, const __half* v_store, float scale, float cap, int n_heads,              \
                                  int n_kv_heads, int n_splits, float* partial) {                                                 \
        attend_shared<D>(q, items, rows, pages, k_store, v_store, scale, cap, n_heads, n_kv_heads, n_splits, partial);            \
    }

SHARED_ATTENTION(64)
SHARED_ATTENTION(128)

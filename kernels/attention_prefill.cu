// Paged attention of many query rows, flash style on tensor cores, for f16 stores.
//
// The formula is that of attention_decode.cu: causal, or in both directions where `both` is 1; optional window
// or chunks, cap, slopes and sinks.
// attention_prefill_d64, _d128, _d192, _d256: heads of up to so many values.
//   grid: (n_kv_heads, ceil(longest run of tokens * group / rows), n_seqs) where group = n_heads / n_kv_heads; block: 256.
//   A row is a token of one sequence with one of the query heads that share a KV head, heads fastest. A thread block takes 128 rows, of
//   heads beyond 128 values 64, and walks over the context 64 positions at a time, so that these heads read keys and values once.
//   A warp has 16 rows; of wide heads two warps do, each with half of the columns, and add their scores up in shared memory.
//   A tile beyond its sequence's rows returns at once, so a grid captured for a bucket serves every batch below it.
// Shapes: q, out [n_tokens, n_heads, dim] f32; positions [n_tokens] u32, consecutive within a sequence; seq_starts [n_seqs + 1],
//   page_starts [n_seqs + 1], pages [..] u32; stores as kv.cuh says. A sequence whose first position is 0xffffffff is padding;
//   its rows become zeros.
// Queries and weights are split into two halves each (value and rest), so products keep about 21 bits as f32 ones would. The
// queries stay in registers: a lane reads the pairs of values that its tensor core operands have, a whole sector with three others.
// Shared: 2 * 64 * (D + 8) * 2 bytes, dynamic, and 32768 for the scores of two warps: 18432 (D = 64), 34816 (128), 83968 (192), 100352 (256).
// Values arrive by asynchronous copies while the scores are computed, and the next keys while they are weighted. Measured on the
// simulator only: bench/runs.
#include "attention_runs.cuh"

constexpr int TILE = 64;  // positions of a tile

// SPLIT warps share 16 rows.
template <int D, int SPLIT>
DEVICE void attention_prefill(RUN_PARAMETERS(__half, __half)) {
    constexpr int STRIDE = D + 8, ROWS = 128 / SPLIT, COLUMNS = D / SPLIT;
    extern __shared__ __align__(16) __half shared[];
    __half(*keys)[STRIDE] = (__half(*)[STRIDE])shared;
    __half(*values)[STRIDE] = keys + TILE;
    const SharedScores<TILE / 8> scores = {(float4*)(values + TILE)};
    const int g_kv = blockIdx.x, seq = blockIdx.z, group = n_heads / n_kv_heads, row0 = longest_first() * ROWS;
    const int first = seq_starts[seq], length = (int)seq_starts[seq + 1] - first, n_rows = length * group - row0;
    if (n_rows <= 0) return;
    const int thread = threadIdx.x, lane = thread % WARP, warp = thread / WARP, t = lane % 4;
    const uint32_t position0 = positions[first];
    const Run run = {first, length, group, g_kv * group, row0, n_rows, (int)position0, window, is_chunked, both, n_heads};
    if (position0 == 0xffffffffu) {
        write_zeros(run, ROWS, out, dim_v);
        return;
    }
    const uint32_t* table = pages + page_starts[seq];
    const int row_k = kv_row(dim_k), row_v = kv_row(dim_v);
    const int last = run.last(ROWS), oldest = run.oldest(), begin = oldest / TILE * TILE;

    const LaneRows rows(run, warp / SPLIT * 16, slopes);
    // The first of the warp's columns.
    const int column0 = warp % SPLIT * COLUMNS;
    uint32_t queries[COLUMNS / 16][4], rests[COLUMNS / 16][4];
#pragma unroll
    for (int k = 0; k < COLUMNS / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 pair = make_float2(0.0f, 0.0f);
            if (rows.is_there[i % 2])
                pair = load_pair(q + rows.place[i % 2] * dim_k, column0 + k * 16 + i / 2 * 8 + 2 * t, dim_k);
            split_beyond(pair.x * scale, pair.y * scale, queries[k][i], rests[k][i]);
            // Else the compiler leaves a part of the split to the loop, for which there are not enough registers.
            asm volatile("" : "+r"(queries[k][i]), "+r"(rests[k][i]));
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

    float acc[COLUMNS / 8][4] = {};
    Weights weights;
    fetch(k_store, row_k, keys, begin);
#pragma unroll 1
    for (int base = begin; base <= last; base += TILE) {
        wait_copies<0>();
        __syncthreads();  // The keys are there, and everyone is done with the values of the step before.
        fetch(v_store, row_v, values, base);

        float s[TILE / 8][4] = {};
#pragma unroll
        for (int k = 0; k < COLUMNS / 16; k++) {
#pragma unroll
            for (int n = 0; n < TILE / 16; n++) {
                uint32_t b[4];
                load_matrices(b, &keys[n * 16 + lane / 16 * 8 + lane % 8][column0 + k * 16 + lane / 8 % 2 * 8]);
                mma(s[2 * n], queries[k], b[0], b[1]);
                mma(s[2 * n], rests[k], b[0], b[1]);
                mma(s[2 * n + 1], queries[k], b[2], b[3]);
                mma(s[2 * n + 1], rests[k], b[2], b[3]);
            }
        }
        if (SPLIT == 2) scores.put(s);
        wait_copies<0>();
        __syncthreads();  // The values are there, and the scores of both halves, and everyone is done with the keys.
        if (base + TILE <= last) fetch(k_store, row_k, keys, base + TILE);
        if (SPLIT == 2) scores.add(s);
        weights.add(run, rows, base, cap, s, acc);

#pragma unroll
        for (int n = 0; n < TILE / 16; n++) {
            uint32_t a[4], rest[4];
            split(s[2 * n][0], s[2 * n][1], a[0], rest[0]);
            split(s[2 * n][2], s[2 * n][3], a[1], rest[1]);
            split(s[2 * n + 1][0], s[2 * n + 1][1], a[2], rest[2]);
            split(s[2 * n + 1][2], s[2 * n + 1][3], a[3], rest[3]);
#pragma unroll
            for (int d = 0; d < COLUMNS / 16; d++) {
                uint32_t b[4];
                load_matrices_transposed(b, &values[n * 16 + lane % 16][column0 + d * 16 + lane / 16 * 8]);
                mma(acc[2 * d], a, b[0], b[1]);
                mma(acc[2 * d], rest, b[0], b[1]);
                mma(acc[2 * d + 1], a, b[2], b[3]);
                mma(acc[2 * d + 1], rest, b[2], b[3]);
            }
        }
    }

#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float2 whole = weights.whole(r, sinks, rows.head[r]);
        if (!rows.is_there[r]) continue;
#pragma unroll
        for (int d = 0; d < COLUMNS / 8; d++)
            store_pair(out + rows.place[r] * dim_v, column0 + d * 8 + 2 * t, dim_v, acc[d][2 * r] * whole.x / whole.y,
                       acc[d][2 * r + 1] * whole.x / whole.y);
    }
}

#define ATTENTION_PREFILL(D, SPLIT)                                                                         \
    KERNEL __launch_bounds__(THREADS, 1) attention_prefill_d##D(RUN_PARAMETERS(__half, __half)) {           \
        attention_prefill<D, SPLIT>(RUN_ARGUMENTS);                                                         \
    }

ATTENTION_PREFILL(64, 1)
ATTENTION_PREFILL(128, 1)
ATTENTION_PREFILL(192, 2)
ATTENTION_PREFILL(256, 2)

// Paged attention of many query rows by matrix operations of warpgroups (warpgroups.cuh), for f16 stores; compute capability 9.0 only.
//
// attention_wide_d64, _d128: heads of up to so many values. Parameters, rows, shapes and grid are those of attention_prefill.cu, and so is the
// formula but for caps and slopes, which are not applied: the host takes the other kernel for them. 128 rows a thread block of 256, 64 positions at a time.
// Queries and weights are single f16 numbers (2^-11 each), sums and scores f32. A query's number beyond f16 becomes f16's largest.
// Keys of the next tile are multiplied next to the values of this one; its scores become weights while the values are still multiplied. Keys and values come
// by asynchronous copies into two buffers each: rows of 128 bytes for each 64 columns, swizzled by 128 bytes.
// Shared: dynamic, 4 * 64 * D * 2 + 1024 bytes: 33792 (D = 64), 66560 (128). Alignment: 16 bytes. Measured on the simulator only.
#include "attention_runs.cuh"
#include "warpgroups.cuh"

constexpr int TILE = 64;  // positions of a tile
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.69314718f;

// The compiler moves no use of them over this.
template <int N>
DEVICE void hold(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i])::"memory");
}
DEVICE float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE uint32_t pair_of_halves(float x, float y) {
    const __half2 pair = __floats2half2_rn(x, y);
    return *(const uint32_t*)&pair;
}

template <int D>
DEVICE void attention_wide(RUN_PARAMETERS(__half, __half)) {
    constexpr int ROWS = 128, HALF = TILE * 128, BUFFER = D / 64 * HALF;
    extern __shared__ __align__(1024) uint8_t wide_shared[];
    const int g_kv = blockIdx.x, seq = blockIdx.z, group = n_heads / n_kv_heads, row0 = longest_first() * ROWS;
    const int first = seq_starts[seq], length = (int)seq_starts[seq + 1] - first, n_rows = length * group - row0;
    if (n_rows <= 0) return;
    const int thread = threadIdx.x, t = thread % 4;
    const uint32_t position0 = positions[first];
    const Run run = {first, length, group, g_kv * group, row0, n_rows, (int)position0, window, is_chunked, both, n_heads};
    if (position0 == 0xffffffffu) {
        write_zeros(run, ROWS, out, dim_v);
        return;
    }
    const uint32_t* table = pages + page_starts[seq];
    const uint32_t keys = (shared_at(wide_shared) + 1023) & ~1023u, values = keys + 2 * BUFFER;
    const int last = run.last(ROWS), oldest = run.oldest(), begin = oldest / TILE * TILE, n_tiles = (last - begin) / TILE + 1;

    auto fetch = [&](const __half* store, int row, uint32_t to, int tile) {
#pragma unroll
        for (int i = thread; i < TILE * D / 8; i += THREADS) {
            const int local = i / (D / 8), c = i % (D / 8), j = begin + tile * TILE + local;
            const bool is_there = j >= oldest && j <= last && c * 8 < row;
            const __half* from = store;
            if (is_there) from += kv_index(table[j / PAGE] * PAGE + j % PAGE, g_kv, n_kv_heads, row) + c * 8;
            const uint32_t at = to + tile % 2 * BUFFER + c / 8 * HALF + local * 128 + (c % 8 ^ local % 8) * 16;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(is_there ? 16 : 0) : "memory");
        }
    };
    const int row_k = kv_row(dim_k), row_v = kv_row(dim_v);
    fetch(k_store, row_k, keys, 0);
    commit_copies();
    fetch(v_store, row_v, values, 0);
    if (n_tiles > 1) fetch(k_store, row_k, keys, 1);
    commit_copies();

    const LaneRows rows(run, thread / WARP * 16, nullptr);
    uint32_t queries[D / 16][4];
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 pair = make_float2(0.0f, 0.0f);
            if (rows.is_there[i % 2]) pair = load_pair(q + rows.place[i % 2] * dim_k, k * 16 + i / 2 * 8 + 2 * t, dim_k);
            queries[k][i] = pair_of_halves(bounded_half(pair.x * (scale * LOG2_E)), bounded_half(pair.y * (scale * LOG2_E)));
            asm volatile("" : "+r"(queries[k][i]));
        }

    float s[TILE / 2] = {}, sums[D / 2] = {};
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f}, factor[2];
    uint32_t weights[TILE / 16][4];
    auto multiply_keys = [&](int tile) {
        const uint32_t at = (keys + tile % 2 * BUFFER) / 16;
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            const uint64_t matrix = group_matrix(at + k / 4 * (HALF / 16) + k % 4 * 2);
            if (k == 0) multiply_wide<false>(s, queries[k], matrix);
            else multiply_wide(s, queries[k], matrix);
        }
        commit_group();
    };
    auto multiply_values = [&](int tile) {
        const uint32_t at = (values + tile % 2 * BUFFER) / 16 | (uint32_t)(HALF / 16) << 16;
#pragma unroll
        for (int k = 0; k < TILE / 16; k++) multiply_wide<true, true>(sums, weights[k], group_matrix(at + k * (16 * 128 / 16)));
        commit_group();
    };
    // Scores of a tile become weights; sums so far are still to be multiplied by `factor`.
    auto weigh = [&](int tile) {
        const int base = begin + tile * TILE;
        bool sees_all = true;
#pragma unroll
        for (int r = 0; r < 2; r++)
            sees_all = sees_all && base >= rows.first_position[r] && base + TILE - 1 <= run.last_seen(rows.position[r]);
        if (!__all_sync(FULL_WARP, sees_all)) {
#pragma unroll
            for (int i = 0; i < TILE / 2; i++) {
                const int j = base + i / 4 * 8 + 2 * t + i % 2, r = i / 2 % 2;
                if (j > run.last_seen(rows.position[r]) || j < rows.first_position[r]) s[i] = -INFINITY;
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float highest = top[r];
#pragma unroll
            for (int i = 0; i < TILE / 8; i++) highest = fmaxf(highest, fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
            highest = row_max(highest);
            // A row that has seen nothing yet keeps zeros.
            const float from = highest == -INFINITY ? 0.0f : highest;
            factor[r] = power_of_two(top[r] - from);
            top[r] = highest;
            sum[r] *= factor[r];
#pragma unroll
            for (int i = 0; i < TILE / 8; i++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float& x = s[4 * i + 2 * r + e];
                    x = power_of_two(x - from);
                    sum[r] += x;
                }
        }
    };
    auto pack = [&] {
#pragma unroll
        for (int k = 0; k < TILE / 16; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) weights[k][i] = pair_of_halves(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
    };
    auto show_copies = [] { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); };

    wait_copies<1>();
    show_copies();
    __syncthreads();
    hold(s);
    fence_group();
    multiply_keys(0);
    wait_group<0>(s);
    weigh(0);
    pack();
#pragma unroll 1
    for (int tile = 0; tile + 1 < n_tiles; tile++) {
        wait_copies<0>();
        show_copies();
        __syncthreads();  // The next keys and these values are there, and everyone is done with these keys and the values before.
        fetch(v_store, row_v, values, tile + 1);
        if (tile + 2 < n_tiles) fetch(k_store, row_k, keys, tile + 2);
        commit_copies();
        hold(s);
        fence_group();
        multiply_keys(tile + 1);
        multiply_values(tile);
        wait_group<1>(s);
        hold(s);
        weigh(tile + 1);
        hold(s);
        wait_group<0>(sums);
        hold(s);
#pragma unroll
        for (int i = 0; i < D / 2; i++) sums[i] *= factor[i / 2 % 2];
        pack();
    }
    wait_copies<0>();
    show_copies();
    __syncthreads();
    fence_group();
    multiply_values(n_tiles - 1);
    wait_group<0>(sums);

    Weights all;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        all.top[r] = top[r] * LN_2, all.sum[r] = sum[r];
        const float2 whole = all.whole(r, sinks, rows.head[r]);
        if (!rows.is_there[r]) continue;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            store_pair(out + rows.place[r] * dim_v, n * 8 + 2 * t, dim_v, sums[4 * n + 2 * r] * whole.x / whole.y,
                       sums[4 * n + 2 * r + 1] * whole.x / whole.y);
    }
}

#define ATTENTION_WIDE(D) \
    KERNEL __launch_bounds__(THREADS, 1) attention_wide_d##D(RUN_PARAMETERS(__half, __half)) { attention_wide<D>(RUN_ARGUMENTS); }

ATTENTION_WIDE(64)
ATTENTION_WIDE(128)

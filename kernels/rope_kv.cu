// Between the projections and attention: norm of each query and key head, rotation of both, store of keys and values.
//
// rope_kv_f16, rope_kv_f32: for token t and pair i of n_dims / 2, angle = positions[t] * inv_freqs[i];
//   (a, b) -> magnitude * (a cos - b sin, a sin + b cos); pairs are neighbours (style 0, NORM) or halves (style 1, NEOX).
//   Before that, where q_norm / k_norm is given, a head is x / sqrt(mean(x^2) + eps) * norm. No rotation where inv_freqs is null.
//   Queries are rotated in place; rotated keys go to k and to the store, values to the store, both rounded to its type.
// grid: (up to n_heads + 2 n_kv_heads, n_tokens); block: 32. A warp takes every gridDim.x-th head of a token, whose angles it computes once: those of
// queries, of keys, and of values where there are any.
// Shapes: q [n_tokens, n_heads, dim_k], k [n_tokens, n_kv_heads, dim_k], v [n_tokens, n_kv_heads, dim_v] f32; positions, slots
// [n_tokens] u32; store as kv.cuh says. A slot of 0xffffffff (padding) is stored nowhere. Shared: 4 dim_k bytes, dynamic.
// Of stores of mixed types (MIXED) it has two arguments more (mixed.cuh).
// Measured on the simulator only: bench/runs.
#include "mixed.cuh"
#include "turn.cuh"

template <class K, class V>
DEVICE void rope_kv(float* q, float* k, const float* v, const uint32_t* positions, const uint32_t* slots,
                    const float* inv_freqs, float magnitude, int n_dims, int style, const float* q_norm,
                    const float* k_norm, float eps, int n_heads, int n_kv_heads, int dim_k, int dim_v, K k_store,
                    V v_store) {
    extern __shared__ float head_values[];
    constexpr int AHEAD = 2;    // pairs of a lane whose angles are ready before the queries are
    constexpr int AT_ONCE = 4;  // values of a lane that are on their way together
    int lane = threadIdx.x, token = blockIdx.y, half = n_dims / 2, n_all = n_heads + (v ? 2 : 1) * n_kv_heads;
    let_next_begin();
    uint32_t slot = slots[token];
    bool is_stored = slot != 0xffffffffu;
    float position = inv_freqs ? (float)positions[token] : 0.0f, sins[AHEAD], cosines[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        int i = lane + k * WARP;
        sins[k] = 0.0f, cosines[k] = 1.0f;
        if (inv_freqs && i < half) sincosf(position * inv_freqs[i], &sins[k], &cosines[k]);
    }
    await_earlier();
#pragma unroll 1
    for (int head = blockIdx.x; head < n_all; head += gridDim.x) {
        if (head >= n_heads + n_kv_heads) {
            int g = head - n_heads - n_kv_heads, row = kv_row(dim_v);
            const float* from = v + ((size_t)token * n_kv_heads + g) * dim_v;
            if (!is_stored) continue;
            auto to = kv_place(v_store, slot, g, n_kv_heads, row);
#pragma unroll 1
            for (int first = lane; first < row; first += AT_ONCE * WARP) {
                float x[AT_ONCE];
#pragma unroll
                for (int k = 0; k < AT_ONCE; k++) x[k] = first + k * WARP < dim_v ? from[first + k * WARP] : 0.0f;
#pragma unroll
                for (int k = 0; k < AT_ONCE; k++)
                    if (first + k * WARP < row) put(to + first + k * WARP, x[k]);
            }
            continue;
        }
        bool is_query = head < n_heads;
        int g = head - n_heads;
        float* x = is_query ? q + ((size_t)token * n_heads + head) * dim_k : k + ((size_t)token * n_kv_heads + g) * dim_k;
        const float* norm = is_query ? q_norm : k_norm;
        float squares = 0.0f;
#pragma unroll 1
        for (int first = lane; first < dim_k; first += AT_ONCE * WARP) {
            float values[AT_ONCE];
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) values[k] = first + k * WARP < dim_k ? x[first + k * WARP] : 0.0f;
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                squares += values[k] * values[k];
                if (first + k * WARP < dim_k) head_values[first + k * WARP] = values[k];
            }
        }
        if (norm) normalize_head(head_values, squares, norm, eps, dim_k);
        __syncwarp();
        if (inv_freqs) {
            auto rotate = [&](int i, float sin, float cos) { turn_pair(head_values, i, half, style, magnitude, sin, cos); };
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (lane + k * WARP < half) rotate(lane + k * WARP, sins[k], cosines[k]);
#pragma unroll 1
            for (int i = lane + AHEAD * WARP; i < half; i += WARP) {
                float sin, cos;
                sincosf(position * inv_freqs[i], &sin, &cos);
                rotate(i, sin, cos);
            }
            __syncwarp();
        }
        int row = kv_row(dim_k);
        const bool is_kept = !is_query && is_stored;
        auto to = kv_place(k_store, is_kept ? slot : 0, is_kept ? g : 0, n_kv_heads, row);
#pragma unroll 1
        for (int i = lane; i < row; i += WARP) {
            float value = i < dim_k ? head_values[i] : 0.0f;
            if (i < dim_k) x[i] = value;
            if (is_kept) put(to + i, value);
        }
        // The next head comes to the same place.
        __syncwarp();
    }
}

#define ROPE_KV(NAME, K, V)                                                                                                 \
    KERNEL __launch_bounds__(32)                                                                                          \
        rope_kv_##NAME(float* q, float* k, const float* v, const uint32_t* positions, const uint32_t* slots,              \
                       const float* inv_freqs, float magnitude, int n_dims, int style, const float* q_norm,               \
                       const float* k_norm, float eps, int n_heads, int n_kv_heads, int dim_k, int dim_v, K* k_store,     \
                       V* v_store) {                                                                                      \
        rope_kv(q, k, v, positions, slots, inv_freqs, magnitude, n_dims, style, q_norm, k_norm, eps, n_heads, n_kv_heads, \
                dim_k, dim_v, k_store, v_store);                                                                          \
    }

#ifdef MIXED
KERNEL __launch_bounds__(32)
    rope_kv_of_types(float* q, float* k, const float* v, const uint32_t* positions, const uint32_t* slots, const float* inv_freqs,
                     float magnitude, int n_dims, int style, const float* q_norm, const float* k_norm, float eps, int n_heads,
                     int n_kv_heads, int dim_k, int dim_v, MixedStore* k_store, MixedStore* v_store, int key_type, int value_type) {
    rope_kv(q, k, v, positions, slots, inv_freqs, magnitude, n_dims, style, q_norm, k_norm, eps, n_heads, n_kv_heads, dim_k, dim_v,
            MixedTarget{k_store, key_type}, MixedTarget{v_store, value_type});
}
#elif defined(KEYS)
ROPE_KV(of_types, KEYS, VALUES)
#else
ROPE_KV(f16, __half, __half)
ROPE_KV(f32, float, float)

// rope: the rotation alone, in place: rows [n_tokens, row_width] f32 of heads of `head_dim`.
// grid: (row_width / head_dim, n_tokens); block: 32.
KERNEL __launch_bounds__(32) rope(float* rows, const uint32_t* positions, const float* inv_freqs, float magnitude,
                                  int n_dims, int style, int head_dim, int row_width) {
    begin_after_earlier();
    float* x = rows + (size_t)blockIdx.y * row_width + blockIdx.x * head_dim;
    float position = (float)positions[blockIdx.y];
    int half = n_dims / 2;
#pragma unroll 1
    for (int i = threadIdx.x; i < half; i += WARP) {
        int first = style == 0 ? 2 * i : i, second = style == 0 ? 2 * i + 1 : i + half;
        float sin, cos;
        sincosf(position * inv_freqs[i], &sin, &cos);
        float a = x[first], b = x[second];
        x[first] = magnitude * (a * cos - b * sin);
        x[second] = magnitude * (a * sin + b * cos);
    }
}

// rope_axes: as rope, where each pair is turned by one of its token's three positions: positions [n_tokens, 3] of time, row and column. With takes_turns
// pair i is turned by number i % 3 of them while that has pairs left, and by time from then on; else n_time pairs by time, n_row by row, the others by column.
KERNEL __launch_bounds__(32) rope_axes(float* rows, const uint32_t* positions, const float* inv_freqs, float magnitude, int n_dims,
                                       int style, int head_dim, int row_width, int takes_turns, int n_time, int n_row, int n_column) {
    begin_after_earlier();
    float* x = rows + (size_t)blockIdx.y * row_width + blockIdx.x * head_dim;
    const uint32_t* of_token = positions + 3 * (size_t)blockIdx.y;
    int half = n_dims / 2;
#pragma unroll 1
    for (int i = threadIdx.x; i < half; i += WARP) {
        int axis = i < n_time ? 0 : i < n_time + n_row ? 1 : 2;
        if (takes_turns) {
            axis = i % 3;
            int n_pairs = axis == 0 ? n_time : axis == 1 ? n_row : n_column;
            if (i / 3 >= n_pairs) axis = 0;
        }
        int first = style == 0 ? 2 * i : i, second = style == 0 ? 2 * i + 1 : i + half;
        float sin, cos;
        sincosf((float)of_token[axis] * inv_freqs[i], &sin, &cos);
        float a = x[first], b = x[second];
        x[first] = magnitude * (a * cos - b * sin);
        x[second] = magnitude * (a * sin + b * cos);
    }
}
#endif

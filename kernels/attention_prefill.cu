// Paged attention of many query rows, flash style on tensor cores, for f16 stores.
//
// The formula is that of attention_decode.cu: causal, optional window, cap and sinks.
// attention_prefill_d64, _d128: heads of up to 64 or 128 values.
//   grid: (n_heads, ceil(longest run of tokens / 64), n_seqs); block: 128. A thread block takes 64 tokens of one sequence and one
//   head, and walks over the context 64 positions at a time; a warp takes 16 tokens. A tile beyond its sequence's tokens
//   returns at once, so a grid captured for a bucket serves every batch below it.
// Shapes: q, out [n_tokens, n_heads, dim] f32; positions [n_tokens] u32, consecutive within a sequence; seq_starts [n_seqs + 1],
//   page_starts [n_seqs + 1], pages [..] u32; stores as kv.cuh says. A sequence whose first position is 0xffffffff is padding;
//   its rows become zeros.
// Queries and weights are split into two halves each (value and rest), so products keep about 21 bits as f32 ones would.
// Shared: 4 * 64 * (D + 8) * 2 bytes, dynamic: 36864 (D = 64) and 69632 (D = 128). Keys arrive by asynchronous copies, values while
// the scores are computed. Measured on the simulator only: bench/runs.
#include "kv.cuh"

constexpr int TILE = 64;  // queries and keys of a tile

DEVICE uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

// Copies 16 bytes asynchronously, or zeros where `is_there` is false.
DEVICE void copy16(void* to, const void* from, bool is_there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(is_there ? 16 : 0));
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;"); }
template <int PENDING>
DEVICE void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING));
}

DEVICE void load_matrices(uint32_t (&r)[4], const __half* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p)));
}
DEVICE void load_matrices_transposed(uint32_t (&r)[4], const __half* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p)));
}
DEVICE void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two numbers as f16 pairs: rounded, and what rounding left.
DEVICE void split(float x, float y, uint32_t& value, uint32_t& rest) {
    __half2 high = __floats2half2_rn(x, y);
    float2 back = __half22float2(high);
    __half2 low = __floats2half2_rn(x - back.x, y - back.y);
    value = *(uint32_t*)&high;
    rest = *(uint32_t*)&low;
}

DEVICE float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));
}
DEVICE float row_sum(float x) {
    x += __shfl_xor_sync(FULL_WARP, x, 1);
    return x + __shfl_xor_sync(FULL_WARP, x, 2);
}

template <int D>
DEVICE void attention_prefill(const float* q, float* out, const uint32_t* positions, const uint32_t* seq_starts,
                              const uint32_t* page_starts, const uint32_t* pages, const __half* k_store,
                              const __half* v_store, const float* sinks, float scale, float cap, int window, int n_heads,
                              int n_kv_heads, int dim_k, int dim_v) {
    constexpr int STRIDE = D + 8;
    extern __shared__ __align__(16) __half shared[];
    __half(*queries)[STRIDE] = (__half(*)[STRIDE])shared;
    __half(*rests)[STRIDE] = queries + TILE;
    __half(*keys)[STRIDE] = queries + 2 * TILE;
    __half(*values)[STRIDE] = queries + 3 * TILE;
    const int head = blockIdx.x, seq = blockIdx.z, g_kv = head / (n_heads / n_kv_heads);
    const int first = seq_starts[seq] + blockIdx.y * TILE, n_here = min(TILE, (int)seq_starts[seq + 1] - first);
    if (n_here <= 0) return;
    const int thread = threadIdx.x, lane = thread % WARP, warp = thread / WARP, g = lane / 4, t = lane % 4;
    const uint32_t position0 = positions[first];
    if (position0 == 0xffffffffu) {
        for (int i = thread; i < n_here * dim_v; i += blockDim.x)
            out[((size_t)(first + i / dim_v) * n_heads + head) * dim_v + i % dim_v] = 0.0f;
        return;
    }
    const uint32_t* table = pages + page_starts[seq];
    const int row_k = kv_row(dim_k), row_v = kv_row(dim_v);
    const int last = position0 + n_here - 1;
    // Pages before the oldest position that the first token sees may be gone.
    const int oldest = window > 0 ? max(0, (int)position0 + 1 - window) : 0;
    const int begin = oldest / TILE * TILE;

    for (int i = thread; i < TILE * D / 2; i += blockDim.x) {
        int row = i / (D / 2), d = i % (D / 2) * 2;
        const float* from = q + ((size_t)(first + row) * n_heads + head) * dim_k;
        float x = row < n_here && d < dim_k ? from[d] * scale : 0.0f;
        float y = row < n_here && d + 1 < dim_k ? from[d + 1] * scale : 0.0f;
        split(x, y, *(uint32_t*)&queries[row][d], *(uint32_t*)&rests[row][d]);
    }

    auto fetch = [&](const __half* store, int row, __half(*to)[STRIDE], int base) {
        for (int i = thread; i < TILE * D / 8; i += blockDim.x) {
            int local = i / (D / 8), c = i % (D / 8), j = base + local;
            bool is_there = j >= oldest && j <= last && c * 8 < row;
            const __half* from = store;
            if (is_there) from += kv_index(table[j / PAGE] * PAGE + j % PAGE, g_kv, n_kv_heads, row) + c * 8;
            copy16(&to[local][c * 8], from, is_there);
        }
        copy_commit();
    };

    float acc[D / 8][4] = {};
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
#pragma unroll 1
    for (int base = begin; base <= last; base += TILE) {
        __syncthreads();  // Everyone is done with the tiles of the step before.
        fetch(k_store, row_k, keys, base);
        fetch(v_store, row_v, values, base);
        copy_wait<1>();
        __syncthreads();

        float s[TILE / 8][4] = {};
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            uint32_t a[4], rest[4];
            load_matrices(a, &queries[warp * 16 + lane % 16][k * 16 + lane / 16 * 8]);
            load_matrices(rest, &rests[warp * 16 + lane % 16][k * 16 + lane / 16 * 8]);
#pragma unroll
            for (int n = 0; n < TILE / 16; n++) {
                uint32_t b[4];
                load_matrices(b, &keys[n * 16 + lane / 16 * 8 + lane % 8][k * 16 + lane / 8 % 2 * 8]);
                mma(s[2 * n], a, b[0], b[1]);
                mma(s[2 * n], rest, b[0], b[1]);
                mma(s[2 * n + 1], a, b[2], b[3]);
                mma(s[2 * n + 1], rest, b[2], b[3]);
            }
        }

        float highest[2] = {top[0], top[1]};
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int position = position0 + warp * 16 + g + (i < 2 ? 0 : 8), j = base + n * 8 + 2 * t + i % 2;
                bool is_seen = j <= position && (window <= 0 || j > position - window);
                float x = cap > 0.0f ? cap * tanhf(s[n][i] / cap) : s[n][i];
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

        copy_wait<0>();
        __syncthreads();
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
        int row = warp * 16 + g + 8 * r;
        float denominator = row_sum(sum[r]), weight = 1.0f;
        if (sinks) {
            float higher = fmaxf(top[r], sinks[head]);
            weight = expf(top[r] - higher);
            denominator = denominator * weight + expf(sinks[head] - higher);
        }
        if (row >= n_here) continue;
        float* to = out + ((size_t)(first + row) * n_heads + head) * dim_v;
#pragma unroll
        for (int d = 0; d < D / 8; d++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int at = d * 8 + 2 * t + i;
                if (at < dim_v) to[at] = acc[d][2 * r + i] * weight / denominator;
            }
    }
}

#define ATTENTION_PREFILL(D)                                                                                            \
    KERNEL __launch_bounds__(128, 1)                                                                                    \
        attention_prefill_d##D(const float* q, float* out, const uint32_t* positions, const uint32_t* seq_starts,       \
                               const uint32_t* page_starts, const uint32_t* pages, const __half* k_store,               \
                               const __half* v_store, const float* sinks, float scale, float cap, int window,           \
                               int n_heads, int n_kv_heads, int dim_k, int dim_v) {                                     \
        attention_prefill<D>(q, out, positions, seq_starts, page_starts, pages, k_store, v_store, sinks, scale, cap,    \
                             window, n_heads, n_kv_heads, dim_k, dim_v);                                                \
    }

ATTENTION_PREFILL(64)
ATTENTION_PREFILL(128)

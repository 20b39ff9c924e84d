// Runs of tokens that attend: which rows a lane has, and how scores become weights. What attention_prefill.cu and
// attention_prefill_of_types.cu share.
//
// A row is a token of one sequence with one of the query heads that share a KV head, heads fastest. A warp has 16 rows as the fragments of
// tensor cores have them: a lane those of lane / 4 and lane / 4 + 8.
#pragma once
#include "kv.cuh"
#include "mma.cuh"

constexpr int THREADS = 256;

// A thread block's part of the run of one sequence.
struct Run {
    int first, length, group, head0, row0, n_rows, position0, window, is_chunked, both, n_heads;

    // The last position that a query at p sees.
    __device__ __forceinline__ int last_seen(int p) const {
        return both ? (window > 0 ? min(length - 1, p + window - 1) : length - 1) : p;
    }
    // The last that one of ROWS rows sees.
    __device__ __forceinline__ int last(int rows) const { return last_seen(position0 + (row0 + min(n_rows, rows) - 1) / group); }
    // The oldest: pages before it may be gone.
    __device__ __forceinline__ int oldest() const { return first_seen(position0 + row0 / group, window, is_chunked); }
};

// Zeros for the rows of a sequence that is padding.
DEVICE void write_zeros(const Run& run, int rows, float* out, int dim_v) {
    for (int i = threadIdx.x; i < min(run.n_rows, rows) * dim_v; i += THREADS) {
        int row = run.row0 + i / dim_v;
        out[((size_t)(run.first + row / run.group) * run.n_heads + run.head0 + row % run.group) * dim_v + i % dim_v] = 0.0f;
    }
}

// A lane's two rows: whether they are there, their head and position, and where they stand in the queries and outputs.
struct LaneRows {
    bool is_there[2];
    int head[2], position[2], first_position[2];
    size_t place[2];
    float slope[2];

    __device__ __forceinline__ LaneRows(const Run& run, int first_row, const float* slopes) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = first_row + threadIdx.x % WARP / 4 + 8 * r, token = (run.row0 + row) / run.group;
            is_there[r] = row < run.n_rows;
            head[r] = run.head0 + (run.row0 + row) % run.group;
            position[r] = run.position0 + token;
            first_position[r] = first_seen(position[r], run.window, run.is_chunked);
            place[r] = (size_t)(run.first + token) * run.n_heads + head[r];
            slope[r] = slopes ? slopes[head[r]] : 0.0f;
        }
    }
};

// What a lane knows of its rows' weights so far: the highest score, and its share of their sum.
struct Weights {
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};

    // Makes weights of the scores of 8 N positions from `base` on, and scales what was added up with the weights before.
    template <int N, int COLUMNS>
    __device__ __forceinline__ void add(const Run& run, const LaneRows& rows, int base, float cap, float (&s)[N][4],
                                        float (&acc)[COLUMNS][4]) {
        const int t = threadIdx.x % 4;
        float highest[2] = {top[0], top[1]};
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int j = base + n * 8 + 2 * t + i % 2;
                bool is_seen = j <= run.last_seen(rows.position[i / 2]) && j >= rows.first_position[i / 2];
                float biased = s[n][i] - rows.slope[i / 2] * fabsf((float)(rows.position[i / 2] - j));
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
        for (int d = 0; d < COLUMNS; d++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[d][i] *= factor[i / 2];
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[n][i] = s[n][i] == -INFINITY ? 0.0f : expf(s[n][i] - top[i / 2]);
                sum[i / 2] += s[n][i];
            }
    }

    // What the sums of row r are multiplied with and divided by at the end. The lanes of a row come here together.
    __device__ __forceinline__ float2 whole(int r, const float* sinks, int head) const {
        float denominator = row_sum(sum[r]), weight = 1.0f;
        if (sinks) {
            float higher = fmaxf(top[r], sinks[head]);
            weight = expf(top[r] - higher);
            denominator = denominator * weight + expf(sinks[head] - higher);
        }
        return make_float2(weight, denominator);
    }
};

// The scores of 8 N positions of a warp's rows, of which each of two neighbours has the products of half the columns: both add the other's.
template <int N>
struct SharedScores {
    float4* all;

    DEVICE float4* of(float4* all, int warp) { return all + warp * N * WARP + threadIdx.x % WARP; }

    __device__ __forceinline__ void put(const float (&s)[N][4]) const {
        float4* to = of(all, threadIdx.x / WARP);
#pragma unroll
        for (int n = 0; n < N; n++) to[n * WARP] = make_float4(s[n][0], s[n][1], s[n][2], s[n][3]);
    }
    // After a barrier.
    __device__ __forceinline__ void add(float (&s)[N][4]) const {
        const float4* from = of(all, threadIdx.x / WARP ^ 1);
#pragma unroll
        for (int n = 0; n < N; n++) {
            float4 other = from[n * WARP];
            s[n][0] += other.x, s[n][1] += other.y, s[n][2] += other.z, s[n][3] += other.w;
        }
    }
};

// The tile of rows of this thread block: later rows see more positions, so they begin first, and no long one is left to the end.
DEVICE int longest_first() { return (int)(gridDim.y - 1 - blockIdx.y); }

#define RUN_PARAMETERS(KEY_STORE, VALUE_STORE)                                                                                \
    const float *q, float *out, const uint32_t *positions, const uint32_t *seq_starts, const uint32_t *page_starts,            \
        const uint32_t *pages, const KEY_STORE *k_store, const VALUE_STORE *v_store, const float *sinks, const float *slopes, \
        float scale, float cap, int window, int is_chunked, int both, int n_heads, int n_kv_heads, int dim_k, int dim_v
#define RUN_ARGUMENTS                                                                                                        \
    q, out, positions, seq_starts, page_starts, pages, k_store, v_store, sinks, slopes, scale, cap, window, is_chunked, both, \
        n_heads, n_kv_heads, dim_k, dim_v

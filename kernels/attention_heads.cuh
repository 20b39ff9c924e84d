// What a warp of attention_decode.cu does with tiles: products of up to 8 heads' queries with keys, the softmax of its positions, and weighted values.
//
// TensorHeads<MT, T>, for keys and values that are both f16 or both e4m3: a page of 16 positions is the rows of a tensor core product, 8 heads are its columns, whether they are there
//   or not. Queries and weights are split into two halves each (value and rest), so products keep about 21 bits as f32 ones would. Weights
//   are in the lanes that multiply values with them. e4m3 becomes f16 in the registers, exactly; columns are taken in an order in which a lane's four
//   codes are numbers of one product.
// PlainHeads<K, V, G>, for every type: G heads in f32. Scores: a position is two lanes', each with every other 16 bytes of the key. Values:
//   neighbouring lanes have neighbouring columns, 8 each, of one or several positions.
// MixedHeads<G>: the same for stores of mixed types, by 8 columns at a time.
// Both have: QUERY_BYTES of shared memory for a column of the queries; scores of HEADS heads that are warp_tokens + SCORE_PAD apart; lanes that
//   copy a row (0: as many as it needs); thread blocks that registers leave room for; and sums [heads][row_v + 4].
#pragma once
#include "attention_tiles.cuh"
#include "mixed.cuh"

// The positions of a warp's split: every fourth page from `begin` + 16 warp on, of which those in [first, end) count.
struct OwnPositions {
    int n_pages, warp, begin, first, end, position;

    // Its index-th position, after pages.
    __device__ __forceinline__ int at(int index) const { return begin + (warp + index / PAGE * 4) * PAGE + index % PAGE; }
};

// A score as the softmax takes it.
DEVICE float biased_score(float s, int j, const OwnPositions& own, float slope, float cap) {
    s -= slope * fabsf((float)(own.position - j));
    if (cap > 0.0f) s = cap * tanhf(s / cap);
    return own.first <= j && j < own.end ? s : -INFINITY;
}

// MT: groups of 16 columns of a tile.
template <int MT, class T>
struct TensorHeads {
    static constexpr bool IS_E4M3 = std::is_same<T, E4m3>::value;
    static constexpr int HEADS = 8, QUERY_BYTES = 32, SCORE_PAD = 8, COPY_LANES = MT * Rows<T>::BYTES, BLOCKS = MT > 8 ? 3 : 4;
    // Neighbouring columns that are a lane's.
    static constexpr int PER_LANE = IS_E4M3 ? 4 : 2;
    // What factors that are numbers of the store lack.
    static constexpr float FACTOR = IS_E4M3 ? OF_HALVES : 1.0f;
    float dot[4][4] = {};
    float acc[MT][4] = {};

    // Columns of a tile where so many are left of a row: whole products.
    __device__ __forceinline__ static int part(int columns, int left) { return min(columns, (left + 15) / 16 * 16); }

    // A lane's queries of every fourth 16 columns, as they come from device memory.
    float2 raw[MT > 4 ? MT / 4 : 1][2];

    __device__ __forceinline__ static void load(float2 (&x)[2], const float* q, int n_here, int dim, int step) {
        const int lane = threadIdx.x % WARP, h = lane / 4, d = step * 16 + PER_LANE * (lane % 4);
        x[0] = x[1] = make_float2(0.0f, 0.0f);
        if constexpr (IS_E4M3) {
            if (h >= n_here) return;
            const float2 a = load_pair(q + h * dim, d, dim), b = load_pair(q + h * dim, d + 2, dim);
            x[0] = make_float2(a.x, b.x), x[1] = make_float2(a.y, b.y);
        } else {
            if (h < n_here) x[0] = load_pair(q + h * dim, d, dim), x[1] = load_pair(q + h * dim, d + 8, dim);
        }
    }
    __device__ __forceinline__ static void stage(const float2 (&x)[2], uint8_t* queries, float scale, int step) {
        uint4 fragment;
        split_beyond(x[0].x * scale, x[0].y * scale, fragment.x, fragment.z);
        split_beyond(x[1].x * scale, x[1].y * scale, fragment.y, fragment.w);
        ((uint4*)queries)[step * WARP + threadIdx.x % WARP] = fragment;
    }
    __device__ __forceinline__ void load_queries(const float* q, int n_here, int dim, int warp) {
#pragma unroll
        for (int i = 0; i < sizeof(raw) / sizeof(raw[0]); i++) load(raw[i], q, n_here, dim, warp + 4 * i);
    }
    __device__ __forceinline__ void stage_queries(uint8_t* queries, const float* q, int n_here, int dim, int row, float scale, int warp) {
        const int n_steps = (row + 15) / 16;
        constexpr int N = sizeof(raw) / sizeof(raw[0]);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (warp + 4 * i < n_steps) stage(raw[i], queries, scale, warp + 4 * i);
#pragma unroll 1
        for (int step = warp + 4 * N; step < n_steps; step += 4) {
            float2 x[2];
            load(x, q, n_here, dim, step);
            stage(x, queries, scale, step);
        }
    }

    // Where a lane's row of matrices begins: of 16 positions and the 16 bytes of chunk k, then of those of the chunk behind it, or of the last.
    __device__ __forceinline__ static const __half* pair_of_chunks(const uint8_t* tile, int stride, int k, int n) {
        const int lane = threadIdx.x % WARP;
        return (const __half*)(tile + lane % 16 * stride + min(k + lane / 16, n / 16 - 1) * 16);
    }

    __device__ __forceinline__ void multiply_keys(const uint8_t* tile, int stride, int row, int column, int n, const uint8_t* queries) {
        const int lane = threadIdx.x % WARP;
        const uint8_t* from = tile + lane % 16 * stride + lane / 16 * 16;
        const uint4* fragments = (const uint4*)queries + column / 16 * WARP + lane;
        if constexpr (IS_E4M3) {
#pragma unroll
            for (int k = 0; k < MT; k += 2) {
                if (k * 16 >= n) break;
                uint32_t codes[4];
                load_matrices(codes, pair_of_chunks(tile, stride, k, n));
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    if ((k + i) * 16 >= n) break;
                    uint32_t a[4];
                    halves_of(codes[2 * i], a[0], a[2]);
                    halves_of(codes[2 * i + 1], a[1], a[3]);
                    const uint4 b = fragments[(k + i) * WARP];
                    mma(dot[i], a, b.x, b.y);
                    mma(dot[2 + i], a, b.z, b.w);
                }
            }
            return;
        }
#pragma unroll
        for (int k = 0; k < MT; k++) {
            if (k * 16 >= n) break;
            uint32_t a[4];
            load_matrices(a, (const __half*)(from + k * 32));
            const uint4 b = fragments[k * WARP];
            mma(dot[k % 2], a, b.x, b.y);
            mma(dot[2 + k % 2], a, b.z, b.w);
        }
    }
    // The scores of a page, once all its columns are multiplied.
    __device__ __forceinline__ void store_scores(float* scores, int apart, int page) {
        const int lane = threadIdx.x % WARP;
        float* to = scores + lane % 4 * 2 * apart + page * PAGE + lane / 4;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to[i % 2 * apart + i / 2 * 8] = FACTOR * ((dot[0][i] + dot[1][i]) + (dot[2][i] + dot[3][i]));
            dot[0][i] = dot[1][i] = dot[2][i] = dot[3][i] = 0.0f;
        }
    }
    // A head is four lanes', each with the four positions of a page that it weighs values with.
    __device__ __forceinline__ static float2* pairs(float* scores, int apart, int page) {
        const int lane = threadIdx.x % WARP;
        return (float2*)(scores + lane / 4 * apart + page * PAGE + lane % 4 * 2);
    }
    __device__ __forceinline__ void softmax(float* scores, int apart, const OwnPositions& own, const float* slopes, int n_here,
                                            float cap, float* top_of_heads, float* sum_of_heads) {
        const int lane = threadIdx.x % WARP, h = lane / 4;
        const float slope = slopes && h < n_here ? slopes[h] : 0.0f;
        float top = -INFINITY, sum = 0.0f;
#pragma unroll 1
        for (int page = 0; page < own.n_pages; page++) {
            float2* at = pairs(scores, apart, page);
            const int j = own.at(page * PAGE + lane % 4 * 2);
            float2 x = at[0], y = at[4];
            x.x = biased_score(x.x, j, own, slope, cap), x.y = biased_score(x.y, j + 1, own, slope, cap);
            y.x = biased_score(y.x, j + 8, own, slope, cap), y.y = biased_score(y.y, j + 9, own, slope, cap);
            at[0] = x, at[4] = y;
            top = fmaxf(fmaxf(top, fmaxf(x.x, x.y)), fmaxf(y.x, y.y));
        }
        top = row_max(top);
#pragma unroll 1
        for (int page = 0; page < own.n_pages; page++) {
            float2* at = pairs(scores, apart, page);
            float2 x = at[0], y = at[4];
            x.x = expf(x.x - top), x.y = expf(x.y - top), y.x = expf(y.x - top), y.y = expf(y.y - top);
            at[0] = x, at[4] = y;
            sum += (x.x + x.y) + (y.x + y.y);
        }
        sum = row_sum(sum);
        if (lane % 4 == 0) top_of_heads[h] = top, sum_of_heads[h] = sum;
    }
    __device__ __forceinline__ void add_values(const uint8_t* tile, int stride, int row, int column, int n, float* scores, int apart,
                                               int page) {
        const int lane = threadIdx.x % WARP;
        const float2* at = pairs(scores, apart, page);
        const float2 x = at[0], y = at[4];
        uint32_t weight[2], rest[2];
        split(x.x, x.y, weight[0], rest[0]);
        split(y.x, y.y, weight[1], rest[1]);
        if constexpr (IS_E4M3) {
            // Of two neighbouring columns the first is row g of a product, the second row g + 8.
#pragma unroll
            for (int m = 0; m < MT; m += 2) {
                if (m * 16 >= n) break;
                uint32_t codes[4];
                load_matrices_transposed(codes, pair_of_chunks(tile, stride, m, n));
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    if ((m + i) * 16 >= n) break;
                    uint32_t a[4];
                    halves_of(codes[2 * i], a[0], a[1]);
                    halves_of(codes[2 * i + 1], a[2], a[3]);
                    mma(acc[m + i], a, weight[0], weight[1]);
                    mma(acc[m + i], a, rest[0], rest[1]);
                }
            }
            return;
        }
        const uint8_t* from = tile + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 16;
#pragma unroll
        for (int m = 0; m < MT; m++) {
            if (m * 16 >= n) break;
            uint32_t a[4];
            load_matrices_transposed(a, (const __half*)(from + m * 32));
            mma(acc[m], a, weight[0], weight[1]);
            mma(acc[m], a, rest[0], rest[1]);
        }
    }
    __device__ __forceinline__ void store_sums(float* sums, int apart, int column, int n, int n_here) {
        // Columns of a lane's two rows of a product.
        constexpr int APART = IS_E4M3 ? 2 : 1, SECOND = IS_E4M3 ? 1 : 8;
        const int lane = threadIdx.x % WARP, h = lane % 4 * 2, first = lane / 4 * APART, n_rows = n - first;
        float* to = sums + h * apart + column + first;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int d = m * 16 + i / 2 * SECOND;
                if (d < n_rows && h + i % 2 < n_here) to[i % 2 * apart + d] = FACTOR * acc[m][i];
                acc[m][i] = 0.0f;
            }
    }
};

// The numbers of G heads, side by side.
template <int G>
DEVICE void load_heads(const float* p, float (&x)[G]) {
    if constexpr (G == 1) {
        x[0] = p[0];
    } else if constexpr (G == 2) {
        float2 a = *(const float2*)p;
        x[0] = a.x, x[1] = a.y;
    } else {
#pragma unroll
        for (int i = 0; i < G / 4; i++) {
            float4 a = ((const float4*)p)[i];
            x[4 * i] = a.x, x[4 * i + 1] = a.y, x[4 * i + 2] = a.z, x[4 * i + 3] = a.w;
        }
    }
}

template <int G>
DEVICE void store_heads(float* p, const float (&x)[G]) {
    if constexpr (G == 1) {
        p[0] = x[0];
    } else if constexpr (G == 2) {
        *(float2*)p = make_float2(x[0], x[1]);
    } else {
#pragma unroll
        for (int i = 0; i < G / 4; i++) ((float4*)p)[i] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    }
}

// Four numbers in shared memory. Written out, since the compiler loads some of them twice and marks it in PTX of a later version.
DEVICE float4 load_four(const float* p) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(shared_at(p)));
    return x;
}

template <class K, class V, int G>
struct PlainHeads {
    static constexpr int HEADS = G, QUERY_BYTES = 4 * G, SCORE_PAD = 0, COPY_LANES = 0, BLOCKS = 3;
    float dot[G] = {};
    float acc[G][8] = {};

    __device__ __forceinline__ static int part(int columns, int left) { return min(columns, left); }

    __device__ __forceinline__ void load_queries(const float* q, int n_here, int dim, int warp) {}
    // Queries are [G][row].
    __device__ __forceinline__ void stage_queries(uint8_t* queries, const float* q, int n_here, int dim, int row, float scale, int warp) {
#pragma unroll 1
        for (int d = threadIdx.x; d < row; d += 4 * WARP)
#pragma unroll
            for (int h = 0; h < G; h++)
                ((float*)queries)[h * row + d] = h < n_here && d < dim ? q[h * dim + d] * scale : 0.0f;
    }

    __device__ __forceinline__ void multiply_keys(const uint8_t* tile, int stride, int row, int column, int n, const uint8_t* queries) {
        constexpr int CHUNK = Rows<K>::CHUNK;
        const int place = threadIdx.x % PAGE, half = threadIdx.x % WARP / PAGE;
        const uint8_t* key = tile + place * stride;
        const float* of_tile = (const float*)queries + column;
#pragma unroll 4
        for (int c = half; c < n / CHUNK; c += 2) {
            float k[CHUNK], sum[G] = {};
            Rows<K>::load(key + c * 16, k);
#pragma unroll
            for (int i = 0; i < CHUNK / 4; i++)
#pragma unroll
                for (int h = 0; h < G; h++) {
                    const float4 q = load_four(of_tile + h * row + c * CHUNK + 4 * i);
                    float& to = Rows<K>::HAS_SCALES ? sum[h] : dot[h];
                    to += q.x * k[4 * i], to += q.y * k[4 * i + 1], to += q.z * k[4 * i + 2], to += q.w * k[4 * i + 3];
                }
            if (Rows<K>::HAS_SCALES) {
                const float factor = tile_scale(tile, stride, row, place, column + c * CHUNK);
#pragma unroll
                for (int h = 0; h < G; h++) dot[h] += factor * sum[h];
            }
        }
    }
    // The heads of a position are side by side.
    __device__ __forceinline__ void store_scores(float* scores, int apart, int page) {
        const int lane = threadIdx.x % WARP;
#pragma unroll
        for (int h = 0; h < G; h++) dot[h] += __shfl_xor_sync(FULL_WARP, dot[h], PAGE);
        if (lane < PAGE) store_heads(scores + (page * PAGE + lane) * G, dot);
#pragma unroll
        for (int h = 0; h < G; h++) dot[h] = 0.0f;
    }
    // A lane has every so many positions of one head.
    __device__ __forceinline__ void softmax(float* scores, int apart, const OwnPositions& own, const float* slopes, int n_here,
                                            float cap, float* top_of_heads, float* sum_of_heads) {
        const int lane = threadIdx.x % WARP, h = lane % G, n = own.n_pages * PAGE * G;
        const float slope = slopes && h < n_here ? slopes[h] : 0.0f;
        float top = -INFINITY, sum = 0.0f;
#pragma unroll 1
        for (int i = lane; i < n; i += WARP) {
            const float s = biased_score(scores[i], own.at(i / G), own, slope, cap);
            scores[i] = s;
            top = fmaxf(top, s);
        }
#pragma unroll
        for (int m = G; m < WARP; m *= 2) top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, m));
#pragma unroll 2
        for (int i = lane; i < n; i += WARP) {
            const float e = expf(scores[i] - top);
            scores[i] = e;
            sum += e;
        }
#pragma unroll
        for (int m = G; m < WARP; m *= 2) sum += __shfl_xor_sync(FULL_WARP, sum, m);
        if (lane < G) top_of_heads[lane] = top, sum_of_heads[lane] = sum;
    }
    __device__ __forceinline__ void add_values(const uint8_t* tile, int stride, int row, int column, int n, float* scores, int apart,
                                               int page) {
        const int lane = threadIdx.x % WARP, lanes = lanes_of(n / 8), c = min(lane % lanes, n / 8 - 1);
        const float* weights = scores + page * PAGE * G;
#pragma unroll 4
        for (int place = lane / lanes; place < PAGE; place += WARP / lanes) {
            float v[8], e[G];
            Rows<V>::load(tile + place * stride + c * 8 * Rows<V>::BYTES, v);
            load_heads(weights + place * G, e);
            float factor = Rows<V>::HAS_SCALES ? tile_scale(tile, stride, row, place, column + c * 8) : 1.0f;
#pragma unroll
            for (int h = 0; h < G; h++) {
                // A place that is not seen may have the infinite scale of whoever had the page before.
                float weight = Rows<V>::HAS_SCALES && e[h] != 0.0f ? e[h] * factor : e[h];
#pragma unroll
                for (int d = 0; d < 8; d++) acc[h][d] += weight * v[d];
            }
        }
    }
    __device__ __forceinline__ void store_sums(float* sums, int apart, int column, int n, int n_here) {
        const int lane = threadIdx.x % WARP;
#pragma unroll 1
        for (int m = lanes_of(n / 8); m < WARP; m *= 2)
#pragma unroll
            for (int h = 0; h < G; h++)
#pragma unroll
                for (int d = 0; d < 8; d++) acc[h][d] += __shfl_xor_sync(FULL_WARP, acc[h][d], m);
#pragma unroll
        for (int h = 0; h < G; h++) {
            float4* to = (float4*)(sums + h * apart + column) + 2 * lane;
            if (lane < n / 8) {
                to[0] = make_float4(acc[h][0], acc[h][1], acc[h][2], acc[h][3]);
                to[1] = make_float4(acc[h][4], acc[h][5], acc[h][6], acc[h][7]);
            }
#pragma unroll
            for (int d = 0; d < 8; d++) acc[h][d] = 0.0f;
        }
    }
};

template <int G>
struct MixedHeads : PlainHeads<float, float, G> {
    Kind<MixedStore> keys, values;

    __device__ __forceinline__ void multiply_keys(const uint8_t* tile, int stride, int row, int column, int n, const uint8_t* queries) {
        const int place = threadIdx.x % PAGE, half = threadIdx.x % WARP / PAGE;
        const uint8_t* key = tile + place * stride;
        const float* of_tile = (const float*)queries + column;
#pragma unroll 1
        for (int c = half; c < n / 8; c += 2) {
            float k[8], sum[G] = {};
            keys.load(key, 8 * c, k);
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int h = 0; h < G; h++) {
                    const float4 q = load_four(of_tile + h * row + c * 8 + 4 * i);
                    sum[h] += q.x * k[4 * i], sum[h] += q.y * k[4 * i + 1], sum[h] += q.z * k[4 * i + 2], sum[h] += q.w * k[4 * i + 3];
                }
            const float factor = keys.has_scales() ? tile_scale(tile, stride, row, place, column + c * 8) : 1.0f;
#pragma unroll
            for (int h = 0; h < G; h++) this->dot[h] += factor * sum[h];
        }
    }
    __device__ __forceinline__ void add_values(const uint8_t* tile, int stride, int row, int column, int n, float* scores, int apart,
                                               int page) {
        const int lane = threadIdx.x % WARP, lanes = lanes_of(n / 8), c = min(lane % lanes, n / 8 - 1);
        const float* weights = scores + page * PAGE * G;
#pragma unroll 1
        for (int place = lane / lanes; place < PAGE; place += WARP / lanes) {
            float v[8], e[G];
            values.load(tile + place * stride, c * 8, v);
            load_heads(weights + place * G, e);
            const float factor = values.has_scales() ? tile_scale(tile, stride, row, place, column + c * 8) : 1.0f;
#pragma unroll
            for (int h = 0; h < G; h++) {
                // A place that is not seen may have the infinite scale of whoever had the page before.
                const float weight = e[h] != 0.0f ? e[h] * factor : e[h];
#pragma unroll
                for (int d = 0; d < 8; d++) this->acc[h][d] += weight * v[d];
            }
        }
    }
};

// Paged attention, one query row a thread block and split over the context; the last thread block of a row combines.
//
// For token t at position p, head h and its KV head g, over positions j from first to p; first is max(0, p + 1 - window), or p - p % window
// where windows are chunks:
//   s[j] = scale * dot(q[t][h], k[j][g]) - slopes[h] * |p - j|, then cap * tanh(s / cap) where cap > 0;
//   out[t][h] = sum_j exp(s[j] - m) v[j][g] / (sum_j exp(s[j] - m) + exp(sinks[h] - m)).
// With seq_starts (both directions) the last j is p + window - 1, or to the sequence's last position; sequences then begin at 0.
// attention_{f16,f32}_gG, and attention_of_types_gG where keys or values are of other types: G query heads (1, 2, 4, 8) that share a KV head in one thread block.
//   grid: (n_kv_heads * ceil(group / G), n_splits, n_tokens); block: 128. n_splits >= ceil(longest context / 256) and may be
//   larger: a split without positions returns at once, so a grid captured for a bucket serves every length below it.
// Splits are at fixed absolute positions (256 tokens), so a result depends neither on the grid nor on the batch.
// Shapes: q, out [n_tokens, n_heads, dim] f32; positions [n_tokens] u32 (0xffffffff: padding, zeros are written);
//   seq_of [n_tokens] u32; seq_starts (or null), page_starts [n_seqs + 1], pages [..] u32; store as kv.cuh says; partial
//   [n_tokens, n_heads, n_splits, dim_v + 2] f32 (sums, then max and denominator); counters [n_tokens, gridDim.x] u32, zero
//   before the first launch and again after every launch. outq, outs: optional quantized rows of out (dim_v a multiple of 32).
// Rows of V are stride_v numbers apart: those of kv.cuh, or latent rows, where V is K and a value the beginning of a key.
// Shared, dynamic: 4 G max(256 + row_k, 4 row_v) bytes with rows as kv.cuh rounds them, or 4 G (256 + max(row_k, 4 row_v)) where row_v
// is more than 256. Loads of K and V are 16 bytes a lane, neighbouring lanes neighbouring bytes.
// Measured on the simulator only: bench/runs.
#include "kv.cuh"
#include "q8.cuh"

constexpr int SPLIT = 256;
constexpr int WARPS = 4;

// Where element d of a row lies in shared memory: the first 4 of every 8 elements, then the last 4, so that lanes with 8
// elements each load and store 16 neighbouring bytes without bank conflicts.
DEVICE int split_index(int d, int row) { return d % 8 / 4 * (row / 2) + d / 8 * 4 + d % 4; }

// Lanes that share a row of `chunks` 8-element chunks: the next power of two.
DEVICE int lanes_of_row(int chunks) {
    int lanes = 1;
    while (lanes < chunks) lanes *= 2;
    return min(lanes, WARP);
}

// A row of padding: zeros, so that what follows reads something defined.
template <int G>
DEVICE void write_zeros(float* out, int8_t* outq, Q8Scale* outs, int token, int head0, int n_here, int n_heads, int dim_v) {
    size_t row_width = (size_t)n_heads * dim_v;
#pragma unroll 1
    for (int i = threadIdx.x; i < n_here * dim_v; i += blockDim.x) {
        int at = head0 * dim_v + i;
        out[token * row_width + at] = 0.0f;
        if (outq) {
            quantize_group(0.0f, q8_row(outq, token, (int)row_width), q8_scales(outs, token, (int)row_width), at / WARP,
                           (int)row_width / WARP);
        }
    }
}

template <class K, class V, int G>
DEVICE void attention(const float* q, float* out, int8_t* outq, Q8Scale* outs, const uint32_t* positions,
                      const uint32_t* seq_of, const uint32_t* seq_starts, const uint32_t* page_starts,
                      const uint32_t* pages, const K* k_store, const V* v_store, const float* sinks, const float* slopes,
                      float scale, float cap, int window, int n_heads, int n_kv_heads,
                      int dim_k, int dim_v, int stride_v, int is_chunked, float* partial, uint32_t* counters) {
    extern __shared__ float shared[];
    __shared__ float maxima[G], sums[G];
    __shared__ bool is_last;
    const int token = blockIdx.z, split = blockIdx.y, n_splits = gridDim.y;
    const uint32_t position = positions[token];
    const int group = n_heads / n_kv_heads;
    const int g = blockIdx.x % n_kv_heads, first_head = blockIdx.x / n_kv_heads * G;
    const int n_here = min(G, group - first_head);
    const int head0 = g * group + first_head;
    if (position == 0xffffffffu) {
        if (split == 0) write_zeros<G>(out, outq, outs, token, head0, n_here, n_heads, dim_v);
        return;
    }
    int context = position + 1;
    const int first_visible = first_seen(position, window, is_chunked);
    if (seq_starts) {
        int seq = seq_of[token], length = seq_starts[seq + 1] - seq_starts[seq];
        context = window > 0 ? min(length, (int)position + window) : length;
    }
    const int begin = max(split * SPLIT, first_visible), end = min((split + 1) * SPLIT, context);
    if (begin >= end) return;
    const int row_k = kv_row(dim_k), row_v = kv_row(dim_v);
    float* scores = shared;              // [G][SPLIT]
    float* queries = shared + G * SPLIT;  // [G][row_k]
    const uint32_t* table = pages + page_starts[seq_of[token]];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;

#pragma unroll 1
    for (int i = threadIdx.x; i < G * row_k; i += blockDim.x) {
        int h = i / row_k, d = i % row_k;
        bool is_there = h < n_here && d < dim_k;
        queries[h * row_k + split_index(d, row_k)] = is_there ? q[((size_t)token * n_heads + head0 + h) * dim_k + d] * scale : 0.0f;
    }
    __syncthreads();

    // Scores: a row of K by `lanes` lanes of 8 elements each, several rows a warp at once.
    {
        const int chunks = row_k / 8, lanes = lanes_of_row(chunks), rows = WARP / lanes;
        const int sub = lane % lanes;
#pragma unroll 1
        for (int base = begin + warp * rows; base < end; base += WARPS * rows) {
            int j = base + lane / lanes;
            bool is_inside = j < end;
            float dot[G] = {};
            if (is_inside) {
                auto row = kv_place(k_store, table[j / PAGE] * PAGE + j % PAGE, g, n_kv_heads, row_k);
#pragma unroll 1
                for (int c = sub; c < chunks; c += lanes) {
                    float k[8];
                    load8(row + c * 8, k);
#pragma unroll
                    for (int h = 0; h < G; h++) {
                        const float4* qh = (const float4*)(queries + h * row_k) + c;
                        float4 a = qh[0], b = qh[chunks];
                        dot[h] += a.x * k[0] + a.y * k[1] + a.z * k[2] + a.w * k[3] + b.x * k[4] + b.y * k[5] +
                                  b.z * k[6] + b.w * k[7];
                    }
                }
            }
#pragma unroll
            for (int h = 0; h < G; h++) {
                float s = dot[h];
#pragma unroll 1
                for (int m = lanes / 2; m > 0; m /= 2) s += __shfl_xor_sync(FULL_WARP, s, m);
                if (slopes && h < n_here) s -= slopes[head0 + h] * fabsf((float)((int)position - j));
                if (sub == 0 && is_inside) scores[h * SPLIT + j - begin] = cap > 0.0f ? cap * tanhf(s / cap) : s;
            }
        }
    }
    __syncthreads();

    // Softmax of the split, a head a warp.
    const int n = end - begin;
#pragma unroll 1
    for (int h = warp; h < n_here; h += WARPS) {
        float top = -INFINITY;
#pragma unroll 1
        for (int i = lane; i < n; i += WARP) top = fmaxf(top, scores[h * SPLIT + i]);
        top = warp_max(top);
        float sum = 0.0f;
#pragma unroll 1
        for (int i = lane; i < n; i += WARP) {
            float e = expf(scores[h * SPLIT + i] - top);
            scores[h * SPLIT + i] = e;
            sum += e;
        }
        sum = warp_sum(sum);
        if (lane == 0) maxima[h] = top, sums[h] = sum;
    }
#pragma unroll 1
    for (int h = n_here + warp; h < G; h += WARPS)
#pragma unroll 1
        for (int i = lane; i < n; i += WARP) scores[h * SPLIT + i] = 0.0f;
    __syncthreads();

    // Values: each group of lanes walks over its own rows of V; then the groups of a warp add up, then the warps. A warp has as many
    // columns at once as its lanes load, so wide rows take several passes, and their sums lie behind the scores.
    float* sums_of_warps = row_v > 8 * WARP ? shared + G * SPLIT : shared;  // [WARPS][G][row_v]
    {
        const int chunks = row_v / 8, lanes = lanes_of_row(chunks), rows = WARP / lanes;
#pragma unroll 1
        for (int sub = lane % lanes; sub - lane % lanes < chunks; sub += lanes) {
            float acc[G][8] = {};
            if (sub < chunks) {
#pragma unroll 1
                for (int j = begin + warp * rows + lane / lanes; j < end; j += WARPS * rows) {
                    float v[8];
                    load8(kv_place(v_store, table[j / PAGE] * PAGE + j % PAGE, g, n_kv_heads, stride_v) + sub * 8, v);
#pragma unroll
                    for (int h = 0; h < G; h++) {
                        float e = scores[h * SPLIT + j - begin];
#pragma unroll
                        for (int d = 0; d < 8; d++) acc[h][d] += e * v[d];
                    }
                }
            }
#pragma unroll 1
            for (int m = lanes; m < WARP; m *= 2) {
#pragma unroll
                for (int h = 0; h < G; h++)
#pragma unroll
                    for (int d = 0; d < 8; d++) acc[h][d] += __shfl_xor_sync(FULL_WARP, acc[h][d], m);
            }
            // Of narrow rows the sums take the place of the scores, which are no longer needed.
            if (sums_of_warps == shared) __syncthreads();
            if (lane < lanes && sub < chunks) {
#pragma unroll
                for (int h = 0; h < G; h++) {
                    float4* to = (float4*)(sums_of_warps + (warp * G + h) * row_v) + sub;
                    to[0] = make_float4(acc[h][0], acc[h][1], acc[h][2], acc[h][3]);
                    to[chunks] = make_float4(acc[h][4], acc[h][5], acc[h][6], acc[h][7]);
                }
            }
        }
    }
    __syncthreads();

    auto split_sum = [&](int h, int d) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += sums_of_warps[(w * G + h) * row_v + split_index(d, row_v)];
        return sum;
    };
    const int first_split = first_visible / SPLIT, last_split = (context - 1) / SPLIT;
    const size_t stride = dim_v + 2;
    float* records = partial + ((size_t)token * n_heads + head0) * n_splits * stride;
    if (first_split != last_split) {
#pragma unroll 1
        for (int i = threadIdx.x; i < n_here * dim_v; i += blockDim.x) {
            int h = i / dim_v, d = i % dim_v;
            float* record = records + ((size_t)h * n_splits + split) * stride;
            record[d] = split_sum(h, d);
            if (d == 0) record[dim_v] = maxima[h], record[dim_v + 1] = sums[h];
        }
        // Whoever comes last combines: its reads are ordered after everyone's writes by fence and counter.
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t* counter = counters + (size_t)token * gridDim.x + blockIdx.x;
            is_last = atomicAdd(counter, 1) == last_split - first_split;
            if (is_last) *counter = 0;
            __threadfence();
        }
        __syncthreads();
        if (!is_last) return;
    }

#pragma unroll 1
    for (int i = threadIdx.x; i < n_here * dim_v; i += blockDim.x) {
        int h = i / dim_v, d = i % dim_v;
        float top = -INFINITY, sum = 0.0f, denominator = 0.0f;
        if (first_split == last_split) {
            top = maxima[h], sum = split_sum(h, d), denominator = sums[h];
        } else {
            const float* record = records + (size_t)h * n_splits * stride;
#pragma unroll 1
            for (int s = first_split; s <= last_split; s++) top = fmaxf(top, record[s * stride + dim_v]);
#pragma unroll 1
            for (int s = first_split; s <= last_split; s++) {
                float weight = expf(record[s * stride + dim_v] - top);
                sum += weight * record[s * stride + d];
                denominator += weight * record[s * stride + dim_v + 1];
            }
        }
        if (sinks) {
            float sink = sinks[head0 + h], higher = fmaxf(top, sink), weight = expf(top - higher);
            sum *= weight;
            denominator = denominator * weight + expf(sink - higher);
        }
        float value = sum / denominator;
        size_t row_width = (size_t)n_heads * dim_v;
        int at = (head0 + h) * dim_v + d;
        out[token * row_width + at] = value;
        if (outq) {
            quantize_group(value, q8_row(outq, token, (int)row_width), q8_scales(outs, token, (int)row_width), at / WARP,
                           (int)row_width / WARP);
        }
    }
}

#define ATTENTION(NAME, K, V, G)                                                                                           \
    KERNEL __launch_bounds__(128, 1)                                                                                         \
        attention_##NAME##_g##G(const float* q, float* out, int8_t* outq, Q8Scale* outs, const uint32_t* positions,        \
                                const uint32_t* seq_of, const uint32_t* seq_starts, const uint32_t* page_starts,           \
                                const uint32_t* pages, const K* k_store, const V* v_store, const float* sinks,             \
                                const float* slopes, float scale, float cap, int window, int n_heads, int n_kv_heads,      \
                                int dim_k, int dim_v, int stride_v, int is_chunked, float* partial, uint32_t* counters) {  \
        attention<K, V, G>(q, out, outq, outs, positions, seq_of, seq_starts, page_starts, pages, k_store, v_store, sinks,    \
                        slopes, scale, cap, window, n_heads, n_kv_heads, dim_k, dim_v, stride_v, is_chunked, partial,      \
                        counters);                                                                                         \
    }

#ifdef KEYS
ATTENTION(of_types, KEYS, VALUES, 1)
ATTENTION(of_types, KEYS, VALUES, 2)
ATTENTION(of_types, KEYS, VALUES, 4)
ATTENTION(of_types, KEYS, VALUES, 8)
#else
ATTENTION(f16, __half, __half, 1)
ATTENTION(f16, __half, __half, 2)
ATTENTION(f16, __half, __half, 4)
ATTENTION(f16, __half, __half, 8)
ATTENTION(f32, float, float, 1)
ATTENTION(f32, float, float, 2)
ATTENTION(f32, float, float, 4)
ATTENTION(f32, float, float, 8)
#endif

// Paged attention, one query row a thread block and split over the context; the last thread block of a row combines.
//
// For token t at position p, head h and its KV head g, over positions j from first to p; first is max(0, p + 1 - window), or p - p % window
// where windows are chunks:
//   s[j] = scale * dot(q[t][h], k[j][g]) - slopes[h] * |p - j|, then cap * tanh(s / cap) where cap > 0;
//   out[t][h] = sum_j exp(s[j] - m) v[j][g] / (sum_j exp(s[j] - m) + exp(sinks[h] - m)).
// With seq_starts (both directions) the last j is p + window - 1, or to the sequence's last position; sequences then begin at 0.
// attention_f16_d{64,128,256}: f16 keys and values, tiles of up to so many columns, 8 query heads that share a KV head in one thread block.
// attention_of_types_d{64,128,256}: the same of e4m3 keys and values.
// attention_f32_gG, and attention_of_types_gG where keys and values are of other types: G query heads (1, 2, 4, 8); of mixed types (MIXED) with two
//   arguments more (mixed.cuh).
// turn_attention_f16_d{64,128,256}: the same behind rope_kv.cu's work, in one launch: norm and rotation of queries and keys, and the store of keys and
//   values, of tokens that are a sequence each. Bits are those of the two launches. Rows are one tile; q, k and v stay as they are. Pages of earlier
//   steps are copied before earlier launches are done; the thread block that has the token's own position has its key and value from k and v.
//   Their grid has as many thread blocks along y as the launch gives it, each with several splits of 512 positions together at most, one after the
//   other, whose pages follow each other through the rings; then warps' sums are next to the rings. Records of heads are n_splits apart.
//   grid: (n_kv_heads * ceil(group / heads), n_splits, n_tokens) where a thread block takes `heads` query heads; block: 128. n_splits may be larger
//   than a token needs: a split without positions returns at once, so a grid captured for a bucket serves every length below it.
// attention_rest_f16_d{64,128} (REST): attention_f16_* over what is behind the pages that attention_shared.cu has done; its records come first, and all are
//   added up. No window.
// What a token sees, from the page of `first` on, is cut into splits of 64, 128, 256 or 512 positions, the shortest of which there are at most
// 1 << split_bits, or the longest: so a result depends neither on the grid nor on the batch.
// Shapes: q, out [n_tokens, n_heads, dim] f32; positions [n_tokens] u32 (0xffffffff: padding, zeros are written);
//   seq_of [n_tokens] u32; seq_starts (or null), page_starts [n_seqs + 1], pages [..] u32; store as kv.cuh says; partial
//   [n_tokens, n_heads, n_splits, row_v + 4] f32 (sums, then max and denominator); counters [n_tokens, gridDim.x] u32, zero
//   before the first launch and again after every launch. outq, outs: optional quantized rows of out (dim_v a multiple of 32).
// Rows of V are stride_v numbers apart: those of kv.cuh, or latent rows, where V is K and a value the beginning of a key.
//
// A warp has every fourth page of the split. It copies them asynchronously to its own ring of n_stages tiles (attention_tiles.cuh), keys
// first, values after them, so that values are on their way while keys are multiplied, and waits for no other warp until they add
// up. attention_heads.cuh has what it does with a tile. Rows of more than a tile's columns are several tiles.
// Shared, dynamic: 4 n_stages tiles, the queries, scores of 4 warps, 8 or G heads and warp_tokens positions, and 4 heads (row_v + 4) sums where values
//   have several tiles a page or splits follow each other; static: 1.2 KB.
// Bytes: keys and values once, 8 (row_v + 4) bytes a head and split to add up. A thread block has 32 KB on their way (f16, 128 numbers, 64
// positions). Limit: device memory from some hundred thread blocks on, before that a chain of three loads and what each warp executes.
// Measured on the simulator only: bench/runs.
#include "attention_heads.cuh"
#include "q8.cuh"
#include "turn.cuh"

constexpr int WARPS = 4;
constexpr int SPLIT_BITS = 6;                // a page for each warp
constexpr int MAX_LONGER = 3;                // eight pages for each warp, which its lanes number
constexpr int AT_ONCE = 8;                   // splits that are loaded together to add up
constexpr int EARLY_TOKENS = 4;
constexpr int COMBINED = 2 * WARP;           // splits whose weights a warp keeps in shared memory

// What a head's sums are multiplied by where a sink takes part, which adds nothing to them.
DEVICE float sink_factor(float sink, float top, float denominator) {
    const float higher = fmaxf(top, sink), weight = expf(top - higher);
    return weight / (denominator * weight + expf(sink - higher));
}

// Counts one more, behind a fence; whoever comes last sees what those before it wrote.
DEVICE uint32_t count_in(uint32_t* counter) {
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(__cvta_generic_to_global(counter))
                 : "memory");
    return before;
}

// Maximum and denominator of a split of a head, nothing beyond the last.
DEVICE float2 end_of(const float* of_head, int split, int n_used, int stride, int row_v) {
    return split < n_used ? *(const float2*)(of_head + (size_t)split * stride + row_v) : make_float2(-INFINITY, 0.0f);
}

// Four neighbouring results of a head, of which `lane` has the quad `quad`: weighted with the sink, stored and quantized. All lanes of a
// warp take part, those beyond the head with no quad.
struct Output {
    float* out;
    int8_t* outq;
    Q8Scale* outs;
    int width, dim_v;

    __device__ __forceinline__ void store(int token, int head, int quad, float4 sum, float factor) const {
        float x[4] = {sum.x * factor, sum.y * factor, sum.z * factor, sum.w * factor};
        const int d = 4 * quad, at = head * dim_v + d;
        float* to = out + (size_t)token * width + at;
        if (dim_v % 4 == 0) {
            if (d < dim_v) *(float4*)to = make_float4(x[0], x[1], x[2], x[3]);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (d + i < dim_v) to[i] = x[i];
        }
        if (outq) quantize_four(x, d < dim_v ? at : width, width, q8_row(outq, token, width), q8_scales(outs, token, width));
    }
};

// What a launch that turns queries and keys itself has of its tokens: keys [n_tokens, n_kv_heads, dim_k] and values [n_tokens, n_kv_heads, dim_v], and where
// they are stored.
template <class K, class V>
struct NewRows {
    const float *k, *v;
    const uint32_t* slots;
    int n_splits;                    // of which records are apart in `partial`
    Turn turn;
    K* k_store;
    V* v_store;
};

// Values of a head as a lane has them, every 32nd.
template <int N>
DEVICE void load_head(float (&x)[N], const float* from, int dim) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < N; k++) x[k] = lane + k * WARP < dim ? from[lane + k * WARP] : 0.0f;
}

// Puts a head into shared memory, normed and turned.
template <int N>
DEVICE void turn_head(float* to, const float (&x)[N], const float* norm, const Turn& turn, const float2* angles, int dim) {
    const int lane = threadIdx.x % WARP, half = turn.n_dims / 2;
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < N; k++) {
        squares += x[k] * x[k];
        if (lane + k * WARP < dim) to[lane + k * WARP] = x[k];
    }
    if (norm) normalize_head(to, squares, norm, turn.eps, dim);
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < half; i += WARP) turn_pair(to, i, half, turn.style, turn.magnitude, angles[i].x, angles[i].y);
    __syncwarp();
}

// What attention_shared.cu has done of tokens: the positions before these, whole pages, and how many records of `partial` it left of them, the first of
// a head. A token has none where it shares nothing; records of heads are n_splits apart.
struct Prefix {
    const uint32_t *tokens, *n_records;
    int n_splits;
};

// TURNED: 0, or columns of heads at most of a launch that turns them itself.
template <class Heads, int TURNED, class K, class V, bool HAS_PREFIX = false>
DEVICE void attention(const Kind<K>& kind_k, const Kind<V>& kind_v, const NewRows<K, V>& fresh, const Prefix& prefix, const float* q, const Output& output, const uint32_t* positions, const uint32_t* seq_of,
                      const uint32_t* seq_starts, const uint32_t* page_starts, const uint32_t* pages, const K* k_store,
                      const V* v_store, const float* sinks, const float* slopes, float scale, float cap, int window,
                      int n_heads, int n_kv_heads, int dim_k, int dim_v, int stride_v, int is_chunked, int heads, int split_bits,
                      int columns_k, int columns_v, int n_stages, int warp_tokens, float* partial, uint32_t* counters) {
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float maxima[WARPS][Heads::HEADS], sums[WARPS][Heads::HEADS], weights[WARPS][COMBINED];
    __shared__ bool is_last;
    __shared__ __align__(16) K new_rows[2][TURNED > 0 ? TURNED : 8];  // the token's key and value
    const int token = blockIdx.z, place = blockIdx.y, n_splits = TURNED > 0 ? fresh.n_splits : HAS_PREFIX ? prefix.n_splits : gridDim.y;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const uint32_t position = positions[token], seq = seq_of[token];
    const uint32_t* table = pages + page_starts[seq];
    // Along with these, since what follows from it is made while page numbers are on their way.
    const bool turns_pair = TURNED > 0 && (int)threadIdx.x < fresh.turn.n_dims / 2;
    const float inv_freq = turns_pair ? fresh.turn.inv_freqs[threadIdx.x] : 0.0f;
    const int group = n_heads / n_kv_heads;
    const int g = blockIdx.x % n_kv_heads, first_head = blockIdx.x / n_kv_heads * heads;
    const int n_here = min(heads, group - first_head);
    const int head0 = g * group + first_head;
    const int row_k = kv_row(dim_k), row_v = kv_row(dim_v), n_quads = (row_v / 4 + WARP - 1) / WARP * WARP;
    q += ((size_t)token * n_heads + head0) * dim_k;
    Heads of_warp;
    if constexpr (std::is_same<K, MixedStore>::value) of_warp.keys = kind_k, of_warp.values = kind_v;
    let_next_begin();
    const TileCopy<K, Heads::COPY_LANES> copy_k(kind_k, row_k, columns_k);
    const TileCopy<V, Heads::COPY_LANES> copy_v(kind_v, stride_v, columns_v);
    if (position == 0xffffffffu) {
        if (place > 0) return;
        await_earlier();
#pragma unroll 1
        for (int h = warp; h < n_here; h += WARPS)
#pragma unroll 1
            for (int quad = lane; quad < n_quads; quad += WARP)
                output.store(token, head0 + h, quad, make_float4(0.0f, 0.0f, 0.0f, 0.0f), 0.0f);
        return;
    }
    int context = position + 1;
    const int first = first_seen(position, window, is_chunked);
    if (seq_starts) {
        int length = seq_starts[seq + 1] - seq_starts[seq];
        context = window > 0 ? min(length, (int)position + window) : length;
    }
    const int n_before = HAS_PREFIX ? prefix.n_records[token] : 0;
    const int first_page = HAS_PREFIX ? prefix.tokens[token] : first / PAGE * PAGE, n_seen = context - first_page;
    const int excess = ((n_seen - 1) >> SPLIT_BITS) >> split_bits;
    const int len_bits = SPLIT_BITS + min(MAX_LONGER, excess > 0 ? 32 - __clz(excess) : 0);
    const int n_used = ((n_seen - 1) >> len_bits) + 1, n_records = n_before + n_used;
    // Splits of this thread block, one after the other.
    const int n_each = TURNED > 0 ? (n_used - 1) / (int)gridDim.y + 1 : 1, first_split = place * n_each;
    const int begin = first_page + (first_split << len_bits), end = min(begin + (n_each << len_bits), context);
    if (begin >= end) return;
    const int n_pages = (end - begin + PAGE - 1) / PAGE, n_own = (n_pages - warp + WARPS - 1) / WARPS;
    uint32_t own_pages = 0;
    if (lane < n_own) own_pages = table[begin / PAGE + warp + lane * WARPS];
    const bool has_newest = TURNED > 0 && end == context;
    const int newest_page = has_newest && warp == (n_pages - 1) % WARPS ? n_own - 1 : -1, stored_end = has_newest ? end - 1 : end;
    if constexpr (TURNED == 0) {
        await_earlier();
        of_warp.load_queries(q, n_here, dim_k, warp);
    }

    const int tile_size = max(tile_bytes(kind_k, columns_k, row_k), tile_bytes(kind_v, columns_v, stride_v));
    uint8_t* ring = shared + warp * n_stages * tile_size;
    uint8_t* queries = shared + WARPS * n_stages * tile_size;
    const int apart = warp_tokens + Heads::SCORE_PAD, sums_apart = row_v + 4;
    float* all_scores = (float*)(queries + (row_k + 15) / 16 * 16 * Heads::QUERY_BYTES);
    float* scores = all_scores + warp * apart * Heads::HEADS;
    // The sums of the warps: those of values of one tile take the place of the warps' rings, a ring apart, unless another split follows.
    const bool is_one_part = (TURNED > 0 || columns_v >= row_v) && n_each == 1;
    float* all_sums = is_one_part ? (float*)shared : all_scores + WARPS * apart * Heads::HEADS;
    const int warps_apart = is_one_part ? n_stages * tile_size / 4 : heads * sums_apart;

    // Copies of a launch that turns rows: tile `t` of those of the warp, keys of a split before its values, a split after the other. What is copied follows
    // from t alone, which takes few registers.
    const int split_pages = 1 << (len_bits - SPLIT_BITS);
    auto copy_tile = [&](int t) {
        if (t < 2 * n_own) {
            const int in_split = t & (2 * split_pages - 1), of_split = (t - in_split) / 2, n = min(split_pages, n_own - of_split);
            const int place = of_split + (in_split < n ? in_split : in_split - n);
            const uint32_t page = __shfl_sync(FULL_WARP, own_pages, place);
            const int from = begin + (warp + place * WARPS) * PAGE;
            uint8_t* tile = ring + (t & (n_stages - 1)) * tile_size;
            if (in_split < n) {
                copy_k.start(tile, k_store, page, g, n_kv_heads, 0, Heads::part(columns_k, row_k), from, first, stored_end);
            } else {
                copy_v.start(tile, v_store, page, g, n_kv_heads, 0, Heads::part(columns_v, row_v), from, first, stored_end);
            }
        }
        commit_copies();
    };
    // What other launches copy next: a page's columns, keys before values.
    int next_page = 0, next_column = 0, next_slot = 0, next_kind = n_own > 0 ? 0 : 2;
    auto copy_next = [&]() {
        if (next_kind < 2) {
            const uint32_t page = __shfl_sync(FULL_WARP, own_pages, next_page);
            const int from = begin + (warp + next_page * WARPS) * PAGE;
            uint8_t* tile = ring + next_slot * tile_size;
            if (next_kind == 0) {
                copy_k.start(tile, k_store, page, g, n_kv_heads, next_column, Heads::part(columns_k, row_k - next_column), from, first,
                             stored_end);
                next_column += columns_k;
                if (next_column >= row_k) next_column = 0, next_page++;
                if (next_page == n_own) next_page = 0, next_kind = 1;
            } else {
                copy_v.start(tile, v_store, page, g, n_kv_heads, next_column, Heads::part(columns_v, row_v - next_column), from, first,
                             stored_end);
                next_page++;
                if (next_page == n_own) next_page = 0, next_column += columns_v;
                if (next_column >= row_v) next_kind = 2;
            }
            next_slot = next_slot + 1 == n_stages ? 0 : next_slot + 1;
        }
        commit_copies();
    };
    auto wait_for_next = [&]() {
        if (n_stages == 2) {
            wait_copies<1>();
        } else {
            wait_copies<3>();
        }
        __syncwarp();
    };
    if constexpr (TURNED == 0) {
#pragma unroll 1
        for (int i = 0; i < n_stages; i++) copy_next();
    } else {
        // No launch of this step writes pages of the layer but this one, and it reads no row that it writes: so pages are copied before the wait. Where
        // there are many thread blocks, queries would queue behind them.
        const int n_early = gridDim.z <= EARLY_TOKENS ? n_stages : 0;
        constexpr int N = TURNED / WARP;
        const Turn& turn = fresh.turn;
        float2* angles = (float2*)all_scores;
        float *new_key = all_scores + TURNED, *turned = (float*)queries;
        const uint32_t slot = fresh.slots[token];
        if (turns_pair) {
            float sin, cos;
            sincosf((float)position * inv_freq, &sin, &cos);
            angles[threadIdx.x] = make_float2(sin, cos);
        }
#pragma unroll 1
        for (int t = 0; t < n_early; t++) copy_tile(t);
        await_earlier();
        const bool stores = first_head == 0 && slot != 0xffffffffu;
        const size_t of_token = (size_t)token * n_kv_heads + g;
        float mine[Heads::HEADS / WARPS][N], newest[N];
#pragma unroll
        for (int i = 0; i < Heads::HEADS / WARPS; i++)
            load_head(mine[i], q + (warp + i * WARPS) * dim_k, warp + i * WARPS < n_here ? dim_k : 0);
        if (has_newest && warp == 0) load_head(newest, fresh.k + of_token * dim_k, dim_k);
        if (has_newest && warp == 1) load_head(newest, fresh.v + of_token * dim_v, dim_v);
#pragma unroll 1
        for (int t = n_early; t < n_stages; t++) copy_tile(t);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < Heads::HEADS / WARPS; i++) {
            const int h = warp + i * WARPS;
            if (h < n_here) turn_head(turned + h * dim_k, mine[i], turn.q_norm, turn, angles, dim_k);
        }
        if (has_newest && warp == 0) {
            turn_head(new_key, newest, turn.k_norm, turn, angles, dim_k);
            K* to = kv_place(fresh.k_store, stores ? slot : 0, g, n_kv_heads, row_k);
#pragma unroll 1
            for (int i = lane; i < row_k; i += WARP) {
                put(&new_rows[0][i], i < dim_k ? new_key[i] : 0.0f);
                if (stores) to[i] = new_rows[0][i];
            }
        }
        if (has_newest && warp == 1) {
            V* to = kv_place(fresh.v_store, stores ? slot : 0, g, n_kv_heads, row_v);
#pragma unroll
            for (int k = 0; k < N; k++) {
                const int i = lane + k * WARP;
                if (i < row_v) put(&new_rows[1][i], newest[k]);
                if (i < row_v && stores) to[i] = new_rows[1][i];
            }
        }
        __syncthreads();
        of_warp.load_queries(turned, n_here, dim_k, warp);
        __syncthreads();
    }
    // A warp that has the token's own page puts its row there, which is not in the store yet.
    auto put_newest = [&](uint8_t* tile, int stride, const K* row, int n) {
        if (lane < n / 8) ((uint4*)(tile + position % PAGE * stride))[lane] = ((const uint4*)row)[lane];
        __syncwarp();
    };
    of_warp.stage_queries(queries, q, n_here, dim_k, row_k, scale, warp);
    __syncthreads();

    const int n_here_splits = TURNED > 0 ? min(n_each, n_used - first_split) : 1;
    int stride;
    float* records;
    // The tile that is next: its slot, or its number in a launch that turns rows.
    int next_tile = 0;
    auto slot_of_next = [&]() { return TURNED > 0 ? next_tile & (n_stages - 1) : next_tile; };
    auto next_is_done = [&]() {
        __syncwarp();
        if constexpr (TURNED > 0) {
            copy_tile(next_tile + n_stages);
            next_tile++;
        } else {
            next_tile = next_tile + 1 == n_stages ? 0 : next_tile + 1;
            copy_next();
        }
    };
#pragma unroll 1
    for (int k = 0; k < n_here_splits; k++) {
        const int own_first = k * split_pages, own_last = TURNED > 0 ? min(own_first + split_pages, n_own) : n_own;
        const int split_begin = begin + (k << len_bits);
#pragma unroll 1
        for (int page = own_first; page < own_last; page++) {
#pragma unroll 1
            for (int column = 0; column < (TURNED > 0 ? 1 : row_k); column += columns_k) {
                wait_for_next();
                if (TURNED > 0 && page == newest_page) put_newest(ring + slot_of_next() * tile_size, copy_k.stride, new_rows[0], row_k);
                of_warp.multiply_keys(ring + slot_of_next() * tile_size, copy_k.stride, row_k, column, Heads::part(columns_k, row_k - column), queries);
                next_is_done();
            }
            of_warp.store_scores(scores, apart, page - own_first);
        }
        __syncwarp();
        const OwnPositions own = {TURNED > 0 ? max(own_last - own_first, 0) : n_own, warp, split_begin, first,
                                  TURNED > 0 ? min(split_begin + (1 << len_bits), end) : end, (int)position};
        of_warp.softmax(scores, apart, own, slopes ? slopes + head0 : nullptr, n_here, cap, maxima[warp], sums[warp]);
        __syncwarp();

        if (own_last > own_first) {
#pragma unroll 1
            for (int column = 0; column < (TURNED > 0 ? 1 : row_v); column += columns_v) {
#pragma unroll 1
                for (int page = own_first; page < own_last; page++) {
                    wait_for_next();
                    if (TURNED > 0 && page == newest_page) put_newest(ring + slot_of_next() * tile_size, copy_v.stride, new_rows[1], row_v);
                    of_warp.add_values(ring + slot_of_next() * tile_size, copy_v.stride, stride_v, column, Heads::part(columns_v, row_v - column),
                                       scores, apart, page - own_first);
                    next_is_done();
                }
                of_warp.store_sums(all_sums + warp * warps_apart, sums_apart, column, min(columns_v, row_v - column), n_here);
            }
        }
        __syncthreads();

        // The warps' sums, a head a warp and four columns a lane. A warp without positions has no weight, and another's sums in the place of its own.
        const int n_active = min(WARPS, n_pages - own_first * WARPS);
        stride = row_v + 4;
        records = partial + ((size_t)token * n_heads + head0) * n_splits * stride;
#pragma unroll 1
        for (int h = warp; h < n_here; h += WARPS) {
            float top = maxima[0][h], factors[WARPS], denominator = 0.0f;
#pragma unroll
            for (int w = 1; w < WARPS; w++) top = fmaxf(top, maxima[w][h]);
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                factors[w] = expf(maxima[w][h] - top);
                denominator += factors[w] * sums[w][h];
            }
            float* record = records + ((size_t)h * n_splits + n_before + first_split + k) * stride;
            const float factor = n_records > 1 ? 1.0f : sinks ? sink_factor(sinks[head0 + h], top, denominator) : 1.0f / denominator;
#pragma unroll 1
            for (int quad = lane; quad < n_quads; quad += WARP) {
                const float* from = all_sums + h * sums_apart + 4 * min(quad, row_v / 4 - 1);
                float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
                for (int w = 0; w < WARPS; w++) {
                    const float4 x = *(const float4*)(from + min(w, n_active - 1) * warps_apart);
                    sum.x += factors[w] * x.x, sum.y += factors[w] * x.y, sum.z += factors[w] * x.z, sum.w += factors[w] * x.w;
                }
                if (n_records == 1) {
                    output.store(token, head0 + h, quad, sum, factor);
                } else if (quad < row_v / 4) {
                    *(float4*)(record + 4 * quad) = sum;
                }
            }
            if (n_records > 1 && lane == 0) *(float2*)(record + row_v) = make_float2(top, denominator);
        }
        // Maxima and sums are read before those of the next split come.
        if (k + 1 < n_here_splits) __syncthreads();
    }
    if (n_records == 1) return;
    // Made again, which takes fewer registers than to keep them over the loop.
    if (TURNED > 0) stride = row_v + 4, records = partial + ((size_t)token * n_heads + head0) * n_splits * stride;

    // Whoever comes last combines: its reads are ordered after everyone's writes by fence and counter.
    if (TURNED == 0 || n_each < n_used) {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t* counter = counters + (size_t)token * gridDim.x + blockIdx.x;
            is_last = count_in(counter) == (n_used - 1) / n_each;
            if (is_last) *counter = 0;
        }
        __syncthreads();
        if (!is_last) return;
    } else {
        __syncthreads();
    }

    // A head a warp: the first of what it adds up is loaded along with what the weights are made of.
#pragma unroll 1
    for (int h = warp; h < n_here; h += WARPS) {
        const float* of_head = records + (size_t)h * n_splits * stride;
#pragma unroll 1
        for (int quad = lane; quad < n_quads; quad += WARP) {
            const float* column = of_head + 4 * min(quad, row_v / 4 - 1);
            float4 x[AT_ONCE];
            auto load = [&](int s) {
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) x[i] = *(const float4*)(column + min(s + i, n_records - 1) * stride);
            };
            load(0);
            float2 ends[COMBINED / WARP];
#pragma unroll
            for (int i = 0; i < COMBINED / WARP; i++) ends[i] = end_of(of_head, lane + i * WARP, n_records, stride, row_v);
            float top = fmaxf(ends[0].x, ends[1].x), denominator = 0.0f;
#pragma unroll 1
            for (int s = lane + COMBINED; s < n_records; s += WARP) top = fmaxf(top, end_of(of_head, s, n_records, stride, row_v).x);
            top = warp_max(top);
            float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
            for (int base = 0; base < n_records; base += COMBINED) {
#pragma unroll
                for (int i = 0; i < COMBINED / WARP; i++) {
                    if (base > 0) ends[i] = end_of(of_head, base + lane + i * WARP, n_records, stride, row_v);
                    const float weight = expf(ends[i].x - top);
                    weights[warp][lane + i * WARP] = weight;
                    denominator += weight * ends[i].y;
                }
                __syncwarp();
                const int n = min(COMBINED, n_records - base);
#pragma unroll 1
                for (int s = 0; s < n; s += AT_ONCE) {
                    // Weights beyond the last split are zero.
#pragma unroll
                    for (int i = 0; i < AT_ONCE; i++) {
                        const float weight = weights[warp][s + i];
                        sum.x += weight * x[i].x, sum.y += weight * x[i].y, sum.z += weight * x[i].z, sum.w += weight * x[i].w;
                    }
                    if (base + s + AT_ONCE < n_records) load(base + s + AT_ONCE);
                }
                __syncwarp();
            }
            denominator = warp_sum(denominator);
            const float factor = sinks ? sink_factor(sinks[head0 + h], top, denominator) : 1.0f / denominator;
            output.store(token, head0 + h, quad, sum, factor);
        }
    }
}

#define ATTENTION(NAME, K, V, ...)                                                                                           \
    KERNEL __launch_bounds__(128, __VA_ARGS__::BLOCKS)                                                                       \
        attention_##NAME(const float* q, float* out, int8_t* outq, Q8Scale* outs, const uint32_t* positions,                 \
                         const uint32_t* seq_of, const uint32_t* seq_starts, const uint32_t* page_starts,                    \
                         const uint32_t* pages, const K* k_store, const V* v_store, const float* sinks,                      \
                         const float* slopes, float scale, float cap, int window, int n_heads, int n_kv_heads, int dim_k,    \
                         int dim_v, int stride_v, int is_chunked, int heads, int split_bits, int columns_k, int columns_v,   \
                         int n_stages, int warp_tokens, float* partial, uint32_t* counters) {                                \
        attention<__VA_ARGS__, 0, K, V>({}, {}, {}, {}, q, {out, outq, outs, n_heads * dim_v, dim_v}, positions, seq_of, seq_starts, page_starts,     \
                               pages, k_store, v_store, sinks, slopes, scale, cap, window, n_heads, n_kv_heads, dim_k,       \
                               dim_v, stride_v, is_chunked, heads, split_bits, columns_k, columns_v, n_stages, warp_tokens,  \
                               partial, counters);                                                                           \
    }

#define TURN_ATTENTION(NAME, COLUMNS, ...)                                                                                     \
    KERNEL __launch_bounds__(128, __VA_ARGS__::BLOCKS)                                                                         \
        turn_attention_##NAME(const float* q, float* out, int8_t* outq, Q8Scale* outs, const uint32_t* positions,              \
                              const uint32_t* seq_of, const uint32_t* page_starts, const uint32_t* pages, __half* k_store,     \
                              __half* v_store, const float* sinks, const float* slopes, float scale, float cap, int window,    \
                              int n_heads, int n_kv_heads, int dim_k, int dim_v, int is_chunked, int heads, int split_bits,    \
                              int columns_k, int columns_v, int n_stages, int warp_tokens, float* partial, uint32_t* counters, \
                              const float* k, const float* v, const uint32_t* slots, int n_splits, const float* inv_freqs,     \
                              float magnitude, int n_dims, int style, const float* q_norm, const float* k_norm, float eps) {   \
        attention<__VA_ARGS__, COLUMNS, __half, __half>(                                                                       \
            {}, {}, {k, v, slots, n_splits, {inv_freqs, magnitude, n_dims, style, q_norm, k_norm, eps}, k_store, v_store}, {}, q,      \
            {out, outq, outs, n_heads * dim_v, dim_v}, positions, seq_of, nullptr, page_starts, pages, k_store, v_store,       \
            sinks, slopes, scale, cap, window, n_heads, n_kv_heads, dim_k, dim_v, kv_row(dim_v), is_chunked, heads,            \
            split_bits, columns_k, columns_v, n_stages, warp_tokens, partial, counters);                                       \
    }

#define REST_ATTENTION(NAME, ...)                                                                                              \
    KERNEL __launch_bounds__(128, __VA_ARGS__::BLOCKS)                                                                         \
        attention_rest_##NAME(const float* q, float* out, int8_t* outq, Q8Scale* outs, const uint32_t* positions,              \
                              const uint32_t* seq_of, const uint32_t* page_starts, const uint32_t* pages,                      \
                              const __half* k_store, const __half* v_store, const float* sinks, float scale, float cap,        \
                              int n_heads, int n_kv_heads, int dim, int heads, int split_bits, int n_stages, int warp_tokens,  \
                              float* partial, uint32_t* counters, const uint32_t* prefix_tokens, const uint32_t* prefix_records, \
                              int n_splits) {                                                                                  \
        attention<__VA_ARGS__, 0, __half, __half, true>(                                                                       \
            {}, {}, {}, {prefix_tokens, prefix_records, n_splits}, q, {out, outq, outs, n_heads * dim, dim}, positions, seq_of,        \
            nullptr, page_starts, pages, k_store, v_store, sinks, nullptr, scale, cap, 0, n_heads, n_kv_heads, dim, dim, dim,  \
            0, heads, split_bits, dim, dim, n_stages, warp_tokens, partial, counters);                                         \
    }

#define MIXED_ATTENTION(NAME, ...)                                                                                             \
    KERNEL __launch_bounds__(128, __VA_ARGS__::BLOCKS)                                                                         \
        attention_##NAME(const float* q, float* out, int8_t* outq, Q8Scale* outs, const uint32_t* positions,                   \
                         const uint32_t* seq_of, const uint32_t* seq_starts, const uint32_t* page_starts,                      \
                         const uint32_t* pages, const MixedStore* k_store, const MixedStore* v_store, const float* sinks,      \
                         const float* slopes, float scale, float cap, int window, int n_heads, int n_kv_heads, int dim_k,      \
                         int dim_v, int stride_v, int is_chunked, int heads, int split_bits, int columns_k, int columns_v,     \
                         int n_stages, int warp_tokens, float* partial, uint32_t* counters, int key_type, int value_type) {    \
        attention<__VA_ARGS__, 0, MixedStore, MixedStore>(                                                                     \
            {key_type}, {value_type}, {}, {}, q, {out, outq, outs, n_heads * dim_v, dim_v}, positions, seq_of, seq_starts,     \
            page_starts, pages, k_store, v_store, sinks, slopes, scale, cap, window, n_heads, n_kv_heads, dim_k, dim_v,        \
            stride_v, is_chunked, heads, split_bits, columns_k, columns_v, n_stages, warp_tokens, partial, counters);          \
    }

#if defined(REST)
REST_ATTENTION(f16_d64, TensorHeads<4, __half>)
REST_ATTENTION(f16_d128, TensorHeads<8, __half>)
#elif defined(BOTH)
ATTENTION(of_types_d64, BOTH, BOTH, TensorHeads<4, BOTH>)
ATTENTION(of_types_d128, BOTH, BOTH, TensorHeads<8, BOTH>)
ATTENTION(of_types_d256, BOTH, BOTH, TensorHeads<16, BOTH>)
#elif defined(MIXED)
MIXED_ATTENTION(of_types_g1, MixedHeads<1>)
MIXED_ATTENTION(of_types_g2, MixedHeads<2>)
MIXED_ATTENTION(of_types_g4, MixedHeads<4>)
MIXED_ATTENTION(of_types_g8, MixedHeads<8>)
#elif defined(KEYS)
ATTENTION(of_types_g1, KEYS, VALUES, PlainHeads<KEYS, VALUES, 1>)
ATTENTION(of_types_g2, KEYS, VALUES, PlainHeads<KEYS, VALUES, 2>)
ATTENTION(of_types_g4, KEYS, VALUES, PlainHeads<KEYS, VALUES, 4>)
ATTENTION(of_types_g8, KEYS, VALUES, PlainHeads<KEYS, VALUES, 8>)
#else
ATTENTION(f16_d64, __half, __half, TensorHeads<4, __half>)
ATTENTION(f16_d128, __half, __half, TensorHeads<8, __half>)
ATTENTION(f16_d256, __half, __half, TensorHeads<16, __half>)
TURN_ATTENTION(f16_d64, 64, TensorHeads<4, __half>)
TURN_ATTENTION(f16_d128, 128, TensorHeads<8, __half>)
TURN_ATTENTION(f16_d256, 256, TensorHeads<16, __half>)
ATTENTION(f32_g1, float, float, PlainHeads<float, float, 1>)
ATTENTION(f32_g2, float, float, PlainHeads<float, float, 2>)
ATTENTION(f32_g4, float, float, PlainHeads<float, float, 4>)
ATTENTION(f32_g8, float, float, PlainHeads<float, float, 8>)
#endif

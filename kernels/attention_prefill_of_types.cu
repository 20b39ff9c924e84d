// Paged attention of many query rows on tensor cores, for keys and values of any types but f16 both.
//
// Compiled once for each type that both have, -DKEYS=float -DVALUES=float, and once for mixed types, -DMIXED (mixed.cuh), with two arguments more and
// 16 positions at a time. Formula, rows, shapes and grid are those of attention_prefill.cu.
// attention_prefill_of_types_d64, _d128, _d256: heads of up to so many values. 128 rows a thread block of 256, and 64 positions at a time, of heads
//   beyond 64 values 32, and 16 where values are q8_0, for want of registers; of heads beyond 128 values 64 rows, and two warps share 16 rows.
// All factors are tf32 numbers (tf32.cuh): queries, weights, and keys and values that are neither f16 nor e4m3, are two each, value and rest, in two or three
// products, so 21 bits of each count and none is too large. Keys and values lie in shared memory as they are in the store and are split by
// the warps that multiply them; a lane takes 4 neighbouring columns at a time, and both factors count k in that order.
// Shared, dynamic, `Layout::BYTES` (its twin: `PrefillTiles` in crates/cuda-exec/src/ops/attention_prefill.rs): up to 84480 bytes. No bank
// conflicts in the loop, but where copies fill rows of 64 bytes. Alignment: 16 bytes. Measured on the simulator only.
#include "attention_runs.cuh"
#include "attention_tiles.cuh"
#include "mixed.cuh"
#include "tf32.cuh"

// Four neighbouring numbers of a tile's row, still to be multiplied by a scale.
template <class T>
DEVICE void load4(const uint8_t* p, float (&x)[4]) {
    if constexpr (std::is_same<T, __half>::value) {
        const uint2 q = *(const uint2*)p;
        float2 a = __half22float2(*(const __half2*)&q.x), b = __half22float2(*(const __half2*)&q.y);
        x[0] = a.x, x[1] = a.y, x[2] = b.x, x[3] = b.y;
    } else if constexpr (std::is_same<T, float>::value) {
        const float4 q = *(const float4*)p;
        x[0] = q.x, x[1] = q.y, x[2] = q.z, x[3] = q.w;
    } else if constexpr (std::is_same<T, E4m3>::value) {
        uint32_t even, odd;
        halves_of(*(const uint32_t*)p, even, odd);
        const float2 a = __half22float2(*(const __half2*)&even), b = __half22float2(*(const __half2*)&odd);
        x[0] = OF_HALVES * a.x, x[1] = OF_HALVES * b.x, x[2] = OF_HALVES * a.y, x[3] = OF_HALVES * b.y;
    } else {
        // A byte plus 128 below the exponent of 2^23 is a number without a conversion.
        const uint32_t word = *(const uint32_t*)p ^ 0x80808080u;
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7650 | i)) - 8388736.0f;
    }
}

// A tile of N positions: rows of D numbers of type T as in the store, STRIDE bytes apart, and of q8_0 their scales behind them.
template <class T, int D, int N, int PADDING>
struct Tile {
    static constexpr int STRIDE = D * Rows<T>::BYTES + PADDING;
    static constexpr int BYTES = N * STRIDE + (Rows<T>::HAS_SCALES ? N * D / 16 : 0);
    uint8_t* at;
    const T* store;
    const uint32_t* table;
    int g, n_kv_heads, row, oldest, last;
    Kind<T> kind;

    __device__ __forceinline__ static constexpr int bytes() { return BYTES; }

    // Begins to copy the positions from `base` on: zeros beyond the row and for positions that no row sees.
    __device__ __forceinline__ void fetch(int base) const {
        constexpr int CHUNKS = D * Rows<T>::BYTES / 16;
#pragma unroll 4
        for (int i = threadIdx.x; i < N * CHUNKS; i += THREADS) {
            int local = i / CHUNKS, c = i % CHUNKS, j = base + local;
            bool is_there = j >= oldest && j <= last && c * 16 < row * Rows<T>::BYTES;
            const uint8_t* from = (const uint8_t*)store;
            if (is_there) from = row_bytes(kv_place(store, table[j / PAGE] * PAGE + j % PAGE, g, n_kv_heads, row)) + c * 16;
            copy16(at + local * STRIDE + c * 16, from, is_there);
        }
        if (Rows<T>::HAS_SCALES) {
            // Two bytes for each 32 numbers of a page's rows.
#pragma unroll 1
            for (int i = threadIdx.x; i < N / PAGE * (row / 16); i += THREADS) {
                int page = i / (row / 16), c = i % (row / 16), j = base + page * PAGE;
                bool is_there = j + PAGE > oldest && j <= last;
                const uint8_t* from = (const uint8_t*)store;
                if (is_there) from = row_bytes(kv_place(store, table[j / PAGE] * PAGE, g, n_kv_heads, row)) + PAGE * row + c * 16;
                copy16(at + N * STRIDE + page * row + c * 16, from, is_there);
            }
        }
        commit_copies();
    }

    // Scales of a row. Addresses that follow from it would be kept over the loop, in more registers than there are.
    __device__ __forceinline__ int groups() const {
        int n = row / 32;
        asm volatile("" : "+r"(n));
        return n;
    }

    // Numbers column .. column + 3 of a position.
    __device__ __forceinline__ void load(int local, int column, int groups, float (&x)[4]) const {
        load4<T>(at + local * STRIDE + column * Rows<T>::BYTES, x);
        if (Rows<T>::HAS_SCALES) {
            float scale = __half2float(((const __half*)(at + N * STRIDE))[local * groups + min(column / 32, groups - 1)]);
            // What stands in the store for positions that no row sees may be no number; their bytes are zero here.
            scale = fminf(fabsf(scale), 65504.0f);
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] *= scale;
        }
    }
};

// A tile of a store of mixed types: the same, with rows that are apart by what the type asks for.
template <int D, int N, bool IS_KEYS>
struct MixedTile {
    uint8_t* at;
    const MixedStore* store;
    const uint32_t* table;
    int g, n_kv_heads, row, oldest, last;
    Kind<MixedStore> kind;

    __device__ __forceinline__ int stride() const { return D * kind.bytes() + (IS_KEYS ? 16 * kind.bytes() : 16); }
    __device__ __forceinline__ int bytes() const { return N * stride() + (kind.has_scales() ? N * D / 16 : 0); }

    __device__ __forceinline__ void fetch(int base) const {
        const int n_chunks = D * kind.bytes() / 16;
#pragma unroll 1
        for (int i = threadIdx.x; i < N * n_chunks; i += THREADS) {
            const int local = i / n_chunks, c = i % n_chunks, j = base + local;
            const bool is_there = j >= oldest && j <= last && c * 16 < row * kind.bytes();
            const uint8_t* from = (const uint8_t*)store;
            if (is_there) from = kind.row_at(store, table[j / PAGE] * PAGE + j % PAGE, g, n_kv_heads, row) + c * 16;
            copy16(at + local * stride() + c * 16, from, is_there);
        }
        if (kind.has_scales()) {
#pragma unroll 1
            for (int i = threadIdx.x; i < N / PAGE * (row / 16); i += THREADS) {
                const int page = i / (row / 16), c = i % (row / 16), j = base + page * PAGE;
                const bool is_there = j + PAGE > oldest && j <= last;
                const uint8_t* from = (const uint8_t*)store;
                if (is_there) from = kind.row_at(store, table[j / PAGE] * PAGE, g, n_kv_heads, row) + PAGE * row + c * 16;
                copy16(at + N * stride() + page * row + c * 16, from, is_there);
            }
        }
        commit_copies();
    }

    __device__ __forceinline__ int groups() const { return row / 32; }

    __device__ __forceinline__ void load(int local, int column, int groups, float (&x)[4]) const {
        // What follows from the type would be kept over the loop, in more registers than there are.
        MixedTile now = *this;
        asm volatile("" : "+r"(now.kind.type));
        now.kind.load(at + local * now.stride(), column, x);
        if (now.kind.has_scales()) {
            float scale = __half2float(((const __half*)(at + N * now.stride()))[local * groups + min(column / 32, groups - 1)]);
            // What stands in the store for positions that no row sees may be no number; their bytes are zero here.
            scale = fminf(fabsf(scale), 65504.0f);
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] *= scale;
        }
    }
};

// One column of B: numbers k = 2 e and 2 e + 1 of a lane's four, as value and rest.
template <class T>
DEVICE void multiply(float (&c)[4], const uint32_t (&value)[4], const uint32_t (&rest)[4], float b0, float b1) {
    if constexpr (std::is_same<T, __half>::value || std::is_same<T, E4m3>::value) {
        mma_tf32(c, rest, __float_as_uint(b0), __float_as_uint(b1));
        mma_tf32(c, value, __float_as_uint(b0), __float_as_uint(b1));
    } else {
        const Split first = split_tf32(b0), second = split_tf32(b1);
        mma_tf32(c, rest, first.value, second.value);
        mma_tf32(c, value, first.rest, second.rest);
        mma_tf32(c, value, first.value, second.value);
    }
}

#ifdef MIXED
using KEYS = MixedStore;
using VALUES = MixedStore;

template <int D>
struct Layout {
    static constexpr int SPLIT = D > 128 ? 2 : 1, POSITIONS = 16;
    using Keys = MixedTile<D, POSITIONS, true>;
    using Values = MixedTile<D, POSITIONS, false>;
    static constexpr int SCORES = SPLIT == 2 ? POSITIONS * 16 * THREADS / WARP * 4 : 0;
    static_assert(POSITIONS * (2 * 4 * D + 64 + 16) + SCORES <= 99 << 10, "what a thread block may ask for on compute capability 8.6");
};
#else
template <int D>
struct Layout {
    static constexpr int SPLIT = D > 128 ? 2 : 1, POSITIONS = D > 64 ? (Rows<VALUES>::HAS_SCALES ? 16 : 32) : 64;
    // Rows are read along by eight lanes, columns by four: the paddings that give each phase its own banks.
    using Keys = Tile<KEYS, D, POSITIONS, 16 * Rows<KEYS>::BYTES>;
    using Values = Tile<VALUES, D, POSITIONS, 16>;
    static constexpr int SCORES = SPLIT == 2 ? POSITIONS * 16 * THREADS / WARP * 4 : 0;
    static constexpr int BYTES = Keys::BYTES + Values::BYTES + SCORES;
    static_assert(BYTES <= 99 << 10, "what a thread block may ask for on compute capability 8.6");
};
#endif

template <int D>
DEVICE void attention_prefill(RUN_PARAMETERS(KEYS, VALUES), const Kind<KEYS>& kind_k, const Kind<VALUES>& kind_v) {
    using L = Layout<D>;
    constexpr int SPLIT = L::SPLIT, POSITIONS = L::POSITIONS, ROWS = 128 / SPLIT, COLUMNS = D / SPLIT;
    extern __shared__ __align__(16) uint8_t shared[];
    const int g_kv = blockIdx.x, seq = blockIdx.z, group = n_heads / n_kv_heads, row0 = longest_first() * ROWS;
    const int first = seq_starts[seq], length = (int)seq_starts[seq + 1] - first, n_rows = length * group - row0;
    if (n_rows <= 0) return;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const uint32_t position0 = positions[first];
    const Run run = {first, length, group, g_kv * group, row0, n_rows, (int)position0, window, is_chunked, both, n_heads};
    if (position0 == 0xffffffffu) {
        write_zeros(run, ROWS, out, dim_v);
        return;
    }
    const uint32_t* table = pages + page_starts[seq];
    const int last = run.last(ROWS), oldest = run.oldest(), begin = oldest / POSITIONS * POSITIONS;
    const typename L::Keys keys = {shared, k_store, table, g_kv, n_kv_heads, kv_row(dim_k), oldest, last, kind_k};
    const typename L::Values values = {shared + keys.bytes(), v_store, table, g_kv, n_kv_heads, kv_row(dim_v), oldest, last, kind_v};
    const SharedScores<POSITIONS / 8> scores = {(float4*)(shared + keys.bytes() + values.bytes())};

    const LaneRows rows(run, warp / SPLIT * 16, slopes);
    const int column0 = warp % SPLIT * COLUMNS;
    // Four neighbours of each 16 columns of both rows.
    float queries[COLUMNS / 16][2][4];
#pragma unroll
    for (int k = 0; k < COLUMNS / 16; k++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float2 a = make_float2(0.0f, 0.0f), b = a;
            if (rows.is_there[r]) {
                const float* from = q + rows.place[r] * dim_k;
                a = load_pair(from, column0 + k * 16 + 4 * t, dim_k), b = load_pair(from, column0 + k * 16 + 4 * t + 2, dim_k);
            }
            queries[k][r][0] = a.x * scale, queries[k][r][1] = a.y * scale;
            queries[k][r][2] = b.x * scale, queries[k][r][3] = b.y * scale;
        }

    float acc[COLUMNS / 8][4] = {};
    Weights weights;
    keys.fetch(begin);
#pragma unroll 1
    for (int base = begin; base <= last; base += POSITIONS) {
        wait_copies<0>();
        __syncthreads();  // The keys are there, and everyone is done with the values of the step before.
        values.fetch(base);

        const int key_groups = keys.groups();
        float s[POSITIONS / 8][4] = {};
#pragma unroll
        for (int k = 0; k < COLUMNS / 16; k++) {
            uint32_t value[2][4], rest[2][4];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float x = queries[k][i % 2][i / 2];
                // Splits of all queries would be kept over the loop, in more registers than there are.
                asm volatile("" : "+f"(x));
                const Split split = split_tf32(x);
                value[i / 4][i % 4] = split.value, rest[i / 4][i % 4] = split.rest;
            }
#pragma unroll
            for (int n = 0; n < POSITIONS / 8; n++) {
                float x[4];
                keys.load(n * 8 + g, column0 + k * 16 + 4 * t, key_groups, x);
                multiply<KEYS>(s[n], value[0], rest[0], x[0], x[1]);
                multiply<KEYS>(s[n], value[1], rest[1], x[2], x[3]);
            }
        }
        if (SPLIT == 2) scores.put(s);
        wait_copies<0>();
        __syncthreads();  // The values are there, and the scores of both halves, and everyone is done with the keys.
        if (base + POSITIONS <= last) keys.fetch(base + POSITIONS);
        if (SPLIT == 2) scores.add(s);
        weights.add(run, rows, base, cap, s, acc);

#pragma unroll
        for (int n = 0; n < POSITIONS / 8; n++) {
            // Positions 2 t and 2 t + 1 of eight are k = t and t + 4, so a product is the next one's factor as it is.
            uint32_t value[4], rest[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const Split split = split_tf32(s[n][i % 2 * 2 + i / 2]);
                value[i] = split.value, rest[i] = split.rest;
            }
#pragma unroll
            for (int d = 0; d < COLUMNS / 32; d++) {
                const int value_groups = values.groups();
                float x[4], y[4];
                values.load(n * 8 + 2 * t, column0 + d * 32 + 4 * g, value_groups, x);
                values.load(n * 8 + 2 * t + 1, column0 + d * 32 + 4 * g, value_groups, y);
#pragma unroll
                for (int i = 0; i < 4; i++) multiply<VALUES>(acc[4 * d + i], value, rest, x[i], y[i]);
            }
        }
    }

#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float2 whole = weights.whole(r, sinks, rows.head[r]);
        if (!rows.is_there[r]) continue;
        float* to = out + rows.place[r] * dim_v;
        // Of 32 columns a lane has eight neighbours.
#pragma unroll
        for (int d = 0; d < COLUMNS / 32; d++)
#pragma unroll
            for (int i = 0; i < 8; i += 2) {
                const int at = 4 * d + i % 4, half = 2 * r + i / 4;
                store_pair(to, column0 + d * 32 + 8 * t + i, dim_v, acc[at][half] * whole.x / whole.y,
                           acc[at + 1][half] * whole.x / whole.y);
            }
    }
}

#ifdef MIXED
#define ATTENTION_PREFILL(D)                                                                                                       \
    KERNEL __launch_bounds__(THREADS, 1)                                                                                           \
        attention_prefill_of_types_d##D(RUN_PARAMETERS(MixedStore, MixedStore), int key_type, int value_type) {                    \
        attention_prefill<D>(RUN_ARGUMENTS, {key_type}, {value_type});                                                             \
    }
#else
#define ATTENTION_PREFILL(D)                                                                                       \
    KERNEL __launch_bounds__(THREADS, 1) attention_prefill_of_types_d##D(RUN_PARAMETERS(KEYS, VALUES)) {            \
        attention_prefill<D>(RUN_ARGUMENTS, {}, {});                                                                \
    }
#endif

ATTENTION_PREFILL(64)
ATTENTION_PREFILL(128)
ATTENTION_PREFILL(256)

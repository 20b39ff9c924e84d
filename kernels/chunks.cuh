// Recurrences that take 16 tokens at a time, as products of matrices on tensor cores.
//
// A chunk is 16 tokens whose positions begin at a multiple of 16 and all lie in the step. Tokens of other chunks, which the step has only a
// part of, go one by one. So a token's bits follow from its position and from whether its step had its chunk whole.
//
// With S the state before the chunk, G[i] the sum of the log decays up to token i, and rows k (keys) and q (queries) of the tokens:
//     y[i] = exp(G[i]) S q[i] + sum_{j <= i} exp(G[i] - G[j]) (q[i] . k[j]) u[j]
//     S'   = exp(G[15]) S + sum_j exp(G[15] - G[j]) u[j] k[j]^T
// A delta rule solves for u, since what it writes depends on what the chunk wrote before:
//     u[i] = rate[i] (v[i] - exp(G[i]) S k[i] - sum_{j < i} exp(G[i] - G[j]) (k[i] . k[j]) u[j])
// Where each channel c of a key has its own decay, G[i] is a vector: rows times exp(G[i]) take the place of q[i] and k[i] next to S, rows times
// exp(G[15] - G[j]) that of k[j] in S', and exp(G[i] - G[j]) stands inside of the products of rows. It is at most 1, for each pair and channel;
// a product of exp(G[i]) and exp(-G[j]) would not be finite.
// Source: Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence Length", 2024, and Dao and Gu, "Transformers
// are SSMs", 2024.
//
// A thread block of 256 has 256 / lanes columns of one head; a warp has 16 of them and 32 of their 16 lanes values, as four accumulators of
// mma.m16n8k8. Each factor is two tf32 numbers, its value and the rest, in three products: 21 bits of an f32. Accumulators are the next
// product's left operand as they are: both factors count k in the accumulators' order, 2t for t and 2t + 1 for t + 4.
#pragma once
#include "states.cuh"
#include "tf32.cuh"

constexpr int CHUNK = 16, PART = 32, TILES = PART / 8, N_WARPS = 8;

// The tokens of a run that lie in whole chunks. A snapshot inside of a chunk ends them.
struct Span {
    uint32_t begin, end;
};

DEVICE Span chunks_of(const Run& run, const uint32_t* positions) {
    if (run.first == run.end) return {run.end, run.end};
    uint32_t begin = run.first + (CHUNK - positions[run.first] % CHUNK) % CHUNK, save_after = run.slots.save_after;
    if (begin + CHUNK > run.end) return {run.end, run.end};
    uint32_t end = run.end - (run.end - begin) % CHUNK;
    bool saves = save_after != NO_SLOT && save_after >= begin && save_after < end;
    if (saves && (save_after + 1 - begin) % CHUNK != 0) end = save_after - (save_after - begin) % CHUNK;
    return {begin, end};
}

DEVICE int hidden(int x) {
    asm volatile("mov.b32 %0, %0;" : "+r"(x));
    return x;
}

// The left operand of a product: 16 rows of 8 values.
struct Left {
    uint32_t value[4], rest[4];
};

DEVICE Left left_of(const float (&tile)[4]) {
    Left a;
    // Registers 1 and 2 of an operand are the next rows and the next values, of an accumulator the other way around.
    constexpr int ORDER[4] = {0, 2, 1, 3};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        Split split = split_tf32(tile[ORDER[i]]);
        a.value[i] = split.value, a.rest[i] = split.rest;
    }
    return a;
}

// `b`: value and rest of the column's value 2t, and of its value 2t + 1.
DEVICE void add_product(float (&c)[4], const Left& a, uint4 b) {
    mma_tf32(c, a.rest, b.x, b.z);
    mma_tf32(c, a.value, b.y, b.w);
    mma_tf32(c, a.value, b.x, b.z);
}

// What a lane reads of a row of `TokenRows`: a part of each tile of 8 values. `swap` is 16 words where neighbouring tiles are exchanged,
// else 0.
struct LaneRow {
    const uint32_t* words;
    int swap;

    __device__ __forceinline__ const uint32_t* tile(int i) const { return words + 16 * i + (i % 2 ? -swap : swap); }
    __device__ __forceinline__ uint4 four(int i) const { return *reinterpret_cast<const uint4*>(tile(i)); }
    __device__ __forceinline__ uint2 two(int i) const { return *reinterpret_cast<const uint2*>(tile(i)); }
};

// Rows of the chunk's tokens in shared memory, split, [16][width]. Two neighbouring values are 16 bytes; those of a row are exchanged by
// the row's number, so that neither reading along rows nor reading along columns meets a bank twice.
struct TokenRows {
    uint32_t* words;
    int width;

    static __device__ __forceinline__ int exchange_of(int token) { return (token & 1) << 2 ^ (token >> 1 & 3) << 1; }

    __device__ __forceinline__ uint32_t* pair(int token, int at) const {
        return words + token * 2 * width + 4 * (at / 2 ^ exchange_of(token));
    }
    __device__ __forceinline__ void put_pair(int token, int at, float x, float y) const {
        Split first = split_tf32(x), second = split_tf32(y);
        *reinterpret_cast<uint4*>(pair(token, at)) = make_uint4(first.value, first.rest, second.value, second.rest);
    }
    __device__ __forceinline__ void put(int token, int at, float x) const {
        Split split = split_tf32(x);
        *reinterpret_cast<uint2*>(pair(token, at & ~1) + 2 * (at & 1)) = make_uint2(split.value, split.rest);
    }
    // The right operands whose columns are tokens `first_token`.. and whose k are tiles of values from `at` on, a multiple of 16.
    __device__ __forceinline__ LaneRow along(int first_token, int at, int lane) const {
        int token = first_token + lane / 4;
        return {words + token * 2 * width + 2 * at + 4 * (lane % 4 ^ exchange_of(token) % 4), 4 * (exchange_of(token) & 4)};
    }
    // The right operands whose k are every second token from `first_token` on and whose columns are tiles of values from `at` on.
    __device__ __forceinline__ LaneRow across(int first_token, int at, int lane) const {
        int token = first_token + 2 * (lane % 4), own = lane / 4;
        return {words + token * 2 * width + 2 * at + 4 * (own / 2 ^ exchange_of(token) % 4) + 2 * (own % 2),
                4 * (exchange_of(token) & 4)};
    }
};

constexpr int CHUNK_WORDS = 4 * CHUNK + CHUNK * CHUNK + N_WARPS * (128 + 512) + 2 * 2 * CHUNK * CHUNK;

// What a thread block keeps of a chunk, in CHUNK_WORDS + 1024 lanes words. `lanes` is as in the kernels that go token by token; rows are
// 16 lanes values long. What does not depend on `lanes` stands first.
struct ChunkRoom {
    uint32_t* words;
    int lanes;

    // Of each token: G, exp(G), exp(G[15] - G), the rate.
    __device__ __forceinline__ float* sums() const { return reinterpret_cast<float*>(words); }
    __device__ __forceinline__ float* decays() const { return sums() + CHUNK; }
    __device__ __forceinline__ float* rests() const { return sums() + 2 * CHUNK; }
    __device__ __forceinline__ float* rates() const { return sums() + 3 * CHUNK; }
    // L by columns, [16][16].
    __device__ __forceinline__ float* lower() const { return sums() + 4 * CHUNK; }
    // Of each warp: 16 rows of 8 sums.
    __device__ __forceinline__ float* grams() const { return lower() + CHUNK * CHUNK; }
    // Of each warp: products of its part with keys and with queries, each two tiles of [32 lanes][4].
    __device__ __forceinline__ float* parts() const { return grams() + N_WARPS * 128; }
    // What tokens say of earlier ones' writes: (I + L)^-1 of a delta rule, and the answers' matrix.
    __device__ __forceinline__ TokenRows solve() const { return {reinterpret_cast<uint32_t*>(parts() + N_WARPS * 512), CHUNK}; }
    __device__ __forceinline__ TokenRows answers() const { return {solve().words + 2 * CHUNK * CHUNK, CHUNK}; }
    __device__ __forceinline__ TokenRows keys() const { return {words + CHUNK_WORDS, 16 * lanes}; }
    __device__ __forceinline__ TokenRows queries() const { return {words + CHUNK_WORDS + 512 * lanes, 16 * lanes}; }
};

// Sums, decays and rests of the tokens' log decays; lane i < 16 of a whole warp has token i's.
DEVICE void put_decays(const ChunkRoom& room, float log_decay, int lane) {
    // Beyond this, nothing is left of a state; differences of sums stay numbers.
    float sum = lane < CHUNK ? fmaxf(log_decay, -104.0f) : 0.0f;
#pragma unroll
    for (int m = 1; m < CHUNK; m *= 2) {
        float before = __shfl_up_sync(FULL_WARP, sum, m);
        if (lane >= m) sum += before;
    }
    float last = __shfl_sync(FULL_WARP, sum, CHUNK - 1);
    if (lane >= CHUNK) return;
    room.sums()[lane] = sum;
    room.decays()[lane] = expf(sum);
    room.rests()[lane] = expf(last - sum);
}

// A warp's part of the tokens' products among each other: of queries and keys, and of keys and keys where there is a rule.
template <bool HAS_RULE>
DEVICE void multiply_tokens(const ChunkRoom& room, int lanes, int warp, int lane) {
    constexpr int N_JOBS = HAS_RULE ? 4 : 2, N_SHARES = N_WARPS / N_JOBS;
    int job = warp % N_JOBS, n = 2 * lanes / N_SHARES, first = warp / N_JOBS * n;
    TokenRows rows = {job < 2 ? room.queries().words : room.keys().words, 16 * lanes};
    float gram[4] = {};
    LaneRow low = rows.along(0, 0, lane), high = rows.along(8, 0, lane), keys = room.keys().along(8 * (job % 2), 0, lane);
#pragma unroll 1
    for (int step = first; step < first + n; step++) {
        uint4 a = low.four(step), b = high.four(step);
        add_product(gram, {{a.x, b.x, a.z, b.z}, {a.y, b.y, a.w, b.w}}, keys.four(step));
    }
    float* own = room.grams() + 128 * warp;
    int g = lane / 4, t = lane % 4;
    *reinterpret_cast<float2*>(own + g * 8 + 2 * t) = make_float2(gram[0], gram[1]);
    *reinterpret_cast<float2*>(own + (g + 8) * 8 + 2 * t) = make_float2(gram[2], gram[3]);
}

// What token i says of token j, for thread 16 i + j.
template <bool HAS_RULE>
DEVICE void put_pairs(const ChunkRoom& room, int thread) {
    constexpr int N_JOBS = HAS_RULE ? 4 : 2, N_SHARES = N_WARPS / N_JOBS;
    int i = thread / CHUNK, j = thread % CHUNK;
    auto gram = [&](int matrix) {
        float sum = 0.0f;
        for (int share = 0; share < N_SHARES; share++) {
            sum += room.grams()[128 * (share * N_JOBS + 2 * matrix + j / 8) + i * 8 + j % 8];
        }
        return sum;
    };
    float decay = expf(room.sums()[i] - room.sums()[min(i, j)]);
    room.answers().put(i, j, j <= i ? decay * gram(0) : 0.0f);
    if (HAS_RULE) room.lower()[j * CHUNK + i] = j < i ? room.rates()[i] * decay * gram(1) : 0.0f;
}

// (I + L)^-1, a column for each of the first 16 lanes of a warp.
DEVICE void solve_lower(const ChunkRoom& room, int lane) {
    if (lane >= CHUNK) return;
    float column[CHUNK];
#pragma unroll
    for (int i = 0; i < CHUNK; i++) column[i] = i == lane ? 1.0f : 0.0f;
#pragma unroll
    for (int m = 0; m < CHUNK; m++) {
        // In whole groups of four, in which L has zeros up to the diagonal.
#pragma unroll
        for (int i = (m + 1) / 4 * 4; i < CHUNK; i++) column[i] = fmaf(-room.lower()[m * CHUNK + i], column[m], column[i]);
    }
#pragma unroll
    for (int i = 0; i < CHUNK; i++) room.solve().put(i, lane, column[i]);
}

DEVICE float power_of_2(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// What a thread block keeps besides where channels have decays: rows of queries, keys and G, as numbers, [16][row_len()]. G is of
// logarithms to base 2.
struct ChannelRoom {
    const ChunkRoom& room;

    __device__ __forceinline__ int width() const { return 16 * room.lanes; }
    // Four rows, of which pairs of threads read neighbouring fours, meet no bank twice.
    __device__ __forceinline__ int row_len() const { return width() + 8; }
    __device__ __forceinline__ float* rows(int which) const {
        return reinterpret_cast<float*>(room.words + CHUNK_WORDS + 1024 * room.lanes) + which * CHUNK * row_len();
    }
    __device__ __forceinline__ float* query(int token) const { return rows(0) + token * row_len(); }
    __device__ __forceinline__ float* key(int token) const { return rows(1) + token * row_len(); }
    __device__ __forceinline__ float* sums(int token) const { return rows(2) + token * row_len(); }
};

// Two neighbouring values of the rows of all tokens, those of a token by a warp.
template <class Take>
DEVICE void for_pairs(int width, int thread, const Take& take) {
#pragma unroll 1
    for (int token = thread / WARP; token < CHUNK; token += N_WARPS) {
#pragma unroll 1
        for (int c = 2 * (thread % WARP); c < width; c += 2 * WARP) take(token, c);
    }
}

// From the log decays in `sums` to their sums, and the rows next to the state. By all threads; they wait before.
DEVICE void put_channel_rows(const ChannelRoom& own) {
    __syncthreads();
    for (int c = threadIdx.x; c < own.width(); c += blockDim.x) {
        float sum = 0.0f;
#pragma unroll 2
        for (int i = 0; i < CHUNK; i++) {
            sum += own.sums(i)[c];
            own.sums(i)[c] = sum;
        }
    }
    __syncthreads();
    for_pairs(own.width(), threadIdx.x, [&](int i, int c) {
        float2 sums = *reinterpret_cast<const float2*>(own.sums(i) + c), q = *reinterpret_cast<const float2*>(own.query(i) + c);
        float2 k = *reinterpret_cast<const float2*>(own.key(i) + c);
        float first = power_of_2(sums.x), second = power_of_2(sums.y);
        own.room.queries().put_pair(i, c, first * q.x, second * q.y);
        own.room.keys().put_pair(i, c, first * k.x, second * k.y);
    });
}

// Keys as S' takes them, in the place of those that were next to the state.
DEVICE void put_last_keys(const ChannelRoom& own, int thread) {
    for_pairs(own.width(), thread, [&](int j, int c) {
        float2 sums = *reinterpret_cast<const float2*>(own.sums(j) + c), k = *reinterpret_cast<const float2*>(own.key(j) + c);
        float2 last = *reinterpret_cast<const float2*>(own.sums(CHUNK - 1) + c);
        own.room.keys().put_pair(j, c, power_of_2(last.x - sums.x) * k.x, power_of_2(last.y - sums.y) * k.y);
    });
}

// What token i says of token j, for the 120 pairs of them, two threads each, and of itself.
DEVICE void put_channel_pairs(const ChannelRoom& own, int thread) {
    constexpr int N_PAIRS = CHUNK * (CHUNK - 1) / 2;
    bool is_pair = thread < 2 * N_PAIRS;
    int pair = thread / 2, half = thread % 2, i, j;
    if (is_pair) {
        i = (int)(0.5f * (1.0f + sqrtf(1.0f + 8.0f * pair)));
        j = pair - i * (i - 1) / 2;
    } else {
        i = j = thread - 2 * N_PAIRS;
    }
    float of_query = 0.0f, of_key = 0.0f;
    auto four = [&](const float* row, int g) { return reinterpret_cast<const float4*>(row)[g]; };
    int n_fours = own.width() / 4;
    if (is_pair) {
#pragma unroll 1
        for (int g = half; g < n_fours; g += 2) {
            float4 later = four(own.sums(i), g), sums = four(own.sums(j), g), k = four(own.key(j), g);
            float4 query = four(own.query(i), g), key = four(own.key(i), g);
            auto add = [&](float exponent, float value, float of_i, float key_of_i) {
                float decayed = power_of_2(exponent) * value;
                of_query += of_i * decayed;
                of_key += key_of_i * decayed;
            };
            add(later.x - sums.x, k.x, query.x, key.x);
            add(later.y - sums.y, k.y, query.y, key.y);
            add(later.z - sums.z, k.z, query.z, key.z);
            add(later.w - sums.w, k.w, query.w, key.w);
        }
    } else {
#pragma unroll 1
        for (int g = 0; g < n_fours; g++) {
            float4 query = four(own.query(i), g), k = four(own.key(i), g);
            of_query += query.x * k.x + query.y * k.y + query.z * k.z + query.w * k.w;
        }
    }
    float other_query = __shfl_xor_sync(FULL_WARP, of_query, 1), other_key = __shfl_xor_sync(FULL_WARP, of_key, 1);
    const ChunkRoom& room = own.room;
    if (!is_pair) {
        room.answers().put(i, i, of_query);
        room.lower()[i * CHUNK + i] = 0.0f;
    } else if (half == 0) {
        room.answers().put(i, j, of_query + other_query);
        room.lower()[j * CHUNK + i] = room.rates()[i] * (of_key + other_key);
    } else {
        room.answers().put(j, i, 0.0f);
        room.lower()[i * CHUNK + j] = 0.0f;
    }
}

// A warp's part of a head's state: 16 columns from `column` on, of which `n_columns` exist, and 32 of their `len` values from `first` on.
struct StatePart {
    int column, n_columns, first, len;
    float tiles[TILES][4];

    // Where an element of a tile is among the columns, and among a column's values.
    __device__ __forceinline__ int column_of(int e, int lane) const { return column + lane / 4 + 8 * (e / 2); }
    __device__ __forceinline__ int value_of(int tile, int e, int lane) const { return first + 8 * tile + 2 * (lane % 4) + e % 2; }

    __device__ __forceinline__ void load(const float* matrix, int lane) {
#pragma unroll
        for (int n = 0; n < TILES; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int c = column_of(e, lane), i = value_of(n, e, lane);
                tiles[n][e] = matrix && c < n_columns && i < len ? matrix[(size_t)c * len + i] : 0.0f;
            }
        }
    }
    // Multiplies each value with the power of 2 of its channel's number.
    __device__ __forceinline__ void decay_channels(const float* sums, int lane) {
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            float2 two = *reinterpret_cast<const float2*>(sums + value_of(n, 0, lane));
            float first = power_of_2(two.x), second = power_of_2(two.y);
            tiles[n][0] *= first, tiles[n][1] *= second, tiles[n][2] *= first, tiles[n][3] *= second;
        }
    }
    __device__ __forceinline__ void store(float* matrix, int lane) const {
#pragma unroll
        for (int n = 0; n < TILES; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int c = column_of(e, lane), i = value_of(n, e, lane);
                if (c < n_columns && i < len) matrix[(size_t)c * len + i] = tiles[n][e];
            }
        }
    }
};

// Runs the tokens of `run`, which are whole chunks. `rows` knows the layer:
//   stage(room, token, warp, lane): keys, queries, decays and rates of 16 tokens, by all warps;
//   input(token, column), output(token, column, y): a value of the head's columns.
// `matrix(slot)`: the head's columns there, [n_columns][len]. OF_CHANNELS: each of the `len` values of a column has its own decay, and
// those of tokens and the rests are 1.
template <bool HAS_RULE, bool OF_CHANNELS, class Rows, class Matrix>
DEVICE void run_chunks(const Rows& rows, const Matrix& matrix, const ChunkRoom& room, const Run& run, int first_column,
                       int n_columns, int len, int lanes) {
    int warp = threadIdx.x / WARP, own_lane = threadIdx.x % WARP;
    int n_parts = lanes / 2, group = warp / n_parts, part = warp % n_parts;
    StatePart s;
    s.column = first_column + CHUNK * group, s.n_columns = n_columns, s.first = PART * part, s.len = len;
    s.load(run.slots.from == NO_SLOT ? nullptr : matrix(run.slots.from), own_lane);
#pragma unroll 1
    for (uint32_t at = run.first; at < run.end; at += CHUNK) {
        // Hides from the compiler that addresses are those of the last chunk: it would keep them all in registers.
        int lane = hidden(own_lane), t = lane % 4;
        __syncthreads();
        rows.stage(room, at, warp, hidden(lane));
        __syncthreads();
        if (!OF_CHANNELS) multiply_tokens<HAS_RULE>(room, lanes, warp, lane);
        float recalled[2][4] = {}, answers[2][4] = {};
        LaneRow keys[2] = {room.keys().along(0, s.first, lane), room.keys().along(8, s.first, lane)};
        LaneRow queries[2] = {room.queries().along(0, s.first, lane), room.queries().along(8, s.first, lane)};
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            Left own = left_of(s.tiles[n]);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                if (HAS_RULE) add_product(recalled[m], own, keys[m].four(n));
                add_product(answers[m], own, queries[m].four(n));
            }
        }
        auto shared_part = [&](int of_warp, int which) {
            return reinterpret_cast<float4*>(room.parts() + 512 * of_warp + 128 * which + 4 * lane);
        };
#pragma unroll
        for (int m = 0; m < 2; m++) {
            if (HAS_RULE) *shared_part(warp, m) = make_float4(recalled[m][0], recalled[m][1], recalled[m][2], recalled[m][3]);
            *shared_part(warp, 2 + m) = make_float4(answers[m][0], answers[m][1], answers[m][2], answers[m][3]);
        }
        float inputs[2][4];
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int column = min(s.column_of(e, lane), n_columns - 1);
                inputs[m][e] = rows.input(at + 8 * m + 2 * t + e % 2, column);
            }
        }
        __syncthreads();
        if (OF_CHANNELS) {
            put_channel_pairs({room}, hidden(threadIdx.x));
            put_last_keys({room}, hidden(threadIdx.x));
            s.decay_channels(ChannelRoom{room}.sums(CHUNK - 1), hidden(lane));
        } else {
            put_pairs<HAS_RULE>(room, hidden(threadIdx.x));
        }
        __syncthreads();
        if (HAS_RULE) {
            if (warp == 0) solve_lower(room, lane);
            __syncthreads();
        }
        auto sum_of = [&](float (&sum)[4], int which) {
            sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
            for (int other = group * n_parts; other < (group + 1) * n_parts; other++) {
                float4 x = *shared_part(other, which);
                sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
            }
        };
        float writes[2][4];
        if (HAS_RULE) {
            Left wanted[2];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                float sum[4];
                sum_of(sum, m);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int token = 8 * m + 2 * t + e % 2;
                    sum[e] = room.rates()[token] * (inputs[m][e] - room.decays()[token] * sum[e]);
                    writes[m][e] = 0.0f;
                }
                wanted[m] = left_of(sum);
            }
            add_product(writes[0], wanted[0], room.solve().along(0, 0, lane).four(0));
            LaneRow later = room.solve().along(8, 0, lane);
            add_product(writes[1], wanted[0], later.four(0));
            add_product(writes[1], wanted[1], later.four(1));
        } else {
#pragma unroll
            for (int m = 0; m < 2; m++) {
#pragma unroll
                for (int e = 0; e < 4; e++) writes[m][e] = room.rates()[8 * m + 2 * t + e % 2] * inputs[m][e];
            }
        }
#pragma unroll
        for (int m = 0; m < 2; m++) {
            if (part != m % n_parts) continue;
            float y[4];
            sum_of(y, 2 + m);
#pragma unroll
            for (int e = 0; e < 4; e++) y[e] *= room.decays()[8 * m + 2 * t + e % 2];
#pragma unroll
            for (int j = 0; j <= m; j++) add_product(y, left_of(writes[j]), room.answers().along(8 * m, 0, lane).four(j));
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int column = s.column_of(e, lane);
                if (column < n_columns) rows.output(at + 8 * m + 2 * t + e % 2, column, y[e], inputs[m][e]);
            }
        }
        float decay = room.decays()[CHUNK - 1];
        Left left[2];
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int e = 0; e < 4; e++) writes[m][e] *= room.rests()[8 * m + 2 * t + e % 2];
            left[m] = left_of(writes[m]);
        }
        LaneRow of_tokens[2][2];
#pragma unroll
        for (int m = 0; m < 2; m++) {
            of_tokens[m][0] = room.keys().across(8 * m, s.first, lane);
            of_tokens[m][1] = room.keys().across(8 * m + 1, s.first, lane);
        }
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            if (!OF_CHANNELS) {
#pragma unroll
                for (int e = 0; e < 4; e++) s.tiles[n][e] *= decay;
            }
#pragma unroll
            for (int m = 0; m < 2; m++) {
                uint2 first = of_tokens[m][0].two(n), second = of_tokens[m][1].two(n);
                add_product(s.tiles[n], left[m], make_uint4(first.x, first.y, second.x, second.y));
            }
        }
        if (at + CHUNK - 1 == run.slots.save_after) s.store(matrix(run.slots.save), lane);
    }
    s.store(matrix(run.slots.to), own_lane);
}

// Runs a sequence's tokens: those before its first whole chunk, its chunks, and those behind them. `step_by_step(run)` takes tokens one by
// one, `chunks(run)` whole chunks. Between them the state is in the slot that the step writes.
template <class Steps, class Chunks>
DEVICE void run_sequence(const Run& run, Span span, const Steps& step_by_step, const Chunks& chunks) {
    Run part = run;
    // A loop, so that there is one copy of the code for single tokens.
#pragma unroll 1
    for (int stage = 0; stage < 3; stage++) {
        part.first = stage == 0 ? run.first : stage == 1 ? span.begin : span.end;
        part.end = stage == 0 ? span.begin : stage == 1 ? span.end : run.end;
        // A sequence without tokens has a row of zeros to write.
        bool is_padding = stage == 0 && run.first == run.end;
        if (part.first == part.end && !is_padding) continue;
        if (stage == 1) chunks(part);
        else step_by_step(part);
        part.slots.from = run.slots.to;
        // The state's next reader is another thread of this thread block.
        __syncthreads();
    }
}

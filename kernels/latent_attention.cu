// Attention over latent rows (MLA) on tensor cores, for f16 stores: all query heads share one key, whose beginning is the value.
//
// For token t at position p and head h, over positions j from 0 to p: s[j] = scale * dot(q[t][h], row[j]),
//   out[t][h] = sum_j exp(s[j] - m) row[j][0..dim_v] / sum_j exp(s[j] - m).
// latent_d128_r{16,32}, latent_d576_r{16,32}: rows of up to 128 or 576 values, of which up to 128 or 512 are the value; 16 or 32
//   query rows a thread block. A query row is a token with one of its heads, heads fastest; so a thread block that has all heads of a
//   token reads each latent row once for all of them.
//   grid: (ceil(query rows of the longest run / R), n_splits, runs); block: 128 or 256.
//   A run is a sequence, from token seq_starts[run] to the next run's; where seq_starts is null (decode), a run is token `run`. The
//   sequence of a token is seq_of[token].
//   out null: runs of one token, whose context thread blocks share: each has a split of it, and writes sums, maximum and denominator to
//     partial [runs, n_heads, n_splits, dim_v + 2] f32 for latent_combine. Longer runs are passed over.
//   out given: n_splits is 1, and results go to out. Runs shorter than min_tokens are passed over: those of one token, where another
//     launch has them.
//   A split has max(min_split, context / 64 rounded up to a tile) positions: a number that depends on the token's own position alone,
//   so neither the grid nor the batch changes a result. Thread blocks without rows or positions return at once.
// latent_combine: adds up the splits of a head of runs of one token; optionally quantizes (dim_v a multiple of 32), a row being a head.
//   grid: (n_heads, runs, ceil(dim_v / 128)); block: 128. Shared: 264 bytes.
// Shapes: q [n_tokens, n_heads, dim_k], out [n_tokens, n_heads, dim_v] f32; positions [n_tokens] u32 (0xffffffff: padding, zeros are
//   written), consecutive within a sequence; page_starts [n_seqs + 1], pages [..] u32; store as kv.cuh says, one KV head.
//
// A tile of 32 rows comes by asynchronous copies, 16 bytes a thread, while the tile before it is multiplied. Four warps share 16 query
// rows: each multiplies a quarter of the dimensions for the scores, which meet in shared memory, and then weighs a quarter of the
// value's columns, so that a warp's queries and sums stay in registers and each warp group reads the tile from shared memory once.
// Queries and weights are split into two halves each (value and rest), so products keep about 21 bits as f32 ones would.
// Bytes: a decode step reads 2 dim_k bytes a position for each 16 or 32 heads (1152 for 576, once for up to 32 heads), and writes and
// reads 8 (dim_v + 2) bytes a head and split. Limit: with 16 heads 4 * 16 * (576 + 512) = 70 kFLOP a row of 1152 bytes, so memory; with
// 128 heads 557 kFLOP and four readers of each row, three of them from L2, so tensor cores and L2. A thread block keeps 37 KB of copies
// in flight (d576), two of them share an SM of 228 KB where it has 16 rows.
// Shared, dynamic: 2 * 32 * (D + 8) * 2 + 160 R * 4 bytes: 27648 and 37888 (D = 128), 84992 and 95232 (D = 576).
// Measured on the simulator only: bench/runs.
#include "kv.cuh"
#include "mma.cuh"
#include "q8.cuh"

constexpr int TILE = 32;        // positions of a tile, two pages
constexpr int STAGES = 2;       // tiles in shared memory
constexpr int SLICES = 4;       // warps that share 16 query rows
constexpr int SCORES = TILE + 8;  // numbers of a row of scores in shared memory
constexpr int MAX_SPLITS = 64;

// Positions of a split of a context.
DEVICE int split_len(int context, int min_split) {
    int even = (context + MAX_SPLITS - 1) / MAX_SPLITS;
    return max(min_split, (even + TILE - 1) / TILE * TILE);
}

// KS: steps of 16 dimensions of a warp's quarter of a row; VT: groups of 8 columns of its quarter of a value; R: query rows.
template <int KS, int VT, int R>
DEVICE void latent_attention(const float* q, float* out, const uint32_t* positions, const uint32_t* seq_of,
                             const uint32_t* seq_starts, const uint32_t* page_starts, const uint32_t* pages,
                             const __half* store, float scale, int n_heads, int dim_k, int dim_v, int min_split,
                             int min_tokens, float* partial) {
    constexpr int D = SLICES * KS * 16, STRIDE = D + 8, THREADS = R / 16 * SLICES * WARP, CHUNKS = D / 8;
    extern __shared__ __align__(16) __half shared[];
    __half(*tiles)[TILE][STRIDE] = (__half(*)[TILE][STRIDE])shared;
    float* scores = (float*)(tiles + STAGES);  // [R / 16][SLICES][16][SCORES]
    const int run = blockIdx.z, row0 = blockIdx.x * R;
    const int first = seq_starts ? (int)seq_starts[run] : run;
    const int n_tokens = seq_starts ? (int)seq_starts[run + 1] - first : 1;
    const int n_rows = n_tokens * n_heads - row0;
    if (n_rows <= 0 || (out ? n_tokens < min_tokens : n_tokens > 1)) return;
    const uint32_t position0 = positions[first];
    if (position0 == 0xffffffffu) {
        // A split row of padding becomes zeros in latent_combine.
        if (out) {
            float* rows = out + ((size_t)first * n_heads + row0) * dim_v;
            for (int i = threadIdx.x; i < min(n_rows, R) * dim_v; i += THREADS) rows[i] = 0.0f;
        }
        return;
    }
    int begin = 0, end = (int)position0 + (row0 + min(n_rows, R) - 1) / n_heads + 1;
    if (!out) {
        int len = split_len(end, min_split);
        begin = blockIdx.y * len, end = min(end, begin + len);
        if (begin >= end) return;
    }
    const uint32_t* table = pages + page_starts[seq_of[first]];
    const int thread = threadIdx.x, lane = thread % WARP, t = lane % 4;
    const int slice = thread / WARP % SLICES, row_group = thread / WARP / SLICES;
    const int row_k = kv_row(dim_k);

    // A lane's two query rows: whether they are there, their position, and where they stand in the queries and outputs.
    bool is_there[2];
    int position[2];
    size_t place[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = row_group * 16 + lane / 4 + 8 * r;
        is_there[r] = row < n_rows;
        position[r] = position0 + (row0 + row) / n_heads;
        place[r] = (size_t)first * n_heads + row0 + row;
    }
    uint32_t queries[KS][4], rests[KS][4];
#pragma unroll
    for (int k = 0; k < KS; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 pair = make_float2(0.0f, 0.0f);
            if (is_there[i % 2]) pair = load_pair(q + place[i % 2] * dim_k, (slice * KS + k) * 16 + i / 2 * 8 + 2 * t, dim_k);
            split_beyond(pair.x * scale, pair.y * scale, queries[k][i], rests[k][i]);
        }

    // The two pages of a tile are looked up a tile ahead of its copies.
    uint32_t ahead[2];
    auto look_up = [&](int base) {
#pragma unroll
        for (int i = 0; i < 2; i++) ahead[i] = base + i * PAGE < end ? __ldg(table + base / PAGE + i) : 0;
    };
    auto fetch = [&](int stage, int base) {
#pragma unroll 4
        for (int i = thread; i < TILE * CHUNKS; i += THREADS) {
            int local = i / CHUNKS, c = i % CHUNKS;
            bool is_stored = base + local < end && c * 8 < row_k;
            uint32_t page = local < PAGE ? ahead[0] : ahead[1];
            const __half* from = store;
            if (is_stored) from += ((size_t)page * PAGE + local % PAGE) * row_k + c * 8;
            copy16(&tiles[stage][local][c * 8], from, is_stored);
        }
        commit_copies();
    };

    float acc[VT][4] = {};
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    look_up(begin);
    fetch(0, begin);
    look_up(begin + TILE);
    int stage = 0;
#pragma unroll 1
    for (int base = begin; base < end; base += TILE, stage ^= 1) {
        const __half(*tile)[STRIDE] = tiles[stage];
        wait_copies<0>();
        __syncthreads();  // The tile is there, and everyone is done with the one before it.
        if (base + TILE < end) {
            fetch(stage ^ 1, base + TILE);
            look_up(base + 2 * TILE);
        }

        float* own = scores + (row_group * SLICES + slice) * 16 * SCORES;
        {
            float s[TILE / 8][4] = {};
#pragma unroll
            for (int k = 0; k < KS; k++) {
#pragma unroll
                for (int n = 0; n < TILE / 16; n++) {
                    uint32_t b[4];
                    load_matrices(b, &tile[n * 16 + lane / 16 * 8 + lane % 8][(slice * KS + k) * 16 + lane / 8 % 2 * 8]);
                    mma(s[2 * n], queries[k], b[0], b[1]);
                    mma(s[2 * n], rests[k], b[0], b[1]);
                    mma(s[2 * n + 1], queries[k], b[2], b[3]);
                    mma(s[2 * n + 1], rests[k], b[2], b[3]);
                }
            }
#pragma unroll
            for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                for (int r = 0; r < 2; r++)
                    *(float2*)(own + (lane / 4 + 8 * r) * SCORES + n * 8 + 2 * t) = make_float2(s[n][2 * r], s[n][2 * r + 1]);
        }
        __syncthreads();  // The quarters of all scores are there.
        float s[TILE / 8][4];
        float highest[2] = {top[0], top[1]};
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float* at = scores + (row_group * SLICES * 16 + lane / 4 + 8 * r) * SCORES + n * 8 + 2 * t;
                float2 x = *(const float2*)at;
#pragma unroll
                for (int other = 1; other < SLICES; other++) {
                    float2 y = *(const float2*)(at + other * 16 * SCORES);
                    x.x += y.x, x.y += y.y;
                }
                int j = base + n * 8 + 2 * t, last = min(position[r], end - 1);
                s[n][2 * r] = j <= last ? x.x : -INFINITY;
                s[n][2 * r + 1] = j + 1 <= last ? x.y : -INFINITY;
                highest[r] = fmaxf(highest[r], fmaxf(s[n][2 * r], s[n][2 * r + 1]));
            }
        float factor[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            // The first tile has a position that every row sees, so this is finite.
            highest[r] = row_max(highest[r]);
            factor[r] = expf(top[r] - highest[r]);
            top[r] = highest[r];
            sum[r] *= factor[r];
        }
#pragma unroll
        for (int d = 0; d < VT; d++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[d][i] *= factor[i / 2];
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[n][i] = expf(s[n][i] - top[i / 2]);
                sum[i / 2] += s[n][i];
            }
#pragma unroll
        for (int n = 0; n < TILE / 16; n++) {
            uint32_t a[4], rest[4];
            split(s[2 * n][0], s[2 * n][1], a[0], rest[0]);
            split(s[2 * n][2], s[2 * n][3], a[1], rest[1]);
            split(s[2 * n + 1][0], s[2 * n + 1][1], a[2], rest[2]);
            split(s[2 * n + 1][2], s[2 * n + 1][3], a[3], rest[3]);
#pragma unroll
            for (int d = 0; d < VT / 2; d++) {
                uint32_t b[4];
                load_matrices_transposed(b, &tile[n * 16 + lane % 16][slice * VT * 8 + d * 16 + lane / 16 * 8]);
                mma(acc[2 * d], a, b[0], b[1]);
                mma(acc[2 * d], rest, b[0], b[1]);
                mma(acc[2 * d + 1], a, b[2], b[3]);
                mma(acc[2 * d + 1], rest, b[2], b[3]);
            }
        }
    }

    const int column0 = slice * VT * 8 + 2 * t;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float denominator = row_sum(sum[r]);
        if (!is_there[r]) continue;
        float* to = out + place[r] * dim_v;
        float divisor = denominator;
        if (!out) {
            size_t of_run = place[r] - (size_t)first * n_heads + (size_t)run * n_heads;
            to = partial + (of_run * gridDim.y + blockIdx.y) * (dim_v + 2);
            divisor = 1.0f;
            if (slice == 0 && t == 0) to[dim_v] = top[r], to[dim_v + 1] = denominator;
        }
#pragma unroll
        for (int d = 0; d < VT; d++)
            store_pair(to, column0 + d * 8, dim_v, acc[d][2 * r] / divisor, acc[d][2 * r + 1] / divisor);
    }
}

#define LATENT(D, KS, VT, R)                                                                                             \
    KERNEL __launch_bounds__(R * 8, 1)                                                                                   \
        latent_d##D##_r##R(const float* q, float* out, const uint32_t* positions, const uint32_t* seq_of,                \
                           const uint32_t* seq_starts, const uint32_t* page_starts, const uint32_t* pages,               \
                           const __half* store, float scale, int n_heads, int dim_k, int dim_v, int min_split,           \
                           int min_tokens, float* partial) {                                                             \
        latent_attention<KS, VT, R>(q, out, positions, seq_of, seq_starts, page_starts, pages, store, scale, n_heads,    \
                                    dim_k, dim_v, min_split, min_tokens, partial);                                       \
    }

LATENT(128, 2, 4, 16)
LATENT(128, 2, 4, 32)
LATENT(576, 9, 16, 16)
LATENT(576, 9, 16, 32)

KERNEL __launch_bounds__(128)
    latent_combine(const float* partial, const uint32_t* positions, const uint32_t* seq_starts, int n_splits, int min_split,
                   int dim_v, float* out, int8_t* outq, Q8Scale* outs) {
    __shared__ float weights[MAX_SPLITS];
    __shared__ float total;
    const int run = blockIdx.y, d = blockIdx.z * blockDim.x + threadIdx.x, lane = threadIdx.x % WARP;
    const int token = seq_starts ? (int)seq_starts[run] : run;
    if (seq_starts && (int)seq_starts[run + 1] - token != 1) return;
    const size_t row = (size_t)token * gridDim.x + blockIdx.x;
    const float* records = partial + ((size_t)run * gridDim.x + blockIdx.x) * n_splits * (dim_v + 2);
    const uint32_t position = positions[token];
    int n = 0;
    if (position != 0xffffffffu) {
        int context = position + 1, len = split_len(context, min_split);
        n = (context + len - 1) / len;
        if (threadIdx.x < WARP) {
            float tops[2], sums[2], top = -INFINITY, sum = 0.0f;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int s = lane + i * WARP;
                const float* record = records + (size_t)min(s, n - 1) * (dim_v + 2) + dim_v;
                tops[i] = s < n ? record[0] : -INFINITY, sums[i] = s < n ? record[1] : 0.0f;
                top = fmaxf(top, tops[i]);
            }
            top = warp_max(top);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float weight = expf(tops[i] - top);
                weights[lane + i * WARP] = weight;
                sum += weight * sums[i];
            }
            sum = warp_sum(sum);
            if (lane == 0) total = sum;
        }
        __syncthreads();
    }
    if (d >= dim_v) return;
    float sum = 0.0f;
#pragma unroll 8
    for (int s = 0; s < n; s++) sum += weights[s] * records[(size_t)s * (dim_v + 2) + d];
    float value = n > 0 ? sum / total : 0.0f;
    out[row * dim_v + d] = value;
    if (outq) quantize_group(value, q8_row(outq, row, dim_v), q8_scales(outs, row, dim_v), d / WARP, dim_v / WARP);
}

// Bands of an F16 or BF16 matrix times rows of f32 on tensor cores: a weight is read once for the 16, 32 or 64 rows of x of a thread block.
// More rows are further thread blocks; the kernels and their grids are in matmul_float.cu.
//
// A band is 128 rows of a matrix, or 32. Its thread block of four warps copies 64 columns of the band and of its rows of x (128 of a low band)
// asynchronously into shared memory, STAGES - 1 steps ahead. A warp multiplies 32 rows, as two strips of 16, by all these rows of x: every
// warp 32 of 128 rows, or of 32 rows each warp a quarter of a step's columns, and their sums are added at the end.
//
// Weights are tf32 numbers as they are, and x is two, value and rest (tf32.cuh), so products keep 21 bits of an f32 and its range. A lane
// has eight neighbouring columns of 32, of both factors, and their products count k in that order: two k of mma.m16n8k8 are two neighbours.
//
// Bits of a row do not depend on how many rows there are: columns are added up by themselves in one order, in high bands another than in low
// ones. Shared: the constants of `FloatBand`, whose twin is `crates/cuda-exec/src/bands.rs`. Alignment: 16 bytes of weights and of x, so n_in is a
// multiple of 8. No bank conflicts: chunks of 16 bytes are spread by XOR.
#pragma once
#include "async_copy.cuh"
#include "formats/float.cuh"
#include "jobs.cuh"
#include "tf32.cuh"

constexpr int BAND_WARPS = 4;
constexpr int BAND_SHARED = 99 << 10;  // what a thread block may have on compute capability 8.6 and 8.9

// TILES of 8 rows of x, HEIGHT rows of weights.
template <class F, int TILES, int HEIGHT>
struct FloatBand {
    static constexpr int THREADS = BAND_WARPS * WARP, STRIPS = 2, LANE_COLUMNS = 8, GROUP_COLUMNS = 4 * LANE_COLUMNS;
    static constexpr int SLICES = HEIGHT == 32 ? BAND_WARPS : 1;  // warps that share the columns of a step
    static constexpr int GROUPS = SLICES == 1 ? 2 : 1;            // groups of columns of a step that a warp multiplies
    static constexpr int COLUMNS = SLICES * GROUPS * GROUP_COLUMNS;
    static constexpr int W_ROW = COLUMNS * 2, X_ROW = COLUMNS * 4;  // bytes
    static constexpr int W_BYTES = HEIGHT * W_ROW, STAGE = W_BYTES + TILES * 8 * X_ROW;
    static constexpr int STAGES = BAND_SHARED / STAGE < 6 ? BAND_SHARED / STAGE : 6;
    static_assert(STAGES >= 3, "copies are two steps ahead");

    // Where a chunk of 16 bytes of a row lies.
    DEVICE int w_at(int row, int chunk) { return row * W_ROW + (chunk ^ (row & 1) << 2) * 16; }
    DEVICE int x_at(int row, int chunk) { return W_BYTES + row * X_ROW + (chunk ^ row & 1) * 16; }

    // Rows of weights from `first` on, those beyond n_out and columns beyond n_in as zeros.
    DEVICE void copy_weights(uint8_t* stage, const uint8_t* w, int first, int n_out, int n_in, int column) {
        constexpr int CHUNKS = W_ROW / 16, AT_ONCE = THREADS / CHUNKS;
        const int chunk = threadIdx.x % CHUNKS, local = threadIdx.x / CHUNKS, at = column + chunk * 8;
        const uint8_t* from = w + ((size_t)(first + local) * n_in + at) * 2;
#pragma unroll
        for (int i = 0; i < HEIGHT; i += AT_ONCE) {
            bool is_there = at < n_in && first + local + i < n_out;
            copy16(stage + w_at(local + i, chunk), is_there ? from + (size_t)i * n_in * 2 : w, is_there);
        }
    }

    template <class X>
    DEVICE void copy_rows_of_x(uint8_t* stage, const X& rows, const float* x, int n_in, int column) {
        constexpr int CHUNKS = X_ROW / 16, AT_ONCE = THREADS / CHUNKS;
        const int chunk = threadIdx.x % CHUNKS, local = threadIdx.x / CHUNKS, at = column + chunk * 4;
#pragma unroll
        for (int i = 0; i < TILES * 8; i += AT_ONCE) {
            bool is_there = at < n_in && rows.has(local + i);
            copy16(stage + x_at(local + i, chunk), is_there ? x + (size_t)rows.source(local + i) * n_in + at : x, is_there);
        }
    }

    // Adds the products of a group of columns; `row0` is the first of the warp's rows.
    DEVICE void multiply(const uint8_t* stage, int row0, int group, float (&acc)[STRIPS][TILES][4]) {
        const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        float w[STRIPS][2][LANE_COLUMNS];
#pragma unroll
        for (int s = 0; s < STRIPS; s++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                F::values(*(const uint4*)(stage + w_at(row0 + s * 16 + r * 8 + g, group * 4 + t)), w[s][r]);
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            uint32_t value[LANE_COLUMNS], rest[LANE_COLUMNS];
#pragma unroll
            for (int part = 0; part < 2; part++) {
                const float4 q = *(const float4*)(stage + x_at(n * 8 + g, group * 8 + t * 2 + part));
                const float four[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const Split split = split_tf32(four[i]);
                    value[part * 4 + i] = split.value, rest[part * 4 + i] = split.rest;
                }
            }
#pragma unroll
            for (int k = 0; k < LANE_COLUMNS; k += 2)
#pragma unroll
                for (int s = 0; s < STRIPS; s++) {
                    const uint32_t a[4] = {__float_as_uint(w[s][0][k]), __float_as_uint(w[s][1][k]),
                                           __float_as_uint(w[s][0][k + 1]), __float_as_uint(w[s][1][k + 1])};
                    mma_tf32(acc[s][n], a, rest[k], rest[k + 1]);
                    mma_tf32(acc[s][n], a, value[k], value[k + 1]);
                }
        }
    }
};

// Multiplies rows `block * HEIGHT ..` of the matrix by TILES * 8 rows of x. X says of each of these whether it is there, which row
// of x it is, and which row of y takes its result.
template <class F, int TILES, int HEIGHT, class X>
DEVICE void multiply_float_band(const Job& job, int block, const X& rows, const float* x, int n_in) {
    using B = FloatBand<F, TILES, HEIGHT>;
    extern __shared__ __align__(16) uint8_t room[];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const int first = block * HEIGHT, n_out = job.n_out, n_steps = (n_in + B::COLUMNS - 1) / B::COLUMNS;
    const int row0 = B::SLICES == 1 ? warp * 32 : 0;
    float acc[B::STRIPS][TILES][4] = {};
#pragma unroll 1
    for (int i = 0; i < B::STAGES - 1; i++)
        if (i < n_steps) B::copy_weights(room + i * B::STAGE, job.w, first, n_out, n_in, i * B::COLUMNS);
    // The weights of the first steps are on their way before x is there.
    await_earlier();
#pragma unroll 1
    for (int i = 0; i < B::STAGES - 1; i++) {
        if (i < n_steps) B::copy_rows_of_x(room + i * B::STAGE, rows, x, n_in, i * B::COLUMNS);
        commit_copies();
    }
    int from = 0, to = B::STAGES - 1;
#pragma unroll 1
    for (int step = 0; step < n_steps; step++) {
        wait_copies<B::STAGES - 2>();
        __syncthreads();  // The step is there, and everyone is done with the one before.
        if (step + B::STAGES - 1 < n_steps) {
            const int column = (step + B::STAGES - 1) * B::COLUMNS;
            B::copy_weights(room + to * B::STAGE, job.w, first, n_out, n_in, column);
            B::copy_rows_of_x(room + to * B::STAGE, rows, x, n_in, column);
        }
        commit_copies();
#pragma unroll
        for (int group = 0; group < B::GROUPS; group++)
            B::multiply(room + from * B::STAGE, row0, B::SLICES == 1 ? group : warp, acc);
        from = from + 1 == B::STAGES ? 0 : from + 1;
        to = to + 1 == B::STAGES ? 0 : to + 1;
    }

    auto put = [&](int strip, int n, const float (&sums)[4]) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = first + row0 + strip * 16 + i / 2 * 8 + g, local = n * 8 + 2 * t + i % 2;
            if (row < n_out && rows.has(local))
                job.y[(size_t)rows.target(local) * n_out + row] = job.bias ? sums[i] + job.bias[row] : sums[i];
        }
    };
    if constexpr (B::SLICES == 1) {
#pragma unroll
        for (int s = 0; s < B::STRIPS; s++)
#pragma unroll
            for (int n = 0; n < TILES; n++) put(s, n, acc[s][n]);
    } else {
        // Each warp adds the sums of all up for its share of the tiles, in one order.
        float4* sums = (float4*)room;
        wait_copies<0>();
        __syncthreads();
#pragma unroll
        for (int s = 0; s < B::STRIPS; s++)
#pragma unroll
            for (int n = 0; n < TILES; n++)
                sums[((warp * B::STRIPS + s) * TILES + n) * WARP + lane] =
                    make_float4(acc[s][n][0], acc[s][n][1], acc[s][n][2], acc[s][n][3]);
        __syncthreads();
#pragma unroll
        for (int part = 0; part < B::STRIPS * TILES / BAND_WARPS; part++) {
            const int tile = part * BAND_WARPS + warp;
            float total[4] = {};
#pragma unroll
            for (int slice = 0; slice < BAND_WARPS; slice++) {
                const float4 one = sums[(slice * B::STRIPS * TILES + tile) * WARP + lane];
                total[0] += one.x, total[1] += one.y, total[2] += one.z, total[3] += one.w;
            }
            put(tile / TILES, tile % TILES, total);
        }
    }
}

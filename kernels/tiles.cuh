// Tiles of a quantized matrix times many rows on tensor cores: what products of a matrix and of experts' matrices share.
//
// Weights are unpacked to signed bytes in shared memory, 128 columns at a time, while the next are loaded; a warp multiplies 16
// rows of them with all rows of x of the tile (mma m16n8k32 s8, m16n8k16 where scales are by 16) and scales each group's sums.
// Shared: static, 40 KiB at most. The including file has included HEADER before.
#pragma once
#include "q8.cuh"

constexpr int STEP = 4;                 // groups of a step
constexpr int STRIDE = STEP * 8 + 4;    // words of a row in shared memory; the padding spreads rows over the banks
constexpr int SUBS = 32 / FORMAT::SUB;  // scales of a group
constexpr int SCALES = SUBS * (FORMAT::SIGNED ? 1 : 2);  // and offsets

DEVICE void mma(int (&c)[4], int a0, int a1, int a2, int a3, int b0, int b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

DEVICE void mma(int (&c)[4], int a0, int a1, int b0) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(b0));
}

// Neighbouring floats to shared memory and from it, in one access.
template <int N>
DEVICE void store_floats(float* to, const float (&from)[4]) {
    if (N == 1) *to = from[0];
    if (N == 2) *(float2*)to = make_float2(from[0], from[1]);
    if (N == 4) *(float4*)to = make_float4(from[0], from[1], from[2], from[3]);
}

template <int N>
DEVICE void load_floats(const float* from, float (&to)[N]) {
    if constexpr (N == 1) {
        to[0] = *from;
    } else if constexpr (N == 2) {
        float2 two = *(const float2*)from;
        to[0] = two.x, to[1] = two.y;
    } else {
        float4 four = *(const float4*)from;
        to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    }
}

// Rows of a matrix that is one of several of a format, one after the other.
struct TileMatrix {
    const uint8_t* w;
    size_t n_all_rows;  // of all the matrices
    size_t first;       // of this one among them
    int n_out;
    const float* bias;  // of this one, or null
};

// Multiplies rows `block * WARPS * 16 ..` of the matrix by TILES * 8 rows of x. X says of each of these whether it is there, which row
// of x it is, and which row of y takes its result.
template <class F, int WARPS, int TILES, class X>
DEVICE void multiply_tile(const TileMatrix& matrix, int block, const X& x, const int8_t* xq, const Q8Scale* xs, int n_in, float* y) {
    constexpr int THREADS = WARPS * WARP, ROWS = WARPS * 16, TOKENS = TILES * 8;
    constexpr int W_LOADS = ROWS * STEP / THREADS, X_LOADS = (TOKENS * STEP * 2 + THREADS - 1) / THREADS;
    __shared__ __align__(16) int weights[ROWS][STRIDE];
    __shared__ __align__(16) int inputs[TOKENS][STRIDE];
    // Those of a group lie together and go in as one; the padding puts the groups of a token into different banks.
    __shared__ __align__(16) float weight_scales[ROWS][STEP * SCALES];
    __shared__ __align__(16) float2 input_scales[STEP][TOKENS * SUBS + 4];  // scale, scale * sum
    const int thread = threadIdx.x, lane = thread % WARP, warp = thread / WARP;
    const int g = lane / 4, t = lane % 4;
    const int groups = n_in / GROUP, n_out = matrix.n_out, first_row = block * ROWS;
    const F f(matrix.w, matrix.n_all_rows * groups);

    typename F::Raw raw[W_LOADS];
    uint4 bytes[X_LOADS];
    auto load = [&](int step) {
#pragma unroll
        for (int i = 0; i < W_LOADS; i++) {
            int local = (thread + i * THREADS) / STEP, group = step + thread % STEP;
            int row = min(first_row + local, n_out - 1);
            if (group < groups) raw[i] = f.load((matrix.first + row) * groups + group);
        }
#pragma unroll
        for (int i = 0; i < X_LOADS; i++) {
            int index = thread + i * THREADS;
            int local = index / (STEP * 2), half = index / STEP % 2, group = step + index % STEP;
            bytes[i] = make_uint4(0, 0, 0, 0);
            if (index < TOKENS * STEP * 2 && x.has(local) && group < groups)
                bytes[i] = ((const uint4*)q8_row(xq, x.source(local), n_in))[half * groups + group];
        }
    };
    auto store = [&](int step) {
#pragma unroll
        for (int i = 0; i < W_LOADS; i++) {
            int local = (thread + i * THREADS) / STEP, slot = thread % STEP;
            int v[8] = {};
            float2 so[2] = {};
            if (step + slot < groups) {
                F::words(raw[i], v);
                so[0] = F::scale(raw[i], 0);
                if (SUBS == 2) so[1] = F::scale(raw[i], 1);
            }
            *(int4*)&weights[local][slot * 8] = make_int4(v[0], v[1], v[2], v[3]);
            *(int4*)&weights[local][slot * 8 + 4] = make_int4(v[4], v[5], v[6], v[7]);
            const float scales[4] = {so[0].x, F::SIGNED ? so[1].x : so[0].y, so[1].x, so[1].y};
            store_floats<SCALES>(&weight_scales[local][slot * SCALES], scales);
        }
#pragma unroll
        for (int i = 0; i < X_LOADS; i++) {
            int index = thread + i * THREADS;
            int local = index / (STEP * 2), half = index / STEP % 2, slot = index % STEP;
            if (index < TOKENS * STEP * 2) *(uint4*)&inputs[local][slot * 8 + half * 4] = bytes[i];
        }
        for (int index = thread; index < TOKENS * STEP; index += THREADS) {
            int local = index / STEP, slot = index % STEP;
            Q8Scale record = {0.0f, 0, 0};
            if (x.has(local) && step + slot < groups) {
                uint2 two = ((const uint2*)q8_scales(xs, x.source(local), n_in))[step + slot];
                record.scale = __uint_as_float(two.x);
                record.sum_low = (short)two.y, record.sum_high = (short)(two.y >> 16);
            }
            int sum = SUBS == 1 ? record.sum_low + record.sum_high : record.sum_low;
            const float scales[4] = {record.scale, record.scale * (float)sum, record.scale,
                                     record.scale * (float)record.sum_high};
            store_floats<2 * SUBS>((float*)&input_scales[slot][local * SUBS], scales);
        }
    };

    float acc[TILES][4] = {};
    const int row0 = warp * 16 + g, row1 = row0 + 8;
    load(0);
#pragma unroll 1
    for (int step = 0; step < groups; step += STEP) {
        __syncthreads();
        store(step);
        __syncthreads();
        if (step + STEP < groups) load(step + STEP);
#pragma unroll 1
        for (int slot = 0; slot < STEP; slot++) {
            int a0 = weights[row0][slot * 8 + t], a1 = weights[row1][slot * 8 + t];
            int a2 = weights[row0][slot * 8 + 4 + t], a3 = weights[row1][slot * 8 + 4 + t];
            float scales0[SCALES], scales1[SCALES];
            load_floats(&weight_scales[row0][slot * SCALES], scales0);
            load_floats(&weight_scales[row1][slot * SCALES], scales1);
#pragma unroll
            for (int s = 0; s < SUBS; s++) {
                constexpr int EACH = SCALES / SUBS;
                float2 so0 = make_float2(scales0[EACH * s], scales0[EACH * s + EACH - 1]);
                float2 so1 = make_float2(scales1[EACH * s], scales1[EACH * s + EACH - 1]);
#pragma unroll
                for (int n = 0; n < TILES; n++) {
                    int c[4] = {};
                    const int* input = inputs[n * 8 + g] + slot * 8 + t;
                    if (SUBS == 1) {
                        mma(c, a0, a1, a2, a3, input[0], input[4]);
                    } else {
                        mma(c, s == 0 ? a0 : a2, s == 0 ? a1 : a3, input[4 * s]);
                    }
                    const float2* input_scale = &input_scales[slot][(n * 8 + 2 * t) * SUBS + s];
                    float2 x0 = input_scale[0], x1 = input_scale[SUBS];
                    acc[n][0] += so0.x * x0.x * (float)c[0];
                    acc[n][1] += so0.x * x1.x * (float)c[1];
                    acc[n][2] += so1.x * x0.x * (float)c[2];
                    acc[n][3] += so1.x * x1.x * (float)c[3];
                    if (!F::SIGNED) {
                        acc[n][0] += so0.y * x0.y;
                        acc[n][1] += so0.y * x1.y;
                        acc[n][2] += so1.y * x0.y;
                        acc[n][3] += so1.y * x1.y;
                    }
                }
            }
        }
    }
#pragma unroll
    for (int n = 0; n < TILES; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = first_row + (i < 2 ? row0 : row1), local = n * 8 + 2 * t + i % 2;
            if (row < n_out && x.has(local))
                y[(size_t)x.target(local) * n_out + row] = matrix.bias ? acc[n][i] + matrix.bias[row] : acc[n][i];
        }
    }
}

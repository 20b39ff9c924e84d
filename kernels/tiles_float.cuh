// Tiles of an F32, F16 or BF16 matrix times many rows of f32, in f32 throughout: what products of a matrix and of experts' matrices share.
//
// A thread block of 256 multiplies 64 rows of the matrix by 16 N rows of x; a thread computes 4 by N elements.
// Shared: static, 8.5 KiB at most: 16 columns of both at a time, transposed. Alignment: weights 16 bytes.
#pragma once
#include "formats/float.cuh"

constexpr int TILE = 64;
constexpr int STEP = 16;

// Multiplies rows `block * TILE ..` of a matrix of n_out rows by 16 N rows of x. X says of each of these whether it is there, which row
// of x it is, and which row of y takes its result.
template <class F, int N, class X>
DEVICE void multiply_tile(const uint4* w, const float* bias, int n_out, int block, const X& rows, const float* x, int n_in, float* y) {
    constexpr int TOKENS = 16 * N;
    // Four more columns keep transposed stores off each other's banks.
    __shared__ __align__(16) float weights[STEP][TILE + 4];
    __shared__ __align__(16) float inputs[STEP][TOKENS + 4];
    constexpr int LEN = F::LEN, PARTS = STEP / LEN;  // chunks of a row in a step
    const int thread = threadIdx.x, first_row = block * TILE;
    const int chunks = (n_in + LEN - 1) / LEN;
    const int tx = thread % 16, ty = thread / 16;
    float acc[N][4] = {};
#pragma unroll 1
    for (int step = 0; step < n_in; step += STEP) {
        if (thread < TILE * PARTS) {
            // Neighbours load a sector together; their rows of `weights` are 16 banks apart.
            int side = thread % 2, local = thread / 2 % TILE, part = thread / 2 / TILE * 2 + side;
            int chunk = step / LEN + part;
            float v[LEN] = {};
            if (chunk < chunks) {
                size_t row = min(first_row + local, n_out - 1);
                F::values(__ldg(w + row * chunks + chunk), v);
            }
#pragma unroll
            for (int j = 0; j < LEN; j++) {
                const int other = LEN == 8 ? j ^ 4 : j;
                weights[part * LEN + (side ? other : j)][local] = side ? v[other] : v[j];
            }
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            // A sector of 8 columns of 4 rows a warp: rows that are 8 apart would share banks.
            int local = N == 1 ? thread / 8 % 16 : thread / 8 + i / 2 * 32;
            int column = thread % 8 + (N == 1 ? thread / 128 : i % 2) * 8, k = step + column;
            inputs[column][local] = rows.has(local) && k < n_in ? x[(size_t)rows.source(local) * n_in + k] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < STEP; k++) {
            float4 a = *(const float4*)&weights[k][tx * 4];
            const float aa[4] = {a.x, a.y, a.z, a.w};
            float bb[N];
            if constexpr (N == 4) {
                float4 b = *(const float4*)&inputs[k][ty * 4];
                bb[0] = b.x, bb[1] = b.y, bb[2] = b.z, bb[3] = b.w;
            } else {
                bb[0] = inputs[k][ty];
            }
#pragma unroll
            for (int i = 0; i < N; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[i][j] += aa[j] * bb[i];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int local = ty * N + i, row = first_row + tx * 4 + j;
            if (row < n_out && rows.has(local))
                y[(size_t)rows.target(local) * n_out + row] = bias ? acc[i][j] + bias[row] : acc[i][j];
        }
    }
}

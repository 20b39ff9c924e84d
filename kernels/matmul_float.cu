// F32, F16 or BF16 matrix times many rows of f32: y[m][r] = sum_k w[r][k] x[m][k] + bias[r], in f32 throughout.
//
// Compiled once a format: -DFORMAT=F16.
//
// grid: (sum over jobs of ceil(n_out / 64), ceil(n_rows / 64)); block: 256; a thread computes 4 by 4 elements. Up to three
// matrices of one input are one launch; jobs without rows have n_out 0.
// Shapes: w [n_out, n_in] with rows padded to 16 bytes (formats/float.cuh), x [n_rows, n_in] f32, y [n_rows, n_out] f32.
// Shared: static, 8.5 KiB: 16 columns of both at a time, transposed. Alignment: weights 16 bytes.
// f32 arithmetic keeps the result within rounding of the host's; measured on the simulator only: bench/runs.
#include "formats/float.cuh"
#include "jobs.cuh"

constexpr int TILE = 64;
constexpr int STEP = 16;

template <class F>
DEVICE void matmul(const Job& job, int block, const float* x, int n_in, int n_rows) {
    // Four more columns keep transposed stores off each other's banks.
    __shared__ __align__(16) float weights[STEP][TILE + 4];
    __shared__ __align__(16) float inputs[STEP][TILE + 4];
    constexpr int LEN = F::LEN, PARTS = STEP / LEN;  // chunks of a row in a step
    const int thread = threadIdx.x, n_out = job.n_out;
    const int first_row = block * TILE, first_token = blockIdx.y * TILE;
    const int chunks = (n_in + LEN - 1) / LEN;
    const int tx = thread % 16, ty = thread / 16;
    float acc[4][4] = {};
#pragma unroll 1
    for (int step = 0; step < n_in; step += STEP) {
        if (thread < TILE * PARTS) {
            // Neighbours load a sector together; their rows of `weights` are 16 banks apart.
            int side = thread % 2, local = thread / 2 % TILE, part = thread / 2 / TILE * 2 + side;
            int chunk = step / LEN + part;
            float v[LEN] = {};
            if (chunk < chunks) {
                size_t row = min(first_row + local, n_out - 1);
                F::values(__ldg((const uint4*)job.w + row * chunks + chunk), v);
            }
#pragma unroll
            for (int j = 0; j < LEN; j++) {
                const int other = LEN == 8 ? j ^ 4 : j;
                weights[part * LEN + (side ? other : j)][local] = side ? v[other] : v[j];
            }
        }
#pragma unroll
        for (int i = 0; i < TILE * STEP / 256; i++) {
            // A sector of 8 columns of 4 tokens a warp: rows that are 8 apart would share banks.
            int column = thread % 8 + i % 2 * 8, local = thread / 8 + i / 2 * 32, k = step + column, token = first_token + local;
            inputs[column][local] = token < n_rows && k < n_in ? __ldg(x + (size_t)token * n_in + k) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < STEP; k++) {
            float4 a = *(const float4*)&weights[k][tx * 4], b = *(const float4*)&inputs[k][ty * 4];
            const float aa[4] = {a.x, a.y, a.z, a.w}, bb[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[i][j] += aa[j] * bb[i];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int token = first_token + ty * 4 + i, row = first_row + tx * 4 + j;
            if (token < n_rows && row < n_out)
                job.y[(size_t)token * n_out + row] = job.bias ? acc[i][j] + job.bias[row] : acc[i][j];
        }
    }
}

KERNEL __launch_bounds__(256) matmul_n64(const uint8_t* w0, const uint8_t* w1, const uint8_t* w2, float* y0, float* y1,
                                         float* y2, const float* bias0, const float* bias1, const float* bias2, int n0,
                                         int n1, int n2, int n_in, int n_rows, const float* x) {
    int block = blockIdx.x;
    Job job = pick_job({w0, y0, bias0, n0}, {w1, y1, bias1, n1}, {w2, y2, bias2, n2}, TILE, block);
    matmul<FORMAT>(job, block, x, n_in, n_rows);
}

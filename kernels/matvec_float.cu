// F32, F16 or BF16 matrix times 1 to 8 rows of f32: y[m][r] = sum_k w[r][k] x[m][k] + bias[r], weights read once.
//
// Compiled once a format: -DFORMAT=F16 gives matvec_m1, _m2, _m4, _m8.
//
// grid: sum over the jobs of ceil(n_out / 8); block: 128; a warp computes 2 rows. Up to three matrices of one input are one
// launch; jobs without rows have n_out 0. No shared memory.
// Shapes: w [n_out, n_in] with rows padded to 16 bytes (formats/float.cuh), x [n_rows, n_in] f32, n_rows <= M,
// y [n_rows, n_out] f32. A lane takes every 32nd 16-byte chunk of its rows, 2 at a time: four loads in flight. Sums are in
// one order whatever M is. Alignment: weights 16 bytes; x too where n_in is a multiple of 4.
// Measured on the simulator only: bench/runs.
#include "formats/float.cuh"
#include "jobs.cuh"

constexpr int ROWS = 2;      // rows of a warp that share the loads of x
constexpr int JOB_ROWS = 8;  // rows of a thread block

template <int LEN>
DEVICE void load_input(const float* x, int first, int n_in, bool is_aligned, float (&v)[LEN]) {
    if (is_aligned && first + LEN <= n_in) {
#pragma unroll
        for (int j = 0; j < LEN / 4; j++) {
            float4 four = __ldg((const float4*)(x + first) + j);
            v[4 * j] = four.x, v[4 * j + 1] = four.y, v[4 * j + 2] = four.z, v[4 * j + 3] = four.w;
        }
    } else {
#pragma unroll
        for (int j = 0; j < LEN; j++) v[j] = first + j < n_in ? __ldg(x + first + j) : 0.0f;
    }
}

template <class F, int M>
DEVICE void matvec(const Job& job, int block, const float* x, int n_in, int n_rows) {
    constexpr int UNROLL = M <= 4 ? 2 : 1;  // chunks of a row in flight
    const uint4* w = (const uint4*)job.w;
    int lane = threadIdx.x % WARP, n_out = job.n_out;
    int row = (block * (int)(blockDim.x / WARP) + (int)threadIdx.x / WARP) * ROWS;
    if (row >= n_out) return;
    const int chunks = (n_in + F::LEN - 1) / F::LEN;
    const bool is_aligned = n_in % 4 == 0;
    const uint4* rows[ROWS] = {w + (size_t)row * chunks, w + (size_t)min(row + 1, n_out - 1) * chunks};
    float acc[ROWS][M] = {};
#pragma unroll 1
    for (int first = lane; first < chunks; first += WARP * UNROLL) {
        uint4 raw[UNROLL][ROWS];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (first + WARP * u < chunks) raw[u][r] = __ldg(rows[r] + first + WARP * u);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int chunk = first + WARP * u;
            if (chunk >= chunks) continue;
            float weights[ROWS][F::LEN];
#pragma unroll
            for (int r = 0; r < ROWS; r++) F::values(raw[u][r], weights[r]);
#pragma unroll
            for (int m = 0; m < M; m++) {
                // Rows beyond the last repeat it; their sums are not stored.
                float v[F::LEN];
                load_input<F::LEN>(x + (size_t)min(m, n_rows - 1) * n_in, chunk * F::LEN, n_in, is_aligned, v);
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int j = 0; j < F::LEN; j++) acc[r][m] += weights[r][j] * v[j];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int m = 0; m < M; m++) {
            float sum = warp_sum(acc[r][m]);
            if (lane == r * M + m && row + r < n_out && m < n_rows) {
                job.y[(size_t)m * n_out + row + r] = job.bias ? sum + job.bias[row + r] : sum;
            }
        }
    }
}

#define MATVEC(M)                                                                                              \
    KERNEL __launch_bounds__(128, 1)                                                                             \
        matvec_m##M(const uint8_t* w0, const uint8_t* w1, const uint8_t* w2, float* y0, float* y1, float* y2,  \
                    const float* bias0, const float* bias1, const float* bias2, int n0, int n1, int n2,        \
                    int n_in, int n_rows, const float* x) {                                                    \
        int block = blockIdx.x;                                                                                \
        Job job = pick_job({w0, y0, bias0, n0}, {w1, y1, bias1, n1}, {w2, y2, bias2, n2}, JOB_ROWS, block);     \
        matvec<FORMAT, M>(job, block, x, n_in, n_rows);                                                        \
    }

MATVEC(1)
MATVEC(2)
MATVEC(4)
MATVEC(8)

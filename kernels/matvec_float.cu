// F32, F16 or BF16 matrix times 1 to 8 rows of f32: y[m][r] = sum_k w[r][k] x[m][k] + bias[r], weights read once.
//
// Compiled once a format: -DFORMAT=F16 gives matvec_m1, _m2, _m4, _m8 and matvec_gated_m1 ..
//
// matvec_mM      grid: sum over the jobs of ceil(n_out / 8); block: 128; a warp computes 2 rows. Up to three matrices of one
//                input are one launch; jobs without rows have n_out 0. No shared memory.
// matvec_gated_mM  gate and up at once (gated.cuh); grid: ceil(n_out / 32); block: 256; 128 M bytes of shared memory.
// Shapes: w [n_out, n_in] with rows padded to 16 bytes (formats/float.cuh), x [n_rows, n_in] f32, n_rows <= M,
// y [n_rows, n_out] f32. A lane takes every 32nd 16-byte chunk of its rows, 2 at a time: four loads in flight. Sums are in
// one order whatever M is. Alignment: weights 16 bytes; x too where n_in is a multiple of 4.
// Measured on the simulator only: bench/runs.
#include "gated.cuh"
#include "jobs.cuh"
#include "matvec_float.cuh"

template <class F, int M>
DEVICE void matvec(const Job& job, int block, const Input<M>& x) {
    int lane = threadIdx.x % WARP, n_out = job.n_out;
    int row = (block * (int)(blockDim.x / WARP) + (int)threadIdx.x / WARP) * ROWS;
    if (row >= n_out) return;
    const uint4* w = (const uint4*)job.w;
    const size_t chunks = (x.n_in + F::LEN - 1) / F::LEN;
    const uint4* const rows[ROWS] = {w + row * chunks, w + min(row + 1, n_out - 1) * chunks};
    float acc[ROWS][M] = {};
    dot_rows<F, M>(rows, x, acc);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int m = 0; m < M; m++) {
            if (lane == r * M + m && row + r < n_out && m < x.n_rows) {
                job.y[(size_t)m * n_out + row + r] = job.bias ? acc[r][m] + job.bias[row + r] : acc[r][m];
            }
        }
    }
}

template <class F, int M>
struct GatedSums {
    const uint4 *gate, *up;
    const Input<M>& x;

    __device__ __forceinline__ void of(int row, float (&acc)[2][M]) const {
        const size_t first = (size_t)row * ((x.n_in + F::LEN - 1) / F::LEN);
        const uint4* const rows[2] = {gate + first, up + first};
        dot_rows<F, M>(rows, x, acc);
    }
};

#define MATVEC(M)                                                                                                          \
    KERNEL __launch_bounds__(128, 1)                                                                                         \
        matvec_m##M(const uint8_t* w0, const uint8_t* w1, const uint8_t* w2, float* y0, float* y1, float* y2,              \
                    const float* bias0, const float* bias1, const float* bias2, int n0, int n1, int n2, int n_in,          \
                    int n_rows, const float* x) {                                                                          \
        begin_after_earlier();                                                                                             \
        int block = blockIdx.x;                                                                                            \
        Job job = pick_job({w0, y0, bias0, n0}, {w1, y1, bias1, n1}, {w2, y2, bias2, n2}, JOB_ROWS, block);                 \
        matvec<FORMAT, M>(job, block, {x, n_rows, n_in});                                                                  \
    }                                                                                                                      \
    KERNEL __launch_bounds__(256, 1)                                                                                         \
        matvec_gated_m##M(const uint8_t* gate, const uint8_t* up, int n_out, const float* gate_bias, const float* up_bias, \
                          int activation, float* y, int8_t* yq, Q8Scale* ys, int n_in, int n_rows, const float* x) {       \
        begin_after_earlier();                                                                                             \
        const Input<M> input = {x, n_rows, n_in};                                                                          \
        write_gated<M>({n_out, gate_bias, up_bias, activation, y, yq, ys}, n_rows,                                         \
                       GatedSums<FORMAT, M>{(const uint4*)gate, (const uint4*)up, input});                                 \
    }

MATVEC(1)
MATVEC(2)
MATVEC(4)
MATVEC(8)

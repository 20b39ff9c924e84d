// F32, F16 or BF16 matrix times many rows of f32: y[m][r] = sum_k w[r][k] x[m][k] + bias[r], in f32 throughout.
//
// Compiled once a format: -DFORMAT=F16.
//
// grid: (sum over jobs of ceil(n_out / 64), ceil(n_rows / 64)); block: 256. Up to three matrices of one input are one launch; jobs
// without rows have n_out 0.
// Shapes: w [n_out, n_in] with rows padded to 16 bytes (formats/float.cuh), x [n_rows, n_in] f32, y [n_rows, n_out] f32.
// Shared and alignment: tiles_float.cuh.
// f32 arithmetic keeps the result within rounding of the host's; measured on the simulator only: bench/runs.
#include "jobs.cuh"
#include "tiles_float.cuh"

KERNEL __launch_bounds__(256) matmul_n64(const uint8_t* w0, const uint8_t* w1, const uint8_t* w2, float* y0, float* y1,
                                         float* y2, const float* bias0, const float* bias1, const float* bias2, int n0,
                                         int n1, int n2, int n_in, int n_rows, const float* x) {
    begin_after_earlier();
    int block = blockIdx.x;
    Job job = pick_job({w0, y0, bias0, n0}, {w1, y1, bias1, n1}, {w2, y2, bias2, n2}, TILE, block);
    Rows rows = {(int)blockIdx.y * TILE, n_rows};
    multiply_tile<FORMAT, 4>((const uint4*)job.w, job.bias, job.n_out, block, rows, x, n_in, job.y);
}

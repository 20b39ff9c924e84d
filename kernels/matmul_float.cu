// F32, F16 or BF16 matrix times many rows of f32: y[m][r] = sum_k w[r][k] x[m][k] + bias[r].
//
// Compiled once a format: -DFORMAT=F16 gives matmul_n64, in f32 throughout, and of F16 and BF16 bands on tensor cores. Up to three matrices of
// one input are one launch; jobs without rows have n_out 0.
//
// | kernel             | rows of w | rows of x | block | grid                                                    |
// |--------------------|-----------|-----------|-------|---------------------------------------------------------|
// | matmul_n64         | 64        | 64        | 256   | (sum over jobs of ceil(n_out / 64), ceil(n_rows / 64))  |
// | matmul_band_nN     | 128       | N         | 128   | (sum over jobs of ceil(n_out / 128), ceil(n_rows / N))  |
// | matmul_low_band_nN | 32        | N         | 128   | (sum over jobs of ceil(n_out / 32), ceil(n_rows / N))   |
//
// N is 16, 32 or 64, of low bands 16 or 32. Thread blocks of bands that come one after the other share their weights, not their rows of x: so
// many rows of x read weights that L2 does not hold once.
// Shapes: w [n_out, n_in] with rows padded to 16 bytes (formats/float.cuh), x [n_rows, n_in] f32, y [n_rows, n_out] f32; n_in of bands is a
// multiple of 8.
// Shared and alignment: tiles_float.cuh, and of bands dynamic, as float_bands.cuh says.
// f32 arithmetic, or 21 bits of x, keeps the result within rounding of the host's; measured on the simulator only: bench/runs.
#include "jobs.cuh"
#include "tiles_float.cuh"

#define MATMUL_PARAMETERS                                                                                             \
    const uint8_t *w0, const uint8_t *w1, const uint8_t *w2, float *y0, float *y1, float *y2, const float *bias0,      \
        const float *bias1, const float *bias2, int n0, int n1, int n2, int n_in, int n_rows, const float *x

KERNEL __launch_bounds__(256) matmul_n64(MATMUL_PARAMETERS) {
    begin_after_earlier();
    int block = blockIdx.x;
    Job job = pick_job({w0, y0, bias0, n0}, {w1, y1, bias1, n1}, {w2, y2, bias2, n2}, TILE, block);
    Rows rows = {(int)blockIdx.y * TILE, n_rows};
    multiply_tile<FORMAT, 4>((const uint4*)job.w, job.bias, job.n_out, block, rows, x, n_in, job.y);
}

// Bands are for numbers of two bytes.
#define JOIN(A, B) A##B
#define HAS_WORDS(NAME) JOIN(HAS_WORDS_, NAME)
#define HAS_WORDS_F32 1

#if !HAS_WORDS(FORMAT)
#include "float_bands.cuh"

#define FLOAT_BAND(NAME, TILES, HEIGHT)                                                                             \
    KERNEL __launch_bounds__(BAND_WARPS * 32, 1) NAME(MATMUL_PARAMETERS) {                                          \
        let_next_begin();                                                                                           \
        const int at = blockIdx.y * gridDim.x + blockIdx.x;                                                         \
        int block = at / gridDim.y;                                                                                 \
        Job job = pick_job({w0, y0, bias0, n0}, {w1, y1, bias1, n1}, {w2, y2, bias2, n2}, HEIGHT, block);            \
        Rows rows = {(int)(at % gridDim.y) * TILES * 8, n_rows};                                                    \
        multiply_float_band<FORMAT, TILES, HEIGHT>(job, block, rows, x, n_in);                                      \
    }

FLOAT_BAND(matmul_band_n16, 2, 128)
FLOAT_BAND(matmul_band_n32, 4, 128)
FLOAT_BAND(matmul_band_n64, 8, 128)
FLOAT_BAND(matmul_low_band_n16, 2, 32)
FLOAT_BAND(matmul_low_band_n32, 4, 32)
#endif

// F32, F16 or BF16 matrix times many rows of f32: y[m][r] = sum_k w[r][k] x[m][k] + bias[r].
//
// Compiled once a format: -DFORMAT=F16 gives matmul_n64, in f32 throughout, of F32 matmul_n8, and of F16 and BF16 bands on tensor cores. Up to
// three matrices of one input are one launch; jobs without rows have n_out 0.
//
// | kernel             | rows of w | rows of x | block | grid                                                    |
// |--------------------|-----------|-----------|-------|---------------------------------------------------------|
// | matmul_n64         | 64        | 64        | 256   | (sum over jobs of ceil(n_out / 64), ceil(n_rows / 64))  |
// | matmul_n8          | 8         | 8         | 256   | (sum over jobs of ceil(n_out / 8), ceil(n_rows / 8))    |
// | matmul_band_nN     | 128       | N         | 128   | (sum over jobs of ceil(n_out / 128), ceil(n_rows / N))  |
// | matmul_low_band_nN | 32        | N         | 128   | (sum over jobs of ceil(n_out / 32), ceil(n_rows / N))   |
//
// N is 16, 32 or 64, of low bands 16 or 32. Thread blocks of bands that come one after the other share their weights, not their rows of x: so
// many rows of x read weights that L2 does not hold once. matmul_n8 is for matrices of few rows, such as routers of experts, which are few of the
// other tiles: its warps share the columns, and every weight is read again for each 8 rows of x, by then from L2.
// Shapes: w [n_out, n_in] with rows padded to 16 bytes (formats/float.cuh), x [n_rows, n_in] f32, y [n_rows, n_out] f32; n_in of bands is a
// multiple of 8.
// Shared and alignment: tiles_float.cuh; static 2 KiB of matmul_n8; and of bands dynamic, as float_bands.cuh says.
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
#else
#include "matvec_float.cuh"

constexpr int SIDE = 8;  // rows of w and of x
constexpr int SIDE_WARPS = 8;

// Sums of 4 M values over the lanes that differ in M and the bits below it: lane l gets those of values 2 (l mod 2 M) and the one behind it.
template <int M>
DEVICE void scatter_sums(float (&s)[SIDE * SIDE]) {
    const bool is_upper = threadIdx.x & M;
#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
        const float given = is_upper ? s[i] : s[i + 2 * M], kept = is_upper ? s[i + 2 * M] : s[i];
        s[i] = kept + __shfl_xor_sync(FULL_WARP, given, M);
    }
    if constexpr (M > 1) scatter_sums<M / 2>(s);
}

KERNEL __launch_bounds__(SIDE_WARPS * WARP) matmul_n8(MATMUL_PARAMETERS) {
    __shared__ float2 parts[SIDE_WARPS][WARP];
    let_next_begin();
    int block = blockIdx.x;
    const Job job = pick_job({w0, y0, bias0, n0}, {w1, y1, bias1, n1}, {w2, y2, bias2, n2}, SIDE, block);
    const int first = block * SIDE, first_x = blockIdx.y * SIDE, chunks = (n_in + RUN - 1) / RUN;
    const uint4* w[SIDE];
#pragma unroll
    for (int r = 0; r < SIDE; r++) w[r] = (const uint4*)job.w + (size_t)min(first + r, job.n_out - 1) * chunks;
    uint4 q[SIDE];
    int chunk = threadIdx.x;
#pragma unroll
    for (int r = 0; r < SIDE; r++) q[r] = chunk < chunks ? __ldg(w[r] + chunk) : make_uint4(0, 0, 0, 0);
    // The first weights are on their way before x is there.
    await_earlier();
    float acc[SIDE * SIDE] = {};
#pragma unroll 1
    while (chunk < chunks) {
        float v[SIDE][RUN];
#pragma unroll
        for (int m = 0; m < SIDE; m++)
            load_run<false>(x + (size_t)min(first_x + m, n_rows - 1) * n_in, chunk * RUN, n_in, n_in % RUN == 0, v[m]);
        const int next = chunk + SIDE_WARPS * WARP;
#pragma unroll
        for (int r = 0; r < SIDE; r++) {
            float weights[RUN];
            FORMAT::values(q[r], weights);
            if (next < chunks) q[r] = __ldg(w[r] + next);
#pragma unroll
            for (int m = 0; m < SIDE; m++)
#pragma unroll
                for (int j = 0; j < RUN; j++) acc[m * SIDE + r] += weights[j] * v[m][j];
        }
        chunk = next;
    }
    scatter_sums<WARP / 2>(acc);
    parts[threadIdx.x / WARP][threadIdx.x % WARP] = make_float2(acc[0], acc[1]);
    __syncthreads();
    const int m = first_x + (int)threadIdx.x / SIDE, row = first + (int)threadIdx.x % SIDE;
    if (threadIdx.x >= SIDE * SIDE || m >= n_rows || row >= job.n_out) return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < SIDE_WARPS; i++) sum += ((const float*)parts[i])[threadIdx.x];
    job.y[(size_t)m * job.n_out + row] = job.bias ? sum + job.bias[row] : sum;
}
#endif

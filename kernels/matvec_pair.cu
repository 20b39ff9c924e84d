// Quantized matrices of two formats times 1 to 8 rows of one input, in one launch: query and key weights of one format, value
// weights of another, as files of mixed types have them.
//
// Compiled once a pair: -DFORMAT=Q4_K -DHEADER="formats/q4_k.cuh" -DSECOND=Q6_K -DSECOND_HEADER="formats/q6_k.cuh" gives
// matvec_pair_m1, _m2, _m4, _m8.
//
// matvec_pair_mM  as matvec_mM of matvec.cu, bit for bit, with jobs 0 and 1 of FORMAT and job 2 of SECOND.
//                 grid: sum over the jobs of ceil(n_out / 8); block: 128; jobs without rows have n_out 0. No shared memory.
// Shapes: w as formats/planes.cuh says; x quantized as q8.cuh says, [n_rows, n_in], n_rows <= M; y [n_rows, n_out] f32.
// Alignment: weights 256 bytes, x and y 16 bytes. Measured on the simulator only: bench/runs.
#include HEADER
#include SECOND_HEADER
#include "matvec.cuh"
#include "strips.cuh"

#define MATVEC_PAIR(M)                                                                                                \
    KERNEL __launch_bounds__(128, 1)                                                                                    \
        matvec_pair_m##M(const uint8_t* w0, const uint8_t* w1, const uint8_t* w2, float* y0, float* y1, float* y2,    \
                         const float* bias0, const float* bias1, const float* bias2, int n0, int n1, int n2, int n_in, \
                         int n_rows, const int8_t* xq, const Q8Scale* xs) {                                           \
        let_next_begin();                                                                                             \
        const Input<M> x = {xq, xs, n_rows, n_in};                                                                    \
        constexpr int ROWS_OF_BLOCK = BLOCK_ROWS<FORMAT>;                                                             \
        int first = (n0 + ROWS_OF_BLOCK - 1) / ROWS_OF_BLOCK + (n1 + ROWS_OF_BLOCK - 1) / ROWS_OF_BLOCK;              \
        int block = blockIdx.x;                                                                                       \
        if (block >= first) {                                                                                         \
            multiply_rows<SECOND, M>({w2, y2, bias2, n2}, block - first, x);                                          \
        } else {                                                                                                      \
            Job job = pick_job({w0, y0, bias0, n0}, {w1, y1, bias1, n1}, {}, ROWS_OF_BLOCK, block);                    \
            multiply_rows<FORMAT, M>(job, block, x);                                                                  \
        }                                                                                                             \
    }

MATVEC_PAIR(1)
MATVEC_PAIR(2)
MATVEC_PAIR(4)
MATVEC_PAIR(8)

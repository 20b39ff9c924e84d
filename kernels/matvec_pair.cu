// Quantized matrices of two formats times 1 to 8 rows of one input, in one launch: query and key weights of one format, value
// weights of another, as files of mixed types have them.
//
// Compiled once a pair: -DFORMAT=Q4_K -DHEADER="formats/q4_k.cuh" -DSECOND=Q6_K -DSECOND_HEADER="formats/q6_k.cuh" gives
// matvec_pair_m1, _m2, _m4, _m8, and matvec_pair_m16 where both formats come in strips.
//
// matvec_pair_mM  as matvec_mM of matvec.cu, bit for bit, with jobs 0 and 1 of FORMAT and job 2 of SECOND.
//                 grid: (sum over the jobs of ceil(n_out / 8), or of ceil(n_out / 16) in strips; for m16 ceil(n_rows / 16)); block: 128; jobs without
//                 rows have n_out 0. Shared, dynamic: what the format that takes more has (strips.cuh).
// Shapes: w as formats/planes.cuh says; x quantized as q8.cuh says, [n_rows, n_in], n_rows <= M but for m16; y [n_rows, n_out] f32.
// Alignment: weights 256 bytes, x and y 16 bytes. Measured on the simulator only: bench/runs.
#include HEADER
#ifdef TAKES_STRIPS
#define FIRST_TAKES_STRIPS
#undef TAKES_STRIPS
#endif
#include SECOND_HEADER
#include "matvec.cuh"
#include "strip_jobs.cuh"

#define MATVEC_PAIR(M)                                                                                                \
    KERNEL __launch_bounds__(128, 1)                                                                                    \
        matvec_pair_m##M(const uint8_t* w0, const uint8_t* w1, const uint8_t* w2, float* y0, float* y1, float* y2,    \
                         const float* bias0, const float* bias1, const float* bias2, int n0, int n1, int n2, int n_in, \
                         int n_rows, const int8_t* xq, const Q8Scale* xs) {                                           \
        let_next_begin();                                                                                             \
        const int before = M == 16 ? blockIdx.y * M : 0;                                                              \
        const Input<M> x = {q8_row(xq, before, n_in), q8_scales(xs, before, n_in), n_rows - before, n_in};            \
        auto blocks_of = [&](int n_out) { return blocks_of_matrix<FORMAT, M>(n_out, n_in); };                            \
        int first = blocks_of(n0) + blocks_of(n1);                                                                    \
        int block = blockIdx.x;                                                                                       \
        if (block >= first) {                                                                                         \
            multiply_rows<SECOND, M>({w2, y2 + (size_t)before * n2, bias2, n2}, block - first, x);                    \
        } else {                                                                                                      \
            Job job = pick_job_by({w0, y0, bias0, n0}, {w1, y1, bias1, n1}, {}, blocks_of, block);                      \
            job.y += (size_t)before * job.n_out;                                                                      \
            multiply_rows<FORMAT, M>(job, block, x);                                                                  \
        }                                                                                                             \
    }

MATVEC_PAIR(1)
MATVEC_PAIR(2)
MATVEC_PAIR(4)
MATVEC_PAIR(8)
#if defined(FIRST_TAKES_STRIPS) && defined(TAKES_STRIPS)
// matvec_pair_normed_m1: the same of a row that is normed first (normed_row.cuh). Registers leave room for three thread blocks on a multiprocessor, or for
// two and one of the attention that follows.
KERNEL __launch_bounds__(128, 3)
    matvec_pair_normed_m1(const uint8_t* w0, const uint8_t* w1, const uint8_t* w2, float* y0, float* y1, float* y2, const float* bias0,
                          const float* bias1, const float* bias2, int n0, int n1, int n2, int n_in, const float* hidden,
                          const float* weight, float eps, float* normed, int8_t* xq, Q8Scale* xs) {
    let_next_begin();
    auto blocks_of = [&](int n_out) { return (n_out + STRIP - 1) / STRIP; };
    const NormedRow row = {hidden, weight, eps, normed, xq, xs};
    int first = blocks_of(n0) + blocks_of(n1), block = blockIdx.x;
    if (block >= first) {
        multiply_strip<SECOND, 1, false, true>({w2, y2, bias2, n2}, block - first, {nullptr, nullptr, 1, n_in}, 1.0f, row);
    } else {
        Job job = pick_job_by({w0, y0, bias0, n0}, {w1, y1, bias1, n1}, {}, blocks_of, block);
        multiply_strip<FORMAT, 1, false, true>(job, block, {nullptr, nullptr, 1, n_in}, 1.0f, row);
    }
}
MATVEC_PAIR(16)
#endif

// Quantized matrix times few rows: y[m][r] = sum_k w[r][k] x[m][k] + bias[r], weights read once for M rows.
//
// Compiled once a format: -DFORMAT=Q4_K -DHEADER="formats/q4_k.cuh" gives matvec_m1, _m2, _m4, _m8 and matvec_gated_m1 .., and
// matvec_m16 where the format comes in strips.
//
// matvec_mM      grid: (sum over the jobs of ceil(n_out / 8), or of ceil(n_out / 16) in strips, ceil(n_out / 64) where the matrix is tall; for m16
//                ceil(n_rows / 16)); block: 128.
//                Up to three matrices of one input are one launch; jobs without rows have n_out 0. A warp computes 2 rows where there are no strips.
// matvec_gated_mM  gate and up at once (gated.cuh); grid: ceil(n_out / 32); block: 256, in strips 128; 128 M bytes of shared memory, in strips
//                  what strips.cuh says.
// Shapes: w as formats/planes.cuh says; x quantized as q8.cuh says, [n_rows, n_in], n_rows <= M but for m16; y [n_rows, n_out] f32.
// Alignment: weights 256 bytes, x and y 16 bytes. Measured on the simulator only: bench/runs.
#include HEADER
#include "gated.cuh"
#include "matvec.cuh"
#include "strip_jobs.cuh"

template <class F, int M>
struct GatedSums {
    const F (&pair)[2];
    const Input<M>& x;

    __device__ __forceinline__ void of(int row, float (&acc)[2][M]) const {
        size_t first_group = (size_t)row * (x.n_in / GROUP);
        const size_t base[2] = {first_group, first_group};
        dot_rows<F, M, 2, true>(pair, base, x, acc);
    }
};

template <class F, int M>
DEVICE void multiply_gated(const uint8_t* gate, const uint8_t* up, const Gated& out, const Input<M>& x) {
    if constexpr (HAS_STRIPS<F>) {
        multiply_gated_strips<F, M>(gate, up, out, x);
    } else {
        size_t groups = (size_t)out.n_out * (x.n_in / GROUP);
        const F pair[2] = {F(gate, groups), F(up, groups)};
        // A warp without rows waits too, since it stores what others have summed up.
        if ((int)blockIdx.x * WARP + (int)threadIdx.x / WARP * GATED_WARP_ROWS >= out.n_out) await_earlier();
        write_gated<M>(out, x.n_rows, GatedSums<F, M>{pair, x});
    }
}

#define MATVEC(M)                                                                                                          \
    KERNEL __launch_bounds__(128, 1)                                                                                            \
        matvec_m##M(const uint8_t* w0, const uint8_t* w1, const uint8_t* w2, float* y0, float* y1, float* y2,              \
                    const float* bias0, const float* bias1, const float* bias2, int n0, int n1, int n2, int n_in,          \
                    int n_rows, const int8_t* xq, const Q8Scale* xs) {                                                     \
        let_next_begin();                                                                                                  \
        const int before = M == 16 ? blockIdx.y * M : 0;                                                                   \
        const Input<M> x = {q8_row(xq, before, n_in), q8_scales(xs, before, n_in), n_rows - before, n_in};                  \
        int block = blockIdx.x;                                                                                            \
        auto blocks_of = [&](int n_out) { return blocks_of_matrix<FORMAT, M>(n_out, n_in); };                                 \
        Job job = pick_job_by({w0, y0, bias0, n0}, {w1, y1, bias1, n1}, {w2, y2, bias2, n2}, blocks_of, block);               \
        job.y += (size_t)before * job.n_out;                                                                               \
        multiply_rows<FORMAT, M>(job, block, x);                                                                           \
    }

#define MATVEC_GATED(M)                                                                                                 \
    KERNEL __launch_bounds__(256, 1)                                                                                            \
        matvec_gated_m##M(const uint8_t* gate, const uint8_t* up, int n_out, const float* gate_bias, const float* up_bias, \
                          int activation, float* y, int8_t* yq, Q8Scale* ys, int n_in, int n_rows, const int8_t* xq,       \
                          const Q8Scale* xs) {                                                                             \
        let_next_begin();                                                                                                  \
        const Input<M> x = {xq, xs, n_rows, n_in};                                                                         \
        multiply_gated<FORMAT, M>(gate, up, {n_out, gate_bias, up_bias, activation, y, yq, ys}, x);                          \
    }

#ifdef TAKES_STRIPS
// matvec_add_m1: y += add_scale * (w x + bias), one matrix and one row of x.
KERNEL __launch_bounds__(128, 1) matvec_add_m1(const uint8_t* w, float* y, const float* bias, float add_scale, int n_out, int n_in,
                                               const int8_t* xq, const Q8Scale* xs) {
    let_next_begin();
    multiply_strip<FORMAT, 1, true>({w, y, bias, n_out}, blockIdx.x, {xq, xs, 1, n_in}, add_scale);
}

// matvec_normed_m1, matvec_gated_normed_m1: the same as without, of a row that is normed first (normed_row.cuh).
KERNEL __launch_bounds__(128, 1)
    matvec_normed_m1(const uint8_t* w0, const uint8_t* w1, const uint8_t* w2, float* y0, float* y1, float* y2, const float* bias0,
                     const float* bias1, const float* bias2, int n0, int n1, int n2, int n_in, const float* hidden, const float* weight,
                     float eps, float* normed, int8_t* xq, Q8Scale* xs) {
    let_next_begin();
    int block = blockIdx.x;
    auto blocks_of = [&](int n_out) { return (n_out + STRIP - 1) / STRIP; };
    Job job = pick_job_by({w0, y0, bias0, n0}, {w1, y1, bias1, n1}, {w2, y2, bias2, n2}, blocks_of, block);
    multiply_strip<FORMAT, 1, false, true>(job, block, {nullptr, nullptr, 1, n_in}, 1.0f, {hidden, weight, eps, normed, xq, xs});
}

KERNEL __launch_bounds__(128, 1)
    matvec_gated_normed_m1(const uint8_t* gate, const uint8_t* up, int n_out, const float* gate_bias, const float* up_bias, int activation,
                           float* y, int8_t* yq, Q8Scale* ys, int n_in, const float* hidden, const float* weight, float eps,
                           float* normed, int8_t* xq, Q8Scale* xs) {
    let_next_begin();
    multiply_gated_strips<FORMAT, 1, true>(gate, up, {n_out, gate_bias, up_bias, activation, y, yq, ys}, {nullptr, nullptr, 1, n_in},
                                           {hidden, weight, eps, normed, xq, xs});
}
#endif

MATVEC(1)
MATVEC(2)
MATVEC(4)
MATVEC(8)
#ifdef TAKES_STRIPS
MATVEC(16)
#endif
MATVEC_GATED(1)
MATVEC_GATED(2)
MATVEC_GATED(4)
MATVEC_GATED(8)

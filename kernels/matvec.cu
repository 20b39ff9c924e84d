// Quantized matrix times 1 to 8 rows: y[m][r] = sum_k w[r][k] x[m][k] + bias[r], weights read once.
//
// Compiled once a format: -DFORMAT=Q4_K -DHEADER="formats/q4_k.cuh" gives matvec_m1, _m2, _m4, _m8 and matvec_gated_m1 ..
//
// matvec_mM      grid: sum over the jobs of ceil(n_out / 8); block: 128. Up to three matrices of one input are one launch;
//                jobs without rows have n_out 0. A warp computes 2 rows.
// matvec_gated_mM  y[m][r] = f(gate[r] . x[m] + bias) * (up[r] . x[m] + bias); grid: ceil(n_out / 32); block: 256. A warp
//                computes 4 rows of both. Writes f32 where `y` is given and quantized rows where `yq` is (n_out a
//                multiple of 32 then); 128 M bytes of shared memory.
// Shapes: w as formats/planes.cuh says; x quantized as q8.cuh says, [n_rows, n_in], n_rows <= M; y [n_rows, n_out] f32.
// A lane takes every 32nd group of its rows, 2 at a time: four 16-byte loads in flight. Sums are in one order whatever M is.
// Alignment: weights 256 bytes, x and y 16 bytes. Measured on the simulator only: bench/runs.
#include HEADER
#include "activate.cuh"
#include "jobs.cuh"
#include "q8.cuh"

constexpr int ROWS = 2;      // rows of a warp that share the loads of x
constexpr int JOB_ROWS = 8;  // rows of a thread block

template <int M>
struct Input {
    const int8_t* bytes;
    const Q8Scale* scales;
    int n_rows, n_in;
};

// Adds what group g of each row contributes.
template <class F, int M, int R>
DEVICE void add_group(const typename F::Raw (&raw)[R], int g, const Input<M>& x, float (&acc)[R][M]) {
    const int groups = x.n_in / GROUP;
    int v[R][8];
    float2 so[R][2];
#pragma unroll
    for (int r = 0; r < R; r++) {
        F::words(raw[r], v[r]);
        so[r][0] = F::scale(raw[r], 0);
        if (F::SUB == 16) so[r][1] = F::scale(raw[r], 1);
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        // Rows beyond the last repeat it; their sums are not stored.
        int row = min(m, x.n_rows - 1);
        const uint4* bytes = (const uint4*)q8_row(x.bytes, row, x.n_in);
        uint4 low = __ldg(bytes + g), high = __ldg(bytes + groups + g);
        uint2 record = __ldg((const uint2*)q8_scales(x.scales, row, x.n_in) + g);
        float scale = __uint_as_float(record.x);
        int sum_low = (short)record.y, sum_high = (int)record.y >> 16;
#pragma unroll
        for (int r = 0; r < R; r++) {
            int a = __dp4a(v[r][0], (int)low.x, 0), b = __dp4a(v[r][4], (int)high.x, 0);
            a = __dp4a(v[r][1], (int)low.y, a), b = __dp4a(v[r][5], (int)high.y, b);
            a = __dp4a(v[r][2], (int)low.z, a), b = __dp4a(v[r][6], (int)high.z, b);
            a = __dp4a(v[r][3], (int)low.w, a), b = __dp4a(v[r][7], (int)high.w, b);
            float term;
            if (F::SUB == 32) {
                term = so[r][0].x * (float)(a + b);
                if (!F::SIGNED) term += so[r][0].y * (float)(sum_low + sum_high);
            } else {
                term = so[r][0].x * (float)a + so[r][1].x * (float)b;
                if (!F::SIGNED) term += so[r][0].y * (float)sum_low + so[r][1].y * (float)sum_high;
            }
            acc[r][m] += scale * term;
        }
    }
}

// Sums of R rows with M inputs over a lane's groups. `base[r]` is the index of row r's first group in `f[r]`.
//
// Where a format has a few bytes for each superblock, the warp loads those of 16 superblocks of both rows at once, a lane one, and
// hands them out: loaded with their groups, every sector of them would be asked for four times.
template <class F, int M, int R>
DEVICE void dot_rows(const F (&f)[R], const size_t (&base)[R], const Input<M>& x, float (&acc)[R][M]) {
    constexpr int UNROLL = M <= 4 ? 2 : 1;  // groups of a row in flight
    const int groups = x.n_in / GROUP, lane = threadIdx.x % WARP;
    if constexpr (F::SHARES_SUPERS) {
        static_assert(R == 2, "a warp holds the superblocks of two rows");
        constexpr int SUPERS = WARP / R, CHUNK = 8 * SUPERS;
#pragma unroll 1
        for (int chunk = 0; chunk < groups; chunk += CHUNK) {
            int mine = chunk / 8 + lane % SUPERS, second = lane / SUPERS;
            uint32_t super = 0;
            if (mine < groups / 8) super = second ? f[1].super(base[1] / 8 + mine) : f[0].super(base[0] / 8 + mine);
#pragma unroll 1
            for (int first = chunk; first < min(chunk + CHUNK, groups); first += WARP * UNROLL) {
                typename F::Raw raw[UNROLL][R];
#pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    int g = first + WARP * u + lane;
#pragma unroll
                    for (int r = 0; r < R; r++) {
                        uint32_t its = __shfl_sync(FULL_WARP, super, r * SUPERS + (g - chunk) / 8 % SUPERS);
                        if (g < groups) raw[u][r] = f[r].load(base[r] + g, its);
                    }
                }
#pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    int g = first + WARP * u + lane;
                    if (g < groups) add_group<F, M, R>(raw[u], g, x, acc);
                }
            }
        }
    } else {
#pragma unroll 1
        for (int first = lane; first < groups; first += WARP * UNROLL) {
            typename F::Raw raw[UNROLL][R];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                int g = first + WARP * u;
                if (g < groups) {
#pragma unroll
                    for (int r = 0; r < R; r++) raw[u][r] = f[r].load(base[r] + g);
                }
            }
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                int g = first + WARP * u;
                if (g < groups) add_group<F, M, R>(raw[u], g, x, acc);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int m = 0; m < M; m++) acc[r][m] = warp_sum(acc[r][m]);
}

template <class F, int M>
DEVICE void matvec(const Job& job, int block, const Input<M>& x) {
    int lane = threadIdx.x % WARP, n_out = job.n_out;
    int row = (block * (int)(blockDim.x / WARP) + (int)threadIdx.x / WARP) * ROWS;
    if (row >= n_out) return;
    int groups = x.n_in / GROUP;
    F f(job.w, (size_t)n_out * groups);
    const F both[ROWS] = {f, f};
    const size_t base[ROWS] = {(size_t)row * groups, (size_t)min(row + 1, n_out - 1) * groups};
    float acc[ROWS][M] = {};
    dot_rows<F, M, ROWS>(both, base, x, acc);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int m = 0; m < M; m++) {
            if (lane == r * M + m && row + r < n_out && m < x.n_rows) {
                float sum = job.bias ? acc[r][m] + job.bias[row + r] : acc[r][m];
                job.y[(size_t)m * n_out + row + r] = sum;
            }
        }
    }
}

template <class F, int M>
DEVICE void matvec_gated(const uint8_t* gate, const uint8_t* up, int n_out, const float* gate_bias, const float* up_bias,
                         int activation, float* y, int8_t* yq, Q8Scale* ys, const Input<M>& x) {
    __shared__ float tile[M][WARP];
    constexpr int WARP_ROWS = 4;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int groups = x.n_in / GROUP;
    const F pair[2] = {F(gate, (size_t)n_out * groups), F(up, (size_t)n_out * groups)};
    int first = blockIdx.x * WARP;
#pragma unroll 1
    for (int i = 0; i < WARP_ROWS; i++) {
        int local = warp * WARP_ROWS + i, row = first + local;
        if (row >= n_out) break;
        const size_t base[2] = {(size_t)row * groups, (size_t)row * groups};
        float acc[2][M] = {};
        dot_rows<F, M, 2>(pair, base, x, acc);
        float gate_add = gate_bias ? gate_bias[row] : 0.0f, up_add = up_bias ? up_bias[row] : 0.0f;
#pragma unroll
        for (int m = 0; m < M; m++) {
            if (lane == m) tile[m][local] = activate(activation, acc[0][m] + gate_add) * (acc[1][m] + up_add);
        }
    }
    __syncthreads();
    for (int m = warp; m < x.n_rows; m += blockDim.x / WARP) {
        bool is_inside = first + lane < n_out;
        float value = is_inside ? tile[m][lane] : 0.0f;
        if (y && is_inside) y[(size_t)m * n_out + first + lane] = value;
        if (yq) quantize_group(value, q8_row(yq, m, n_out), q8_scales(ys, m, n_out), blockIdx.x, n_out / GROUP);
    }
}

#define MATVEC(M)                                                                                                          \
    KERNEL __launch_bounds__(128, 1)                                                                                         \
        matvec_m##M(const uint8_t* w0, const uint8_t* w1, const uint8_t* w2, float* y0, float* y1, float* y2,              \
                    const float* bias0, const float* bias1, const float* bias2, int n0, int n1, int n2, int n_in,          \
                    int n_rows, const int8_t* xq, const Q8Scale* xs) {                                                     \
        const Input<M> x = {xq, xs, n_rows, n_in};                                                                         \
        int block = blockIdx.x;                                                                                            \
        Job job = pick_job({w0, y0, bias0, n0}, {w1, y1, bias1, n1}, {w2, y2, bias2, n2}, JOB_ROWS, block);                 \
        matvec<FORMAT, M>(job, block, x);                                                                                  \
    }                                                                                                                      \
    KERNEL __launch_bounds__(256, 1)                                                                                         \
        matvec_gated_m##M(const uint8_t* gate, const uint8_t* up, int n_out, const float* gate_bias, const float* up_bias, \
                          int activation, float* y, int8_t* yq, Q8Scale* ys, int n_in, int n_rows, const int8_t* xq,       \
                          const Q8Scale* xs) {                                                                             \
        const Input<M> x = {xq, xs, n_rows, n_in};                                                                         \
        matvec_gated<FORMAT, M>(gate, up, n_out, gate_bias, up_bias, activation, y, yq, ys, x);                            \
    }

MATVEC(1)
MATVEC(2)
MATVEC(4)
MATVEC(8)

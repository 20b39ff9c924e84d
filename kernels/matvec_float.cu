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
#include "formats/float.cuh"
#include "gated.cuh"
#include "jobs.cuh"

constexpr int ROWS = 2;      // rows of a warp that share the loads of x
constexpr int JOB_ROWS = 8;  // rows of a thread block
constexpr int RUN = 4;       // values of one load of x

template <int M>
struct Input {
    const float* values;
    int n_rows, n_in;
};

// Values first .. first + 3 of a row, zeros beyond its end.
template <bool IS_WHOLE>
DEVICE void load_run(const float* x, int first, int n_in, bool is_aligned, float* v) {
    if (IS_WHOLE || (is_aligned && first + RUN <= n_in)) {
        float4 four = __ldg((const float4*)(x + first));
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    } else {
#pragma unroll
        for (int j = 0; j < RUN; j++) v[j] = first + j < n_in ? __ldg(x + first + j) : 0.0f;
    }
}

// Of two neighbours' chunks of 8 weights, the even lane gets the first halves of both and the odd one the second: then each of
// their two loads of x asks for a whole sector, which they would otherwise ask for twice.
DEVICE uint4 exchange_halves(uint4 q, int lane) {
    bool is_odd = lane % 2 == 1;
    uint32_t a = __shfl_xor_sync(FULL_WARP, is_odd ? q.x : q.z, 1);
    uint32_t b = __shfl_xor_sync(FULL_WARP, is_odd ? q.y : q.w, 1);
    return is_odd ? make_uint4(a, b, q.z, q.w) : make_uint4(q.x, q.y, a, b);
}

// Chunks in flight of each row.
template <int M>
constexpr int UNROLL = M <= 4 ? 2 : 1;

// Adds what a warp's next chunks of two rows contribute. IS_WHOLE: all of them have LEN values, and runs of x are aligned.
template <class F, int M, bool IS_WHOLE>
DEVICE void add_chunks(const uint4* const (&rows)[ROWS], int first, const Input<M>& x, float (&acc)[ROWS][M]) {
    constexpr int RUNS = F::LEN / RUN;
    const int chunks = (x.n_in + F::LEN - 1) / F::LEN, lane = threadIdx.x % WARP;
    const bool is_aligned = IS_WHOLE || x.n_in % RUN == 0;
    uint4 raw[UNROLL<M>][ROWS];
#pragma unroll
    for (int u = 0; u < UNROLL<M>; u++) {
        int chunk = first + WARP * u + lane;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            raw[u][r] = IS_WHOLE || chunk < chunks ? __ldg(rows[r] + chunk) : make_uint4(0, 0, 0, 0);
        }
    }
#pragma unroll
    for (int u = 0; u < UNROLL<M>; u++) {
        if (!IS_WHOLE && first + WARP * u >= chunks) continue;
        int chunk = first + WARP * u + lane;
        // Where the lane's first run of values is; a second one is a chunk further.
        int column = RUNS == 2 ? (chunk - lane % 2) * F::LEN + lane % 2 * RUN : chunk * F::LEN;
        float weights[ROWS][F::LEN];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (RUNS == 2) raw[u][r] = exchange_halves(raw[u][r], lane);
            F::values(raw[u][r], weights[r]);
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
            // Rows beyond the last repeat it; their sums are not stored.
            const float* values = x.values + (size_t)min(m, x.n_rows - 1) * x.n_in;
            float v[F::LEN];
#pragma unroll
            for (int run = 0; run < RUNS; run++) {
                load_run<IS_WHOLE>(values, column + run * F::LEN, x.n_in, is_aligned, v + RUN * run);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int j = 0; j < F::LEN; j++) acc[r][m] += weights[r][j] * v[j];
        }
    }
}

// Sums of two rows with M inputs. All lanes of a warp come here together.
template <class F, int M>
DEVICE void dot_rows(const uint4* const (&rows)[ROWS], const Input<M>& x, float (&acc)[ROWS][M]) {
    constexpr int STEP = WARP * UNROLL<M>;
    const int whole = x.n_in % RUN == 0 ? x.n_in / F::LEN / STEP * STEP : 0;
    int first = 0;
#pragma unroll 1
    for (; first < whole; first += STEP) add_chunks<F, M, true>(rows, first, x, acc);
#pragma unroll 1
    for (; first * F::LEN < x.n_in; first += STEP) add_chunks<F, M, false>(rows, first, x, acc);
    warp_sums(acc);
}

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
        int block = blockIdx.x;                                                                                            \
        Job job = pick_job({w0, y0, bias0, n0}, {w1, y1, bias1, n1}, {w2, y2, bias2, n2}, JOB_ROWS, block);                 \
        matvec<FORMAT, M>(job, block, {x, n_rows, n_in});                                                                  \
    }                                                                                                                      \
    KERNEL __launch_bounds__(256, 1)                                                                                         \
        matvec_gated_m##M(const uint8_t* gate, const uint8_t* up, int n_out, const float* gate_bias, const float* up_bias, \
                          int activation, float* y, int8_t* yq, Q8Scale* ys, int n_in, int n_rows, const float* x) {       \
        const Input<M> input = {x, n_rows, n_in};                                                                          \
        write_gated<M>({n_out, gate_bias, up_bias, activation, y, yq, ys}, n_rows,                                         \
                       GatedSums<FORMAT, M>{(const uint4*)gate, (const uint4*)up, input});                                 \
    }

MATVEC(1)
MATVEC(2)
MATVEC(4)
MATVEC(8)

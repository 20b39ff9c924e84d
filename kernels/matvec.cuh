// Quantized matrix times 1 to 8 rows: what the kernels of one format, of two, and gated ones share.
//
// A lane takes every 32nd group of its rows, 2 at a time: four 16-byte loads in flight. Sums are in one order whatever M, the
// number of rows of x that a kernel is compiled for, is. Weights as formats/planes.cuh says, x as q8.cuh does.
#pragma once
#include <type_traits>

#include "jobs.cuh"
#include "q8.cuh"

constexpr int ROWS = 2;      // rows of a warp that share the loads of x

// Whether products of few rows take a format's weights in strips (strips.cuh), and rows of a thread block then and else. The twin is
// `FewRows::block_rows` in `crates/cuda-exec/src/strips.rs`.
template <class F, class = void>
constexpr bool HAS_STRIPS = false;
template <class F>
constexpr bool HAS_STRIPS<F, std::void_t<decltype(F::STRIP_HIGH)>> = true;
// A tall matrix has more strips than a GPU has room for warps, and short rows: each of its warps takes several strips one after the other.
constexpr int STRIPS_OF_TALL = 4;  // at a time of a thread block, one for each warp
constexpr int TALL_ROWS = 32768, TALL_COLUMNS = 4096, TALL_LEAST_COLUMNS = 768;
constexpr int TALL_BLOCKS = 264;  // at most, of a tall matrix
template <class F, int M>
DEVICE bool is_tall_matrix(int n_out, int n_in) {
    return HAS_STRIPS<F> && M < 16 && n_out >= TALL_ROWS && n_in <= TALL_COLUMNS && n_in >= TALL_LEAST_COLUMNS;
}
// Strips that a warp has of a tall matrix, at most.
DEVICE int strips_of_warp(int n_out) {
    constexpr int ROWS_AT_ONCE = 16 * STRIPS_OF_TALL * TALL_BLOCKS;
    return (n_out + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
}
// Thread blocks of a matrix.
template <class F, int M>
DEVICE int blocks_of_matrix(int n_out, int n_in) {
    const int few = HAS_STRIPS<F> ? 16 : 8;
    const int rows = is_tall_matrix<F, M>(n_out, n_in) ? 16 * STRIPS_OF_TALL * strips_of_warp(n_out) : few;
    return (n_out + rows - 1) / rows;
}

template <int M>
struct Input {
    const int8_t* bytes;
    const Q8Scale* scales;
    int n_rows, n_in;

    // Rows beyond the last repeat it; their sums are not stored.
    __device__ __forceinline__ int row(int m) const { return min(m, n_rows - 1); }
};

// Adds what group g of each row contributes.
template <class F, int M, int R, class X>
DEVICE void add_group(const typename F::Raw (&raw)[R], int g, const X& x, float (&acc)[R][M]) {
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
        int row = x.row(m);
        const uint4* bytes = (const uint4*)q8_row(x.bytes, row, x.n_in);
        uint4 low = load_written(bytes + g), high = load_written(bytes + groups + g);
        uint2 record = load_written((const uint2*)q8_scales(x.scales, row, x.n_in) + g);
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

// Sums of R rows with M inputs over a lane's groups; X is an `Input`, or names its rows in another way. `base[r]` is the index of row
// r's first group in `f[r]`. WAITS: earlier launches are waited for once the first weights are on their way; all lanes of the warp do.
//
// Where a format has a few bytes for each superblock, the warp loads those of 16 superblocks of both rows at once, a lane one, and
// hands them out: loaded with their groups, every sector of them would be asked for four times.
template <class F, int M, int R, bool WAITS = false, class X>
DEVICE void dot_rows(const F (&f)[R], const size_t (&base)[R], const X& x, float (&acc)[R][M]) {
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
                if (WAITS && first == 0) await_earlier();
#pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    int g = first + WARP * u + lane;
                    if (g < groups) add_group<F, M, R, X>(raw[u], g, x, acc);
                }
            }
        }
    } else {
#pragma unroll 1
        for (int first = 0; first < groups; first += WARP * UNROLL) {
            typename F::Raw raw[UNROLL][R];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                int g = first + WARP * u + lane;
                if (g < groups) {
#pragma unroll
                    for (int r = 0; r < R; r++) raw[u][r] = f[r].load(base[r] + g);
                }
            }
            if (WAITS && first == 0) await_earlier();
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                int g = first + WARP * u + lane;
                if (g < groups) add_group<F, M, R, X>(raw[u], g, x, acc);
            }
        }
    }
    warp_sums(acc);
}

// Waits for earlier launches.
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
    dot_rows<F, M, ROWS, true>(both, base, x, acc);
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

// Wide products of Q4_K (wide.cuh), and x as they take it.
#include "formats/planes.cuh"
#include "wide.cuh"

// y[m][r] = sum of k of w[r][k] x[m][k]: w is Q4_K in planes, [n_out, n_in]; x tiles of `wide_tiles`; y f32 [n_rows, n_out]. n_in is a multiple of
// 256. `up` is a power of two that weights are multiplied by on the way. Grid: tiles of 256 rows of x, bands of 128 rows of w.
template <bool GATED>
DEVICE void multiply_rows(float* y, const uint8_t* w, const uint8_t* w_up, const uint8_t* x, int n_rows, int n_in, int n_out, float up) {
    extern __shared__ __align__(1024) uint8_t room[];
    __shared__ __align__(8) uint64_t barriers[2 * WIDE_STAGES];
    const uint32_t tiles = (shared_at(room) + 1023) & ~1023u, full = shared_at(barriers), empty = full + 8 * WIDE_STAGES;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, t = lane % 4;
    const int n_steps = n_in / WIDE_K;
    const uint8_t* from = x + (size_t)blockIdx.x * n_steps * WIDE_TILE;
    if (threadIdx.x == 0) {
        for (int i = 0; i < WIDE_STAGES; i++) {
            make_barrier(full + 8 * i, 1);
            make_barrier(empty + 8 * i, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int i = 0; i < WIDE_STAGES - 2 && i < n_steps; i++) copy_tile(tiles + i * WIDE_TILE, from + (size_t)i * WIDE_TILE, full + 8 * i);
    }
    __syncthreads();

    // Gated, the two rows of a lane are one row of both matrices.
    constexpr int EACH = GATED ? 8 : 16, APART = GATED ? 0 : 8;
    const int first = blockIdx.y * (8 * EACH) + warp * EACH + lane / 4;
    const size_t n_groups = (size_t)n_out * (n_in / 32);
    WideRows rows;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        size_t row = min(first + APART * r, n_out - 1);
        const uint8_t* matrix = GATED && r == 1 ? w_up : w;
        rows.quants[r] = (const uint4*)matrix + row * (n_in / 32);
        rows.headers[r] = (const uint4*)(matrix + plane_bytes(n_groups, 16)) + row * (n_in / 256);
    }
    rows.load(0, t);
    float d[128];
#pragma unroll
    for (int i = 0; i < 128; i++) d[i] = 0.0f;
    // Rows of 128 bytes, groups of eight of them 1024 bytes apart, swizzled by 128 bytes.
    const uint64_t plain = (uint64_t)1 << 62 | (uint64_t)(1024 / 16) << 32;
    int stage = 0, parity = 0, step = 0;
    for (int super = 0; super < n_in / 256; super++) {
        WideRows next = rows;
        if (super + 1 < n_in / 256) next.load(super + 1, t);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            __half2 scale[2], offset[2];
#pragma unroll
            for (int r = 0; r < 2; r++) rows.h[r].factors(half * 4 + t, up, scale[r], offset[r]);
#pragma unroll
            for (int part = 0; part < 2; part++) {
                // Two words of each row: four steps of 16.
                uint32_t a[4][4];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const uint4& q = rows.q[half][r];
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        uint32_t low[2], high[2];
                        halves_of(part == 0 ? (j == 0 ? q.x : q.y) : (j == 0 ? q.z : q.w), scale[r], offset[r], low, high);
                        a[2 * j][r] = low[0];
                        a[2 * j][r + 2] = low[1];
                        a[2 * j + 1][r] = high[0];
                        a[2 * j + 1][r + 2] = high[1];
                    }
                }
                await_phase(full + 8 * stage, parity);
                const uint64_t b = plain | (tiles + stage * WIDE_TILE) >> 4;
                fence_group();
#pragma unroll
                for (int i = 0; i < 4; i++) multiply_wide(d, a[i], b + 2 * i, 1);
                commit_group();
                // The step before is done: its stage is free for the warpgroup, and that of the step before it is filled again.
                wait_group<1>(d);
                __syncwarp();
                if (step > 0 && lane == 0) arrive_at(empty + 8 * (stage == 0 ? WIDE_STAGES - 1 : stage - 1));
                int ahead = step + WIDE_STAGES - 2;
                if (threadIdx.x == 0 && ahead < n_steps) {
                    int to = stage < 2 ? stage + WIDE_STAGES - 2 : stage - 2;
                    if (ahead >= WIDE_STAGES) await_phase(empty + 8 * to, (ahead / WIDE_STAGES - 1) & 1);
                    copy_tile(tiles + to * WIDE_TILE, from + (size_t)ahead * WIDE_TILE, full + 8 * to);
                }
                step++;
                if (++stage == WIDE_STAGES) {
                    stage = 0;
                    parity ^= 1;
                }
            }
        }
        rows = next;
    }
    wait_group<0>(d);
    const float down = 1.0f / up;
#pragma unroll
    for (int i = 0; i < 128; i++) {
        if (GATED && i / 2 % 2 == 1) continue;
        int m = blockIdx.x * WIDE_COLUMNS + i / 4 * 8 + 2 * t + i % 2, row = first + APART * (i / 2 % 2);
        float value = d[i] * down;
        if (GATED) value = value / (1.0f + __expf(-value)) * (d[(i + 2) % 128] * down);
        if (m < n_rows && row < n_out) y[(size_t)m * n_out + row] = value;
    }
}

extern "C" __global__ void __launch_bounds__(256, 1) matmul_wide(float* y, const uint8_t* w, const uint8_t* x, int n_rows, int n_in, int n_out, float up) {
    multiply_rows<false>(y, w, w, x, n_rows, n_in, n_out, up);
}
// The same for a gate and what it gates, both [n_out, n_in]: y = silu(gate x) * (up x). Grid: tiles of 256 rows of x, bands of 64 rows.
extern "C" __global__ void __launch_bounds__(256, 1) matmul_wide_gated(float* y, const uint8_t* w, const uint8_t* w_up, const uint8_t* x, int n_rows, int n_in, int n_out, float up) {
    multiply_rows<true>(y, w, w_up, x, n_rows, n_in, n_out, up);
}

// x f32 [n_rows, n_in] as f16 tiles of 256 rows and 64 of k, rows beyond the last zero. Grid: tiles of rows, steps of 64; 256 threads, one a row.
extern "C" __global__ void __launch_bounds__(256) wide_tiles(uint8_t* tiles, const float* x, int n_rows, int n_in) {
    int m = blockIdx.x * WIDE_COLUMNS + threadIdx.x, step = blockIdx.y;
    const float* row = x + (size_t)min(m, n_rows - 1) * n_in + step / 2 * 128;
    uint8_t* to = tiles + ((size_t)blockIdx.x * gridDim.y + step) * WIDE_TILE + threadIdx.x * 128;
#pragma unroll
    for (int chunk = 0; chunk < 8; chunk++) {
        // Eight of k: half `chunk % 2` of a product of 16, of which each pair is of another group of 32.
        int s = step % 2 * 4 + chunk / 2, begin = 16 * (s & 1) + 4 * (s / 2) + chunk % 2;
        uint32_t words[4];
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const float* group = row + 32 * t + begin;
            __half2 pair = m < n_rows ? __floats2half2_rn(group[0], group[2]) : __half2half2(__half(0.0f));
            words[t] = *(uint32_t*)&pair;
        }
        *(uint4*)(to + (chunk ^ threadIdx.x % 8) * 16) = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// Products of quantized matrices with many rows of x on Hopper: matrix operations of warpgroups (warpgroups.cuh), sm_90a only. Kernels and grids:
// matmul_wide.cu. K-quants that come in strips are unpacked here, other formats in wide_groups.cuh.
//
// A thread block multiplies 128 rows of a matrix (64 of a gate and the same 64 of up where gated), 64 for each of its two warpgroups, by 16, 32, 64, 128 or
// 256 rows of x. Weights become f16 in registers, as operand A: a lane has the 16 bytes of a group of 32 of each of its two rows, and which k each weight
// counts as is free, since `wide_tiles` writes x in the same order. So weights pass no shared memory. They are loaded BUFFERS halves of a superblock
// ahead. x is operand B: tiles of 64 rows and 64 of k come by bulk copies, STAGES - 2 halves of a superblock ahead. A barrier of each stage says that it
// is full, another that both warpgroups have read it.
//
// A weight is 1024 times d * scale * q - dmin * minimum: both factors are rounded to f16, and so is the result (2^-11 each). No factor is below the
// normal range of f16, since d is 2^-24 at least. None is above its largest number where a matrix fits, which the host asks once when it loads the
// matrix: 0 <= dmin <= 1, and 0 <= d <= 0.0666 (Q4_K), 0.0322 (Q5_K) or |d| <= 0.0156 (Q6_K) in all superblocks: 1024 d times the largest scale (63, 63, 128)
// and number (15, 31, 32) is below 65504, and what a minimum takes away is too. A matrix that does not fit takes other products.
// x is f16 over a power of two of the whole row (`wide_tiles`), so that no row is beyond f16.
//
// Sums are f32 over all of k. Bits of a row depend on nothing but the row and how its band is split: parts are added in the order of their places.
#pragma once
#include "bits.cuh"
#include "early.cuh"
#include "formats/planes.cuh"
#include "gated.cuh"
#include "jobs.cuh"
#include "matvec.cuh"
#include "warpgroups.cuh"
#include "wide_groups.cuh"
#include "wide_rows.cuh"

constexpr int WIDE_THREADS = 256, WIDE_HEIGHT = 128, WIDE_WARPS = WIDE_THREADS / WARP;

// N rows of x.
template <int N>
struct WideShape {
    // A stage has 128 columns.
    static constexpr int STAGES = N == 256 ? 3 : N == 128 ? 4 : 6;
    static constexpr int STAGE = N * 256, SHARED_BYTES = STAGES * STAGE + 1024;
    static constexpr int BLOCKS = N <= 64 ? 2 : 1;  // of a multiprocessor
    static constexpr int TILE_ROWS = N < WIDE_TILE_ROWS ? N : WIDE_TILE_ROWS;  // of a tile of x
};

// What a lane has of half a superblock in its two rows: group t of four.
template <int HIGH_BYTES>
struct WideHalf {
    uint4 q[2];
    uint2 high[2];  // the second word in Q6_K only
    uint32_t scales[2];  // in Q6_K only
};
// The same of a whole superblock: the header, or d alone.
struct WideTail {
    uint4 header[2];
};

// Weights of a format that comes in strips.
template <class F, bool GATED>
struct StripWeights {
    static constexpr int HIGH_BYTES = F::STRIP_HIGH;
    static constexpr bool HAS_HALVES = F::SUB == 16;
    static constexpr int BUFFERS_OF_FEW = HIGH_BYTES < 8 ? 4 : 2;  // by 16 rows of x: as many halves as there are registers for
    using Half = WideHalf<HIGH_BYTES>;
    using Tail = WideTail;

    const uint8_t *w, *up;
    size_t high, tails, supers;  // where planes begin
    uint32_t groups[2];          // of a lane's rows the first

    // `row_of(r)` is a row of the lane that is there.
    template <class RowOf>
    __device__ __forceinline__ StripWeights(const uint8_t* w, const uint8_t* up, int n_out, int n_in, const RowOf& row_of) : w(w), up(up) {
        const size_t n_groups = (size_t)n_out * (n_in / 32);
        high = plane_bytes(n_groups, 16);
        tails = high + (HIGH_BYTES > 0 ? plane_bytes(n_groups, HIGH_BYTES) : 0);
        supers = tails + plane_bytes(n_groups, 2);
#pragma unroll
        for (int r = 0; r < 2; r++) groups[r] = row_of(r) * (n_in / 32);
    }
    __device__ __forceinline__ const uint8_t* matrix_of(int r) const { return GATED && r == 1 ? up : w; }

    // Half `half` of all halves of a row.
    __device__ __forceinline__ void load(Half& to, int half) const {
        const int t = threadIdx.x % 4;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint8_t* matrix = matrix_of(r);
            const uint32_t group = groups[r] + half * 4 + t;
            to.q[r] = __ldg((const uint4*)matrix + group);
            if constexpr (HIGH_BYTES == 4) to.high[r].x = __ldg((const uint32_t*)(matrix + high) + group);
            if constexpr (HIGH_BYTES == 8) to.high[r] = __ldg((const uint2*)(matrix + high) + group);
            if constexpr (HAS_HALVES) to.scales[r] = __ldg((const uint16_t*)(matrix + tails) + group);
        }
    }
    __device__ __forceinline__ void load_tail(WideTail& to, int super) const {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t at = groups[r] / 8 + super;
            if constexpr (HAS_HALVES)
                to.header[r].x = __ldg((const uint16_t*)(matrix_of(r) + supers) + at);
            else
                to.header[r] = __ldg((const uint4*)(matrix_of(r) + tails) + at);
        }
    }

    // What a lane multiplies the numbers of a group by, of the first and the last 16, and adds.
    struct Factors {
        __half2 scale[2][2], offset[2];

        // All in f16: d is so small that 1024 d is exact, and so are scales and minima, as bits behind 1024.
        __device__ __forceinline__ Factors(const Half& half, const WideTail& tail, int which) {
            const int t = threadIdx.x % 4;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint4 header = tail.header[r];
                if constexpr (HAS_HALVES) {
                    const uint32_t bits = __byte_perm(half.scales[r] ^ 0x8080, 0x64646464, 0x4140);
                    const __half2 times = __hmul2(pair_of(__byte_perm(header.x, 0, 0x1010)), pair_of(0x64006400));
                    const __half2 both = __hmul2(__hsub2(pair_of(bits), pair_of(0x64806480)), times);
                    scale[r][0] = __low2half2(both);
                    scale[r][1] = __high2half2(both);
                } else {
                    // The scale in the lower half of a word, the minimum in the upper; 4 bits of those of the last groups are in a word of their own.
                    const uint32_t place = 0x4400 + 0x1111 * t, six = __byte_perm(header.y, header.z, place);
                    const uint32_t bits = which == 0 ? and_or(six, 0x003f003f, 0x64006400)
                                                     : and_or(__byte_perm(header.w, header.w >> 4, place), 0x000f000f, and_or(six >> 2, 0x00300030, 0x64006400));
                    const __half2 times = __hmul2(pair_of(header.x), pair_of(0xe4006400));
                    const __half2 both = __hmul2(__hsub2(pair_of(bits), pair_of(0x64006400)), times);
                    scale[r][0] = scale[r][1] = __low2half2(both);
                    offset[r] = __high2half2(both);
                }
            }
        }
    };

    // Word `j` of a row's group as f16 pairs: numbers of even place and of odd place, `low` of the first 16.
    static __device__ __forceinline__ void unpack(const Half& half, const Factors& factors, int r, int j, uint32_t (&low)[2], uint32_t (&last)[2]) {
        const uint32_t word = j == 0 ? half.q[r].x : j == 1 ? half.q[r].y : j == 2 ? half.q[r].z : half.q[r].w;
        const __half2 bias = pair_of(HAS_HALVES ? 0x64206420 : 0x64006400);  // 1024, and 32 that numbers of Q6_K are too large
        if constexpr (HIGH_BYTES == 0) {
            const __half2 sixteenth = pair_of(0x2c002c00), less = pair_of(0xd400d400);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t bits = word >> 8 * i;
                const __half2 q = __hsub2(pair_of(and_or(bits, 0x000f000f, 0x64006400)), bias);
                // 1024 + 16 q, over 16 and less 64.
                const __half2 p = __hfma2(pair_of(and_or(bits, 0x00f000f0, 0x64006400)), sixteenth, less);
                low[i] = bits_of(__hfma2(q, factors.scale[r][0], factors.offset[r]));
                last[i] = bits_of(__hfma2(p, factors.scale[r][0], factors.offset[r]));
            }
        } else {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t upper;
                if constexpr (HIGH_BYTES == 8) {
                    const uint32_t bits = h == 0 ? half.high[r].x : half.high[r].y;
                    upper = j <= 2 ? bits << (4 - 2 * j) : bits >> 2;
                } else {
                    const int bit = 4 * h + j;
                    upper = bit <= 4 ? half.high[r].x << (4 - bit) : half.high[r].x >> (bit - 4);
                }
                const uint32_t all = choose(0x0f0f0f0f, word >> 4 * h, upper);
                constexpr uint32_t MASK = HIGH_BYTES == 8 ? 0x003f003f : 0x001f001f;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const __half2 q = __hsub2(pair_of(and_or(all >> 8 * i, MASK, 0x64006400)), bias);
                    const __half2 weight = HAS_HALVES ? __hmul2(q, factors.scale[r][h]) : __hfma2(q, factors.scale[r][h], factors.offset[r]);
                    (h == 0 ? low : last)[i] = bits_of(weight);
                }
            }
        }
    }
};

template <class F, int N, bool GATED>
struct Wide : std::conditional_t<HAS_STRIPS<F>, StripWeights<F, GATED>, GroupWeights<F, GATED>> {
    using Weights = std::conditional_t<HAS_STRIPS<F>, StripWeights<F, GATED>, GroupWeights<F, GATED>>;
    using Half = typename Weights::Half;
    using Tail = typename Weights::Tail;
    using Factors = typename Weights::Factors;
    using Shape = WideShape<N>;
    static constexpr int SUMS = N / 2, STAGES = Shape::STAGES, BUFFERS = N == 128 ? 4 : N == 16 ? Weights::BUFFERS_OF_FEW : 2;

    // Gated, the two rows of a lane are one row of both matrices; rows beyond the last repeat it.
    static constexpr int EACH = GATED ? 8 : 16, APART = GATED ? 0 : 8;
    static __device__ __forceinline__ int row_of_lane() {
        const int thread = asked_again(threadIdx.x);
        return thread / WARP * EACH + thread % WARP / 4;
    }

    __device__ __forceinline__ Wide(const uint8_t* w, const uint8_t* up, int n_out, int n_in, int first)
        : Weights(w, up, n_out, n_in, [&](int r) { return min(first + row_of_lane() + APART * r, n_out - 1); }) {}

    // Adds up superblocks [begin, end) of the N rows of x from row `first_row` on, which has `n_tiles` tiles.
    __device__ __forceinline__ void sum(float (&d)[SUMS], const uint8_t* x, int first_row, int n_tiles, int n_in, int begin, int end) const {
        extern __shared__ __align__(1024) uint8_t wide_room[];
        __shared__ __align__(8) uint64_t barriers[2 * STAGES];
        const uint32_t stages = (shared_at(wide_room) + 1023) & ~1023u, full = shared_at(barriers), empty = full + 8 * STAGES;
        const int n_halves = (end - begin) * 2, lane = threadIdx.x % WARP;
        const int first_tile = first_row / WIDE_TILE_ROWS;
        const uint8_t* from_x = x + (size_t)begin * (4 * WIDE_TILE) + first_row % WIDE_TILE_ROWS * 128;
        auto copy = [&](int stage, int half) {
            constexpr int BYTES = Shape::TILE_ROWS * 128;
            arrive_expecting(full + 8 * stage, Shape::STAGE);
#pragma unroll
            for (int i = 0; i < N / Shape::TILE_ROWS; i++) {
                const uint8_t* from = from_x + ((size_t)min(first_tile + i, n_tiles - 1) * (n_in / WIDE_K) + 2 * half) * WIDE_TILE;
                const uint32_t to = stages + stage * Shape::STAGE + i * WIDE_TILE;
                if (N == WIDE_TILE_ROWS) {
                    copy_bulk<2 * WIDE_TILE>(to, from, full + 8 * stage);
                } else {
                    copy_bulk<BYTES>(to, from, full + 8 * stage);
                    copy_bulk<BYTES>(to + N * 128, from + WIDE_TILE, full + 8 * stage);
                }
            }
        };
        Half halves[BUFFERS];
        Tail heads[BUFFERS / 2];
        const int last = 2 * end;
#pragma unroll
        for (int b = 0; b < BUFFERS; b++) {
            const int half = min(2 * begin + b, last - 1);
            this->load(halves[b], half);
            if (b % 2 == 0) this->load_tail(heads[b / 2], half / 2);
        }
        await_earlier();
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++) {
                make_barrier(full + 8 * i, 1);
                make_barrier(empty + 8 * i, WIDE_WARPS);
            }
            show_barriers();
            for (int i = 0; i < STAGES - 2 && i < n_halves; i++) copy(i, i);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < SUMS; i++) d[i] = 0.0f;
        int stage = 0, parity = 0, done = 0;
        for (int from = 2 * begin; from < last; from += BUFFERS) {
#pragma unroll
            for (int b = 0; b < BUFFERS; b++) {
                if (BUFFERS > 2 && b % 2 == 0 && from + b >= last) break;
                const Factors factors(halves[b], heads[b / 2], b % 2);
                if (b % 2 == 1 && from + b + BUFFERS < last) this->load_tail(heads[b / 2], (from + b + BUFFERS) / 2);
#pragma unroll
                for (int part = 0; part < 2; part++) {
                    // Two words of each row: four products of 16 of k.
                    uint32_t a[4][4];
#pragma unroll
                    for (int r = 0; r < 2; r++) {
#pragma unroll
                        for (int j = 0; j < 2; j++) {
                            uint32_t low[2], high[2];
                            Weights::unpack(halves[b], factors, r, 2 * part + j, low, high);
                            a[2 * j][r] = low[0];
                            a[2 * j][r + 2] = low[1];
                            a[2 * j + 1][r] = high[0];
                            a[2 * j + 1][r + 2] = high[1];
                        }
                    }
                    if (part == 1 && from + b + BUFFERS < last) this->load(halves[b], from + b + BUFFERS);
                    if (part == 0) await_phase(full + 8 * stage, parity);
                    const uint32_t matrix = (stages + stage * Shape::STAGE) / 16 + part * (N * 8);
                    fence_group();
#pragma unroll
                    for (int i = 0; i < 4; i++) multiply_wide(d, a[i], group_matrix(matrix + 2 * i));
                    commit_group();
                    wait_group<1>(d);
                    if (part == 1) continue;
                    // The half before is done: its stage is free for the warp, and that of the half before it is filled again.
                    __syncwarp();
                    if (done > 0 && lane == 0) arrive_at(empty + 8 * (stage == 0 ? STAGES - 1 : stage - 1));
                    const int ahead = done + STAGES - 2;
                    if (threadIdx.x == 0 && ahead < n_halves) {
                        const int to = stage < 2 ? stage + STAGES - 2 : stage - 2;
                        if (ahead >= STAGES) await_phase(empty + 8 * to, (ahead / STAGES - 1) & 1);
                        copy(to, ahead);
                    }
                    __syncwarp();
                }
                done++;
                if (++stage == STAGES) {
                    stage = 0;
                    parity ^= 1;
                }
            }
        }
        wait_group<0>(d);
    }
};

// Which band and which tile of N rows of x a thread block has. Two neighbouring bands take turns, so that neighbours read the same x from L2.
struct WidePlace {
    int band, tile;

    __device__ __forceinline__ WidePlace() {
        const int n_tiles = gridDim.x, y = asked_again(blockIdx.y), pair = y / 2, n = min(2, (int)gridDim.y - 2 * pair);
        const int place = y % 2 * n_tiles + asked_again(blockIdx.x);
        band = 2 * pair + place % n;
        tile = place / n;
    }
};

// Where thread blocks share a band: as `add_parts` of bands.cuh. `parts` is [tiles of the grid][splits][SUMS / 4][256] f32 by 4; counters are 0 before and after.
template <int SUMS>
DEVICE bool add_wide_parts(float4* parts, uint32_t* counters, float (&d)[SUMS]) {
    constexpr int FOURS = SUMS / 4, AT_ONCE = FOURS < 8 ? FOURS : 8;
    const int tile = blockIdx.y * gridDim.x + blockIdx.x, n_splits = gridDim.z;
    parts += (size_t)tile * n_splits * (FOURS * WIDE_THREADS) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < FOURS; i++)
        parts[(blockIdx.z * FOURS + i) * WIDE_THREADS] = make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]);
    // Its reads are ordered after everyone's writes by fence and counter.
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(counters + tile, 1) == n_splits - 1;
        if (is_last) counters[tile] = 0;
        __threadfence();
    }
    __syncthreads();
    if (!is_last) return false;
#pragma unroll
    for (int i = 0; i < SUMS; i++) d[i] = 0.0f;
#pragma unroll 1
    for (int s = 0; s < n_splits; s++) {
#pragma unroll
        for (int before = 0; before < FOURS; before += AT_ONCE) {
            float4 x[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) x[i] = parts[(s * FOURS + before + i) * WIDE_THREADS];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                d[4 * (before + i)] += x[i].x;
                d[4 * (before + i) + 1] += x[i].y;
                d[4 * (before + i) + 2] += x[i].z;
                d[4 * (before + i) + 3] += x[i].w;
            }
        }
    }
    return true;
}

// What rows of x and weights were made larger by, the other way round.
DEVICE float2 wide_shrink(const float* powers, int m) {
    const float2 two = *(const float2*)(powers + m);
    return make_float2(two.x * (1.0f / WIDE_TIMES), two.y * (1.0f / WIDE_TIMES));
}

// A thread block's share of up to three matrices: `pick(band)` gives its job and makes `band` relative to it; it is asked again behind the sums.
template <class F, int N, class Pick>
DEVICE void multiply_wide_band(const Pick& pick, int n_in, int n_rows, const uint8_t* x, const float* powers, float4* parts, uint32_t* counters, int each) {
    const int n_tiles = (n_rows + WIDE_TILE_ROWS - 1) / WIDE_TILE_ROWS;
    float d[N / 2];
    {
        WidePlace place;
        const Job job = pick(place.band);
        const int begin = blockIdx.z * each, end = min(begin + each, n_in / 256);
        const Wide<F, N, false> wide(job.w, job.w, job.n_out, n_in, place.band * WIDE_HEIGHT);
        wide.sum(d, x, place.tile * N, n_tiles, n_in, begin, end);
    }
    if (gridDim.z > 1 && !add_wide_parts(parts, counters, d)) return;
    WidePlace place;
    const Job job = pick(place.band);
    const int tile = place.tile, row = place.band * WIDE_HEIGHT + Wide<F, N, false>::row_of_lane(), t = threadIdx.x % 4;
    float bias[2];
#pragma unroll
    for (int r = 0; r < 2; r++) bias[r] = job.bias && row + 8 * r < job.n_out ? job.bias[row + 8 * r] : 0.0f;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        const int m = tile * N + 8 * n + 2 * t;
        if (m >= n_rows) break;
        const float2 shrink = wide_shrink(powers, m);
        float* y = job.y + (size_t)m * job.n_out + row;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (m + i % 2 < n_rows && row + i / 2 * 8 < job.n_out) y[(size_t)(i % 2) * job.n_out + i / 2 * 8] = fmaf(d[4 * n + i], i % 2 ? shrink.y : shrink.x, bias[i / 2]);
    }
}

// What a thread block has of a gate and up: 64 rows of both.
template <class F, int N>
DEVICE void multiply_wide_gated(const uint8_t* gate, const uint8_t* up, const Gated& out, int n_in, int n_rows, const uint8_t* x, const float* powers) {
    constexpr int ROWS = WIDE_HEIGHT / 2, ROW = ROWS + 4;
    const WidePlace place;
    const int n_tiles = (n_rows + WIDE_TILE_ROWS - 1) / WIDE_TILE_ROWS, first = place.band * ROWS, t = threadIdx.x % 4;
    float d[N / 2];
    {
        const Wide<F, N, true> wide(gate, up, out.n_out, n_in, first);
        wide.sum(d, x, place.tile * N, n_tiles, n_in, 0, n_in / 256);
    }
    const int local = Wide<F, N, true>::row_of_lane(), here = min(N, n_rows - place.tile * N);
    extern __shared__ __align__(1024) uint8_t wide_room[];
    float* tile = (float*)wide_room;
    float* ups = tile + N * ROW;
    static_assert(2 * N * ROW * 4 <= WideShape<N>::SHARED_BYTES, "both tiles fit");
    const bool is_plain = out.activation == SILU && !out.gate_bias && !out.up_bias;
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        // Powers are there for all rows of a tile of 64.
        const int m = 8 * n + 2 * t;
        const float2 shrink = wide_shrink(powers, min(place.tile * N + m, n_tiles * WIDE_TILE_ROWS - 2));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float times = i ? shrink.y : shrink.x, left = d[4 * n + i] * times, right = d[4 * n + 2 + i] * times;
            tile[(m + i) * ROW + local] = is_plain ? activate(SILU, left) * right : left;
            if (!is_plain) ups[(m + i) * ROW + local] = right;
        }
    }
    __syncthreads();
    if (!is_plain) {
        const int row = min(first + (int)threadIdx.x % ROWS, out.n_out - 1);
        const float gate_add = out.gate_bias ? out.gate_bias[row] : 0.0f, up_add = out.up_bias ? out.up_bias[row] : 0.0f;
#pragma unroll 1
        for (int m = threadIdx.x / ROWS; m < here; m += WIDE_THREADS / ROWS) {
            const int at = m * ROW + threadIdx.x % ROWS;
            tile[at] = activate(out.activation, tile[at] + gate_add) * other_factor(out.activation, ups[at] + up_add);
        }
        __syncthreads();
    }
    store_gated_tile<ROWS, ROW, WIDE_WARPS>(out, tile, first, place.tile * N, here);
}

// Bands of K-quants times many rows of x in f16 on tensor cores, whose sums run over a whole superblock before they are scaled.
// A thread block has 64 rows of x, more rows are further thread blocks; the kernels and their grids are in matmul_halves.cu.
//
// A band is 128 rows of a matrix (64 of a gate and the same 64 of up where gated). Its thread block has four warps of 32 rows each, as two strips of
// 16. In a step of 128 columns a warp turns weights into fragments of mma m16n8k16, scale times weight as f16: exact for Q4_K and Q5_K, rounded to
// 11 bits for Q6_K. x comes as half_rows.cuh has it: f16 over a power of two, which each row and superblock has of its own.
//
// For each superblock d and the power of two multiply the sums, and minima (a product m16n8k16 of their own, with the sums of x in two parts) are
// taken away: three instructions a sum and superblock, where sums in integers take two for each of its groups.
//
// Weights and x are copied STAGES - 1 steps ahead. Bits of a row do not depend on how many rows there are, nor on the kernel, but for bands that are
// split: their parts are added in the order of their places, and how many there are depends on the number of rows.
// Shared: the constants of `HalfBand`, whose twin is `crates/cuda-exec/src/half_bands.rs`. Alignment: 16 bytes. No bank conflicts.
#pragma once
#include "bands.cuh"
#include "half_rows.cuh"

constexpr int HALF_BAND_THREADS = BAND_WARPS * WARP, HALF_BAND_HEIGHT = 2 * BAND_WARPS * STRIP;

DEVICE void multiply_halves(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE uint32_t halves_times(uint32_t a, uint32_t b) {
    uint32_t product;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}
DEVICE uint32_t halves_less(uint32_t a, uint32_t b) {
    uint32_t difference;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
    return difference;
}
DEVICE uint32_t halves_fma(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t sum;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}
// Ends a basic block. The assembler puts all products of a block in a row and the rest behind them, so that two warps that do so in step wait for
// the tensor cores together, and then leave them idle together. `number` is not negative.
DEVICE void end_block(int number) { asm volatile("{ .reg .pred never; setp.lt.s32 never, %0, 0; @never exit; }" ::"r"(number)); }
template <int K>
struct Index {
    static constexpr int number = K;
};

// TILES of 8 rows of x.
template <class F, int TILES, bool GATED>
struct HalfBand {
    static constexpr int HIGH_BYTES = F::STRIP_HIGH;
    static constexpr bool HAS_HALVES = F::SUB == 16;
    static constexpr int COLUMNS = 8 * TILES, STRIPS = 2 * BAND_WARPS;
    static constexpr int GROUPS = 4;  // of a step
    static constexpr int STRIP_BYTES = GROUPS * STRIP * (16 + HIGH_BYTES), WEIGHTS = STRIPS * STRIP_BYTES;
    // Behind the weights of a step its part of x: of each group four chunks of 16 bytes a row.
    static constexpr int STAGE = WEIGHTS + COLUMNS * GROUPS * 64;
    static constexpr int TAILS_BYTES = STRIPS * TAIL_BYTES, N_TAILS = 2;
    // What is made of the tails of a superblock: f16 of the scales of each row, and behind them of its minima; or f32 of its d.
    static constexpr int SCALES_ROW = HAS_HALVES ? 32 : 16, MINIMA = HALF_BAND_HEIGHT * SCALES_ROW, FACTORS_BYTES = MINIMA + (HAS_HALVES ? HALF_BAND_HEIGHT * 4 : MINIMA);
    // Of each superblock of x the powers of two, and the sums of groups, in pairs of neighbours the values and the rests.
    static constexpr int SUMS = COLUMNS * 4, RECORDS_BYTES = SUMS + (HAS_HALVES ? 0 : COLUMNS * 32), N_RECORDS = 3;
    static constexpr int FIXED = N_TAILS * TAILS_BYTES + 2 * FACTORS_BYTES + N_RECORDS * RECORDS_BYTES;
    static constexpr int ROOM_FOR = (BAND_SHARED - FIXED) / STAGE, STAGES = ROOM_FOR < 5 ? ROOM_FOR : 5;
    static constexpr int TAILS = STAGES * STAGE, FACTORS = TAILS + N_TAILS * TAILS_BYTES, RECORDS = FACTORS + 2 * FACTORS_BYTES;
    static constexpr int SHARED_BYTES = RECORDS + N_RECORDS * RECORDS_BYTES;
    static_assert(STAGES >= 2, "a band fits");
    static_assert(STAGES <= 4, "what is copied ahead replaces no tail and no record that is still read");
    const uint8_t *w, *up;
    const HalfRows x;
    int n_in, n_out, first;

    __device__ __forceinline__ HalfBand(const BandJob& job, const HalfRows& x, int n_in)
        : w(job.w), up(job.up), x(x), n_in(n_in), n_out(job.n_out), first(job.first) {
    }

    // The place of a thread, for what is done once a step. Where groups have two scales, registers are too few for what the compiler would keep of it.
    static __device__ __forceinline__ uint32_t thread_again() { return HAS_HALVES ? asked_again(threadIdx.x) : threadIdx.x; }
    __device__ __forceinline__ int n_supers() const { return n_in / 256; }
    // Where planes of a matrix begin. Computed again each time, since there are not enough registers to keep it.
    __device__ __forceinline__ size_t n_groups() const { return (size_t)asked_again(n_out) * (n_in / 32); }
    __device__ __forceinline__ size_t high() const { return plane_bytes(n_groups(), 16); }
    __device__ __forceinline__ size_t tails() const {
        const size_t n = n_groups();
        return plane_bytes(n, 16) + (HIGH_BYTES > 0 ? plane_bytes(n, HIGH_BYTES) : 0);
    }
    __device__ __forceinline__ size_t supers() const { return tails() + plane_bytes(n_groups(), 2); }

    __device__ __forceinline__ const uint8_t* matrix_of(int strip) const { return GATED && strip % 2 ? up : w; }
    // The row of the matrix that is row `row` of strip `strip`; rows beyond the last repeat it.
    __device__ __forceinline__ uint32_t row_of(int strip, int row) const {
        return (uint32_t)min(first + (GATED ? strip / 2 : strip) * STRIP + row, n_out - 1);
    }
    // Where a row of a plane begins. Volatile: computed again each time, since there are not enough registers to keep it.
    static __device__ __forceinline__ const uint8_t* row_at(const uint8_t* base, uint32_t row, uint32_t row_bytes) {
        const uint8_t* at;
        asm volatile("mad.wide.u32 %0, %1, %2, %3;" : "=l"(at) : "r"(row), "r"(row_bytes), "l"(base));
        return at;
    }
    static __device__ __forceinline__ int tail_at(int row, int which) { return (row * 2 + (which ^ (row >> 2 & 1))) * 16; }

    // Begins to copy the weights of step `step` into the stage at `stage`.
    __device__ __forceinline__ void copy_weights(uint32_t stage, int step) const {
        const uint32_t thread = thread_again();
        {
            const int group = thread % 4, row = thread / 4 % STRIP, strip = thread / (4 * STRIP);
            const uint8_t* from = matrix_of(strip) + step * 64 + group * 16;
            const uint32_t to = stage + strip * STRIP_BYTES + group * 256 + (row ^ 2 * group) * 16;
            copy_strips<0>(to, from, strip, row);
        }
        if constexpr (HIGH_BYTES > 0) {
            constexpr int CHUNKS = HIGH_BYTES / 4, AT_ONCE = STRIPS / CHUNKS;
#pragma unroll
            for (int before = 0; before < STRIPS; before += AT_ONCE) {
                const int chunk = thread % CHUNKS, row = thread / CHUNKS % STRIP, strip = before + thread / (STRIP * CHUNKS);
                const uint8_t* from = matrix_of(strip) + high() + step * (4 * HIGH_BYTES) + chunk * 16;
                copy_once<GROUPS * 256>(stage + strip * STRIP_BYTES + chunk * 256 + (row ^ 4 * chunk) * 16,
                                        row_at(from, row_of(strip, row), n_in / 32 * HIGH_BYTES));
            }
        }
    }
    template <int S>
    __device__ __forceinline__ void copy_strips(uint32_t to, const uint8_t* from, int strip, int row) const {
        constexpr int AT_ONCE = HALF_BAND_THREADS / (4 * STRIP);
        copy_once<S * STRIP_BYTES>(to, row_at(from, row_of(S + strip, row), n_in / 2));
        if constexpr (S + AT_ONCE < STRIPS) copy_strips<S + AT_ONCE>(to, from, strip, row);
    }
    // Begins to copy what the rows have once for superblock `super`, which is even, and for the next.
    __device__ __forceinline__ void copy_tails(uint32_t room, int super) const {
        const uint32_t thread = thread_again();
#pragma unroll
        for (int before = 0; before < STRIPS; before += BAND_WARPS) {
            const int strip = before + thread / 32, row = thread / 2 % STRIP, which = thread % 2;
            if (super + which < n_supers())
                copy_once<0>(room + TAILS + super / 2 % N_TAILS * TAILS_BYTES + strip * TAIL_BYTES + tail_at(row, which),
                             row_at(matrix_of(strip) + tails() + (super + which) * 16, row_of(strip, row), n_supers() * 16));
        }
    }
    // Makes f16 of the scales and minima of a superblock, a row each thread.
    __device__ __forceinline__ void make_factors(int super) const {
        const uint32_t row = thread_again();
        const uint4 tail = *(const uint4*)(strip_room + TAILS + super / 2 % N_TAILS * TAILS_BYTES + row / STRIP * TAIL_BYTES + tail_at(row % STRIP, super % 2));
        uint4* to = (uint4*)(strip_room + FACTORS + super % 2 * FACTORS_BYTES + row * SCALES_ROW);
        if constexpr (HAS_HALVES) {
            const int swap = row >> 2 & 1;
            // Quarters of scales.
            const uint32_t words[4] = {tail.x ^ 0x80808080, tail.y ^ 0x80808080, tail.z ^ 0x80808080, tail.w ^ 0x80808080};
            to[swap] = halves_of_bytes(words[0], words[1], 0x64806480, 0x34003400);
            to[swap ^ 1] = halves_of_bytes(words[2], words[3], 0x64806480, 0x34003400);
        } else {
            // Weights will be bits of f16 below its normal range, whose unit is 2^-24; times 1024 times the scale the unit is 2^-14.
            to[0] = halves_of_bytes(tail.y & 0x3f3f3f3f, (tail.w & 0x0f0f0f0f) | (tail.y >> 2 & 0x30303030), 0x64006400, 0x64006400);
            to[MINIMA / 16] = halves_of_bytes(tail.z & 0x3f3f3f3f, (tail.w >> 4 & 0x0f0f0f0f) | (tail.z >> 2 & 0x30303030), 0x64006400, 0x3c003c00);
        }
    }
    // Eight bytes as f16 numbers, less what `less` has beyond 1024 and times `times`.
    static __device__ __forceinline__ uint4 halves_of_bytes(uint32_t first, uint32_t last, uint32_t less, uint32_t times) {
        uint4 made;
        made.x = halves_times(halves_less(__byte_perm(first, 0x64646464, 0x4140), less), times);
        made.y = halves_times(halves_less(__byte_perm(first, 0x64646464, 0x4342), less), times);
        made.z = halves_times(halves_less(__byte_perm(last, 0x64646464, 0x4140), less), times);
        made.w = halves_times(halves_less(__byte_perm(last, 0x64646464, 0x4342), less), times);
        return made;
    }

    // Begins to copy the part of x that step `step` is multiplied by, and at the first of a superblock what its rows have once.
    __device__ __forceinline__ void copy_x(uint32_t room, uint32_t stage, int step) const {
        const uint32_t thread = thread_again(), chunk = thread % 16, m = thread / 16;
        const uint8_t* from = x.halves + (size_t)m * (2 * n_in) + step * 256 + chunk * 16;
        copy_rows_of_x<0>(stage + WEIGHTS + (chunk * COLUMNS + (m ^ chunk % 8)) * 16, from);
        if (step % 2 == 0) {
            const uint32_t to = room + RECORDS + step / 2 % N_RECORDS * RECORDS_BYTES;
            if (!HAS_HALVES && thread < 2 * COLUMNS)
                copy_once<SUMS>(to + thread * 16, x.sums + (size_t)(thread / 2) * (n_in / 8) + step * 16 + thread % 2 * 16);
            if (thread < COLUMNS) copy_shared<4>(to + thread * 4, x.powers + ((size_t)thread * n_supers() + step / 2) * 4);
        }
    }
    template <int J>
    __device__ __forceinline__ void copy_rows_of_x(uint32_t to, const uint8_t* from) const {
        copy_once<128 * J>(to, from);
        if constexpr (J + 1 < TILES) copy_rows_of_x<J + 1>(to, from + 16 * n_in);
    }

    // Turns a word of a row's group into f16: numbers of even place in both halves, then of odd place.
    static __device__ __forceinline__ void unpack(uint32_t word, const uint8_t* upper, int group, int g, int t, const uint32_t (&scales)[2],
                                                  uint32_t (&even)[2], uint32_t (&odd)[2]) {
        if constexpr (HIGH_BYTES == 8) {
            uint2 bits = *(const uint2*)(upper + group / 2 * 256 + (g ^ group / 2 * 4) * 16 + group % 2 * 8);
            const uint32_t four_times[2] = {choose(0x3c3c3c3c, word << 2, __funnelshift_l(bits.x, bits.x, 6 - 2 * t)),
                                            choose(0x3c3c3c3c, word >> 2, __funnelshift_l(bits.y, bits.y, 6 - 2 * t))};
#pragma unroll
            for (int half = 0; half < 2; half++) {
                // Four times a weight, 1024 and 128 too large, by a quarter of the scale.
                const uint32_t less = halves_times(scales[half], 0xe480e480);
                even[half] = halves_fma(and_or(four_times[half], 0x00fc00fc, 0x64006400), scales[half], less);
                odd[half] = halves_fma(and_or(four_times[half] >> 8, 0x00fc00fc, 0x64006400), scales[half], less);
            }
        } else if constexpr (HIGH_BYTES == 4) {
            uint32_t bits = *(const uint32_t*)(upper + g * 16 + group * 4);
            const uint32_t both[2] = {and_or(bits << (4 - t), 0x10101010, word & 0x0f0f0f0f),
                                      and_or(bits >> t, 0x10101010, word >> 4 & 0x0f0f0f0f)};
#pragma unroll
            for (int half = 0; half < 2; half++) {
                even[half] = halves_times(both[half] & 0x00ff00ff, scales[half]);
                odd[half] = halves_times(both[half] >> 8 & 0x00ff00ff, scales[half]);
            }
        } else {
            even[0] = halves_times(word & 0x000f000f, scales[0]);
            even[1] = halves_times(word & 0x00f000f0, scales[1]);
            odd[0] = halves_times(word >> 8 & 0x000f000f, scales[0]);
            odd[1] = halves_times(word >> 8 & 0x00f000f0, scales[1]);
        }
    }
    // Fragments of a group's weights: numbers of even and of odd place, of both strips.
    struct Fragments {
        uint32_t even[2][4], odd[2][4];
    };
    static __device__ __forceinline__ void load_group(uint32_t (&q)[4], uint32_t stage, int group) {
        const uint32_t thread = threadIdx.x;
        const int lane = thread % WARP, warp = thread / WARP;
        load_words<0>(q, stage + (2 * warp + lane / 16) * STRIP_BYTES + group * 256 + ((lane / 8 % 2 * 8 + lane % 8) ^ 2 * group) * 16);
    }
    // Unpacks what a lane has of a row: row 8 r of strip s. `scales` are those of the groups of a step, in pairs.
    static __device__ __forceinline__ void unpack_row(Fragments& to, uint32_t word, const uint8_t* stage, const uint32_t (&scales)[2], int group, int s, int r) {
        const uint32_t thread = threadIdx.x;
        const int lane = thread % WARP, warp = thread / WARP, g = lane / 4, t = lane % 4;
        uint32_t scale[2], even[2], odd[2];
        if constexpr (HAS_HALVES) {
            scale[0] = __byte_perm(scales[group % 2], 0, 0x1010);
            scale[1] = __byte_perm(scales[group % 2], 0, 0x3232);
        } else {
            scale[0] = __byte_perm(scales[group / 2], 0, group % 2 ? 0x3232 : 0x1010);
            // Nibbles that are not shifted down are 16 times as large.
            scale[1] = HIGH_BYTES == 0 ? halves_times(scale[0], 0x2c002c00) : scale[0];
        }
        unpack(word, stage + (2 * warp + s) * STRIP_BYTES + GROUPS * 256 + r * 128, group, g, t, scale, even, odd);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            to.even[s][2 * half + r] = even[half];
            to.odd[s][2 * half + r] = odd[half];
        }
    }
    // Loads fragments of two tiles of x of a group.
    template <int TWO>
    static __device__ __forceinline__ void load_tiles(uint32_t (&b)[2][4], uint32_t x, int group) {
        const int lane = threadIdx.x % WARP;
        const uint32_t at = x + (4 * group * COLUMNS + lane / 8 * COLUMNS + (lane % 8 ^ lane / 8 ^ group % 2 * 4)) * 16;
        load_words<256 * TWO>(b[0], at);
        load_words<256 * TWO + 128>(b[1], at);
    }
    template <int N>
    static __device__ __forceinline__ void multiply_tiles(const uint32_t (&b)[2][4], const Fragments& a, float (&part)[2][TILES][4]) {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int s = 0; s < 2; s++) multiply_halves(part[s][2 * N + i], a.even[s], b[i][0], b[i][1]);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int s = 0; s < 2; s++) multiply_halves(part[s][2 * N + i], a.odd[s], b[i][2], b[i][3]);
    }

    // What a step needs besides its sums.
    struct Step {
        const uint8_t* stage;
        uint32_t stage_at, x;
        // Of four groups, or of two where groups have two scales.
        uint32_t scales[2][2][2];

        // Those of groups from 2 `half` on.
        __device__ __forceinline__ void load_scales(const uint8_t* factors, int half) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint2 two = *(const uint2*)(factors + 8 * i * SCALES_ROW + half * 8);
                scales[i / 2][i % 2][0] = two.x, scales[i / 2][i % 2][1] = two.y;
            }
        }
    };
    // Where the scales of a lane's first row begin for a step.
    static __device__ __forceinline__ const uint8_t* factors_of(int super, int step) {
        const uint32_t thread = threadIdx.x;
        const int lane = thread % WARP, warp = thread / WARP;
        return strip_room + FACTORS + super % 2 * FACTORS_BYTES + (2 * warp * STRIP + lane / 4) * SCALES_ROW +
               (HAS_HALVES ? (step ^ lane / 16) * 16 : step * 8);
    }
    // Parts of two tiles each; what they multiply is loaded one ahead, weights are unpacked a group ahead.
    static constexpr int PARTS = TILES / 2;
    template <int K, int STEP, class Add>
    __device__ __forceinline__ void multiply_part(Step& step, int super, Fragments& now, Fragments& next, uint32_t (&q)[4], uint32_t (&b)[2][4],
                                                  float (&part)[2][TILES][4], const Add& add) const {
        constexpr int GROUP = K / PARTS, PART = K % PARTS, EACH = 4 / PARTS;
        uint32_t next_b[2][4];
        if constexpr (K + 1 < GROUPS * PARTS) load_tiles<(K + 1) % PARTS>(next_b, step.x, (K + 1) / PARTS);
        if constexpr (GROUP + 1 < GROUPS) {
#pragma unroll
            for (int i = PART * EACH; i < (PART + 1) * EACH; i++) unpack_row(next, q[i], step.stage, step.scales[i / 2][i % 2], GROUP + 1, i / 2, i % 2);
            if (PART == PARTS - 1 && GROUP + 2 < GROUPS) load_group(q, step.stage_at, GROUP + 2);
            if (HAS_HALVES && PART == PARTS - 1 && GROUP == 0) step.load_scales(factors_of(super, STEP), 1);
        }
        multiply_tiles<PART>(b, now, part);
        if constexpr (STEP == 1 && GROUP == GROUPS - 1 && PART > 0) add(Index<PART - 1>{});
        end_block(n_in);
        if constexpr (K + 1 < GROUPS * PARTS) {
            if constexpr (PART == PARTS - 1)
                multiply_part<K + 1, STEP>(step, super, next, now, q, next_b, part, add);
            else
                multiply_part<K + 1, STEP>(step, super, now, next, q, next_b, part, add);
        }
    }
    // Adds the products of step STEP of superblock `super` to `part`; `add` takes two tiles of it at the last.
    template <int STEP, class Add>
    __device__ __forceinline__ void multiply(const uint8_t* stage, int super, float (&part)[2][TILES][4], const Add& add) const {
        Step step;
        step.stage = stage;
        step.stage_at = shared_at(stage);
        step.x = step.stage_at + WEIGHTS;
        Fragments now, next;
        uint32_t q[4], b[2][4];
        load_group(q, step.stage_at, 0);
        step.load_scales(factors_of(super, STEP), 0);
        load_tiles<0>(b, step.x, 0);
#pragma unroll
        for (int i = 0; i < 4; i++) unpack_row(now, q[i], stage, step.scales[i / 2][i % 2], 0, i / 2, i % 2);
        load_group(q, step.stage_at, 1);
        multiply_part<0, STEP>(step, super, now, next, q, b, part, add);
    }

    // The scale of a superblock where it is in a plane of its own, of a row each thread: loaded, and left in shared memory.
    __device__ __forceinline__ uint16_t load_super(int super) const {
        const uint32_t thread = thread_again(), strip = thread / STRIP, row = thread % STRIP;
        return __ldg((const uint16_t*)(matrix_of(strip) + supers()) + (size_t)row_of(strip, row) * n_supers() + super);
    }
    static __device__ __forceinline__ void leave_super(int super, uint16_t d) {
        *(float*)(strip_room + FACTORS + super % 2 * FACTORS_BYTES + MINIMA + threadIdx.x * 4) = half_at(d);
    }

    // What a lane's rows have for the sums of a superblock.
    struct Scales {
        float d[2][2], dmin[2][2];
        uint32_t minima[2][4];
    };
    __device__ __forceinline__ void load_scales(Scales& to, int super) const {
        const uint32_t thread = threadIdx.x;
        const int lane = thread % WARP, warp = thread / WARP, g = lane / 4, t = lane % 4;
        const uint8_t* tails_of = strip_room + TAILS + super / 2 % N_TAILS * TAILS_BYTES + 2 * warp * TAIL_BYTES;
        const int first = 2 * warp * STRIP + g;
        const uint8_t* more = strip_room + FACTORS + super % 2 * FACTORS_BYTES + MINIMA;
#pragma unroll
        for (int s = 0; s < 2; s++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if constexpr (HAS_HALVES) {
                    to.d[s][r] = *(const float*)(more + (first + 16 * s + 8 * r) * 4);
                } else {
                    const float2 both = half2_at(*(const uint32_t*)(tails_of + s * TAIL_BYTES + tail_at(g + 8 * r, super % 2)));
                    to.d[s][r] = both.x * 16384.0f;
                    to.dmin[s][r] = -both.y;
                    to.minima[s][r] = to.minima[s][2 + r] = *(const uint32_t*)(more + (first + 16 * s + 8 * r) * SCALES_ROW + t * 4);
                }
            }
        }
    }
    // Adds the sums of two tiles of superblock `super`, by their scales and powers of two and less minima.
    template <int TWO>
    __device__ __forceinline__ void add(Index<TWO>, const float (&part)[2][TILES][4], int super, const Scales& scales, float (&acc)[2][TILES][4]) const {
        const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        const uint8_t* records = strip_room + RECORDS + super % N_RECORDS * RECORDS_BYTES;
#pragma unroll
        for (int n = 2 * TWO; n < 2 * TWO + 2; n++) {
            const float2 both = *(const float2*)(records + (8 * n + 2 * t) * 4);
            const float power[2] = {both.x, both.y};
            uint2 sums;
            if constexpr (!HAS_HALVES) sums = *(const uint2*)(records + SUMS + (8 * n + g) * 32 + t * 8);
#pragma unroll
            for (int s = 0; s < 2; s++) {
                float less[4] = {};
                if constexpr (!HAS_HALVES) multiply_halves(less, scales.minima[s], sums.x, sums.y);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float sum = scales.d[s][i / 2] * part[s][n][i];
                    if constexpr (!HAS_HALVES) sum = fmaf(scales.dmin[s][i / 2], less[i], sum);
                    acc[s][n][i] = fmaf(power[i % 2], sum, acc[s][n][i]);
                }
            }
        }
    }

    // Begins to copy the weights of step `step`; the last of two superblocks brings what the next two have once.
    __device__ __forceinline__ void copy(uint32_t room, uint32_t stage, int step, int last) const {
        copy_weights(stage, step);
        if (step % 4 == 3 && step < last) copy_tails(room, (step + 1) / 2);
    }

    // Adds the superblocks from begin() to end() up, which are asked for again each time; the first is of even number.
    template <class Range>
    __device__ __forceinline__ void sum(const Range& range, float (&acc)[2][TILES][4]) const {
        const uint32_t room = shared_at(strip_room);
        const int begin = range.begin();
        auto last = [&] { return 2 * range.end() - 1; };
        copy_tails(room, begin);
#pragma unroll 1
        for (int i = 0; i < STAGES - 1; i++)
            if (2 * begin + i <= last()) copy(room, room + i * STAGE, 2 * begin + i, last());
        commit_copies();
        wait_copies<0>();
        __syncthreads();
        make_factors(begin);
        if constexpr (HAS_HALVES) leave_super(begin, load_super(begin));
        // The weights of the first steps are there before x is.
        await_earlier();
#pragma unroll 1
        for (int i = 0; i < STAGES - 1; i++) {
            if (2 * begin + i <= last()) copy_x(room, room + i * STAGE, 2 * begin + i);
            commit_copies();
        }
        int from = 0;
#pragma unroll 1
        for (int super = begin; super < range.end(); super++) {
            float part[2][TILES][4] = {};
            uint16_t d = 0;
            auto begin_step = [&](int step) {
                wait_copies<STAGES - 2>();
                __syncthreads();
                const int to = from == 0 ? STAGES - 1 : from - 1;
                if (step + STAGES - 1 <= last()) {
                    copy(room, room + to * STAGE, step + STAGES - 1, last());
                    copy_x(room, room + to * STAGE, step + STAGES - 1);
                }
                commit_copies();
            };
            auto end_step = [&] { from = from + 1 == STAGES ? 0 : from + 1; };
            begin_step(2 * super);
            multiply<0>(strip_room + from * STAGE, super, part, [](auto) {});
            end_step();
            begin_step(2 * super + 1);
            if (super + 1 < range.end()) {
                make_factors(super + 1);
                if constexpr (HAS_HALVES) d = load_super(super + 1);
            }
            Scales scales;
            auto add_two = [&](auto two) {
                if (two.number == 0) load_scales(scales, super);
                add(two, part, super, scales, acc);
            };
            multiply<1>(strip_room + from * STAGE, super, part, add_two);
            add_two(Index<PARTS - 1>{});
            // Read behind the next barrier at the earliest.
            if constexpr (HAS_HALVES) leave_super(super + 1, d);
            end_step();
        }
    }
};

// What a thread block of 128 has of a band: `pick(block)` gives its job and makes `block` relative to it; it is asked again behind the sums.
template <class F, int TILES, class Pick>
DEVICE void multiply_half_band(const Pick& pick, const HalfRows& x, int n_rows, int n_in) {
    float acc[2][TILES][4] = {};
    {
        int block = blockIdx.y;
        const Job job = pick(block);
        const HalfBand<F, TILES, false> band({job.w, nullptr, job.n_out, block * HALF_BAND_HEIGHT}, x.from(blockIdx.x * 8 * TILES, n_in), n_in);
        band.sum(AllSupers{n_in / 256}, acc);
    }
    int block = asked_again(blockIdx.y), before = asked_again(blockIdx.x) * 8 * TILES;
    Job job = pick(block);
    job.y += (size_t)before * job.n_out;
    store_high(job, block * HALF_BAND_HEIGHT, n_rows - before, acc);
}

// A thread block's share of a band.
template <class F, int TILES, class Pick>
DEVICE void multiply_half_share(const Pick& pick, const HalfRows& x, int n_rows, int n_in, float4* parts, uint32_t* counters, int each) {
    float acc[2][TILES][4] = {};
    {
        int block = blockIdx.y, before = blockIdx.x * 8 * TILES;
        const Job job = pick(block);
        const HalfBand<F, TILES, false> band({job.w, nullptr, job.n_out, block * HALF_BAND_HEIGHT}, x.from(before, n_in), n_in);
        band.sum(ShareOfSupers{n_in / 256, each}, acc);
    }
    if (!add_parts<TILES>(parts, counters, acc)) return;
    int block = asked_again(blockIdx.y), before = asked_again(blockIdx.x) * 8 * TILES;
    Job job = pick(block);
    job.y += (size_t)before * job.n_out;
    store_high(job, block * HALF_BAND_HEIGHT, n_rows - before, acc);
}

// What a thread block of 128 has of a gate and up: 64 rows of both.
template <class F, int TILES>
DEVICE void multiply_gated_half_band(const uint8_t* gate, const uint8_t* up, const Gated& out, const HalfRows& x, int n_rows, int n_in) {
    constexpr int ROWS = HALF_BAND_HEIGHT / 2, ROW = ROWS + 4, COLUMNS = 8 * TILES;
    float acc[2][TILES][4] = {};
    {
        const HalfBand<F, TILES, true> band({gate, up, out.n_out, (int)blockIdx.y * ROWS}, x.from(blockIdx.x * COLUMNS, n_in), n_in);
        band.sum(AllSupers{n_in / 256}, acc);
    }
    const int thread = asked_again(threadIdx.x), lane = thread % WARP, warp = thread / WARP, g = lane / 4, t = lane % 4;
    const int first = asked_again(blockIdx.y) * ROWS, before = asked_again(blockIdx.x) * COLUMNS;
    float* tile = (float*)strip_room;
    __syncthreads();
    auto leave = [&](int activation) {
#pragma unroll
        for (int n = 0; n < TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int local = warp * STRIP + g + i / 2 * 8;
                tile[(8 * n + 2 * t + i % 2) * ROW + local] = activate(activation, acc[0][n][i]) * other_factor(activation, acc[1][n][i]);
            }
        }
    };
    if (out.gate_bias || out.up_bias) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = min(first + warp * STRIP + g + half * 8, out.n_out - 1);
            float gate_add = out.gate_bias ? out.gate_bias[row] : 0.0f, up_add = out.up_bias ? out.up_bias[row] : 0.0f;
#pragma unroll
            for (int i = 0; i < 2 * TILES; i++) {
                acc[0][i / 2][2 * half + i % 2] += gate_add;
                acc[1][i / 2][2 * half + i % 2] += up_add;
            }
        }
    }
    // The usual one without a choice at each value, so that all are computed side by side.
    if (out.activation == SILU) {
        leave(SILU);
    } else {
        leave(out.activation);
    }
    __syncthreads();
    store_gated_tile<ROWS, ROW, BAND_WARPS>(out, tile, first, before, min(n_rows - before, COLUMNS));
}

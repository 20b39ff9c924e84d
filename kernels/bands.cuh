// Bands of K-quants times rows of x on tensor cores: a weight is read and unpacked once for the 16, 32 or 64 rows of x of a thread block.
// More rows are further thread blocks; the kernels and their grids are in matmul.cu.
//
// A band is 128 rows of a matrix (64 of a gate and the same 64 of up where gated) or 32. Its thread block of four warps copies a superblock of the
// band and of its rows of x asynchronously into shared memory, STAGES - 1 superblocks ahead. A warp multiplies 32 rows, as two strips
// of 16, by all these rows of x: every warp 32 of 128 rows, or of 32 rows each warp a quarter of a superblock's groups, and their sums are added at the end.
//
// An integer sum begins at the bits of 1.5 * 2^23, so it is a float already: f = 1.5 * 2^23 + dot. With s = d * scale, which has 19 bits at
// most, f * s - 1.5 * 2^23 * s is one multiplication with addition whose constant is exact, and the scale of x another: two instructions a sum.
// Minima are a product of their own (mma m16n8k8 tf32, with the sums of x in two parts), as strips have it.
//
// Bits of a row do not depend on how many rows there are, nor on the kernel: columns are added up by themselves in one order. Split bands are
// the exception: their parts are added in the order of their places, and how many there are depends on the number of rows.
// Weights as formats/planes.cuh says, x as q8.cuh does, formats with STRIP_HIGH as strips.cuh. Shared: the constants of `Band`, whose twin
// is `crates/cuda-exec/src/bands.rs`. Alignment: 16 bytes. No bank conflicts: chunks of 16 bytes are spread by XOR.
#pragma once
#include "gated.cuh"
#include "jobs.cuh"
#include "strips.cuh"

constexpr int BAND_WARPS = 4;
constexpr int BAND_SHARED = 99 << 10;  // what a thread block may have on compute capability 8.6 and 8.9

// The product of a group begins at these bits.
DEVICE void multiply_onto_mantissa(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(MANTISSA));
}
DEVICE void multiply_half_onto_mantissa(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5},{%6},{%7,%7,%7,%7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(MANTISSA));
}

// A scale, and what takes 1.5 * 2^23 times it away.
struct ExactScale {
    float times, plus;

    // d times byte k of `word` less `offset`; both products are exact.
    static __device__ __forceinline__ ExactScale of(uint32_t word, int k, float d, float offset) {
        // The byte is bits 8 to 15 of a float between 2^15 and 2^16.
        float byte = __uint_as_float(__byte_perm(word, 0x47000000, 0x7404 | k << 4));
        float times = fmaf(byte, d, -(32768.0f + offset) * d);
        return {times, -12582912.0f * times};
    }
    __device__ __forceinline__ float of_sum(int bits) const { return fmaf(__int_as_float(bits), times, plus); }
};

// The rows of a band: of one matrix, or by turns a strip of each of two of one shape.
struct BandJob {
    const uint8_t *w, *up;  // `up` only where gated
    int n_out, first;       // rows of the matrix, and that of the band
};

// Which superblocks a thread block adds up: all, or `each` of them by its place along z. A number that is asked for again takes no register.
struct AllSupers {
    int n_supers;
    __device__ __forceinline__ int begin() const { return 0; }
    __device__ __forceinline__ int end() const { return n_supers; }
};
struct ShareOfSupers {
    int n_supers, each;
    __device__ __forceinline__ int begin() const { return blockIdx.z * each; }
    __device__ __forceinline__ int end() const { return min((asked_again(blockIdx.z) + 1) * each, n_supers); }
};

// TILES of 8 rows of x, HEIGHT rows of weights. Formats whose weights are bytes have one of their own (byte_bands.cuh).
template <class F, int TILES, int HEIGHT, bool GATED, class = void>
struct Band {
    static constexpr int HIGH_BYTES = F::STRIP_HIGH;
    static constexpr bool HAS_HALVES = F::SUB == 16;
    static constexpr int COLUMNS = 8 * TILES, STRIPS = HEIGHT / STRIP, SLICES = BAND_WARPS * 2 / STRIPS;
    static constexpr int STRIP_BYTES = 2048 + SUPER * STRIP * HIGH_BYTES;
    static constexpr int X = STRIPS * STRIP_BYTES;
    // Scales of x and sums of its groups: a row of each group, padded so that groups are in different banks.
    static constexpr int SCALES_ROW = COLUMNS * 4 + 32, SCALES = X + COLUMNS * 256, SUMS = SCALES + SUPER * SCALES_ROW, STAGE = SUMS + SUPER * SCALES_ROW;
    static constexpr int TAILS_BYTES = STRIPS * TAIL_BYTES;
    static constexpr int shared_bytes(int stages) { return stages * STAGE + (stages / 2 + 1) * TAILS_BYTES; }
    static constexpr int STAGES = shared_bytes(6) <= BAND_SHARED ? 6
                                  : shared_bytes(5) <= BAND_SHARED ? 5
                                  : shared_bytes(4) <= BAND_SHARED ? 4
                                  : shared_bytes(3) <= BAND_SHARED ? 3 : 2;
    static constexpr int TAILS = STAGES * STAGE, N_TAILS = STAGES / 2 + 1;
    static_assert(shared_bytes(STAGES) <= BAND_SHARED, "a band fits");
    static_assert(SLICES == 1 || SLICES == 4, "a warp has 32 rows");

    const uint8_t *w, *up;
    size_t high, tails, supers;  // where planes of a matrix begin
    const int8_t* x_bytes;
    const uint8_t* x_records;
    int n_in, n_supers, n_rows, n_out, first, slice, pair;

    __device__ __forceinline__ Band(const BandJob& job, const int8_t* xq, const Q8Scale* xs, int n_rows, int n_in)
        : w(job.w), up(job.up), x_bytes(xq), x_records((const uint8_t*)xs), n_in(n_in), n_supers(n_in / 256), n_rows(n_rows),
          n_out(job.n_out), first(job.first) {
        size_t n_groups = (size_t)n_out * (n_in / 32);
        high = plane_bytes(n_groups, 16);
        tails = high + (HIGH_BYTES > 0 ? plane_bytes(n_groups, HIGH_BYTES) : 0);
        supers = tails + plane_bytes(n_groups, 2);
        int warp = threadIdx.x / WARP;
        slice = SLICES == 1 ? 0 : warp;
        pair = SLICES == 1 ? warp : 0;
    }

    // The row of the matrix that is row `row` of strip `strip`; rows beyond the last repeat it.
    __device__ __forceinline__ size_t row_of(int strip, int row) const {
        return (size_t)min(first + (GATED ? strip / 2 : strip) * STRIP + row, n_out - 1);
    }
    __device__ __forceinline__ const uint8_t* matrix_of(int strip) const { return GATED && strip % 2 ? up : w; }

    // The address of row `row` + BEFORE, or of the last. Volatile: computed again each time, since there are not enough registers to keep it.
    template <int BEFORE>
    static __device__ __forceinline__ const uint8_t* row_at(const uint8_t* base, uint32_t row, uint32_t last, uint32_t row_bytes) {
        const uint8_t* at;
        asm volatile("{ .reg .u32 r; add.u32 r, %1, %5; min.u32 r, r, %2; mad.wide.u32 %0, r, %3, %4; }"
                     : "=l"(at)
                     : "r"(row), "r"(last), "r"(row_bytes), "l"(base), "n"(BEFORE));
        return at;
    }
    // Copies 16 bytes of a row of each STEPth strip from strip S on.
    template <int S, int STEP>
    __device__ __forceinline__ void copy_rows(uint32_t to, const uint8_t* from, const uint8_t* from_up, uint32_t row, uint32_t row_bytes) const {
        constexpr int BEFORE = (GATED ? S / 2 : S) * STRIP;
        copy_once<S * STRIP_BYTES>(to, row_at<BEFORE>(GATED && S % 2 ? from_up : from, row, n_out - 1, row_bytes));
        if constexpr (S + STEP < STRIPS) copy_rows<S + STEP, STEP>(to, from, from_up, row, row_bytes);
    }
    // Copies 16 bytes of each 16th row of x from the Jth 16 on, of both halves.
    template <int J>
    __device__ __forceinline__ void copy_x(uint32_t to, const uint8_t* from, uint32_t row) const {
        const uint8_t* at = row_at<16 * J>(from, row, n_rows - 1, n_in);
        copy_once<16 * J * 16>(to, at);
        copy_once<16 * J * 16 + SUPER * COLUMNS * 16>(to, at + n_in / 2);
        if constexpr (J + 1 < COLUMNS / 16) copy_x<J + 1>(to, from, row);
    }

    static __device__ __forceinline__ int x_at(int half, int group, int m) { return X + ((half * SUPER + group) * COLUMNS + (m ^ group)) * 16; }
    static __device__ __forceinline__ int tail_at(int row, int which) { return (row * 2 + (which ^ (row >> 2 & 1))) * 16; }

    // The index of this thread. Where registers are fewest, places in shared memory are computed again each time.
    static __device__ __forceinline__ int thread_index() {
        int thread = threadIdx.x;
        if (TILES == 8) asm volatile("" : "+r"(thread));
        return thread;
    }
    // Begins to copy the weights of superblock `super` into stage `to`; those of even numbers bring what the next has once.
    __device__ __forceinline__ void copy_weights(uint32_t room, int to, int super) const {
        const int thread = thread_index();
        const uint32_t stage = room + to * STAGE;
        {
            int group = thread % 8, row = thread / 8;
            uint32_t from = super * 128 + group * 16;
            copy_rows<0, 1>(stage + group * 256 + (row ^ group) * 16, w + from, up + from, first + row, n_in / 2);
        }
        if constexpr (HIGH_BYTES > 0) {
            // Chunks of 16 bytes of a row, and strips of all threads; where gated these are as many of each matrix.
            constexpr int CHUNKS = HIGH_BYTES / 2, AT_ONCE = 8 / CHUNKS < STRIPS ? 8 / CHUNKS : STRIPS;
            int strip = thread / (STRIP * CHUNKS), chunk = thread % CHUNKS, row = thread / CHUNKS % STRIP;
            uint32_t place = stage + 2048 + strip * STRIP_BYTES + chunk * 256 + (row ^ chunk * (HIGH_BYTES == 8 ? 2 : 4)) * 16;
            const uint8_t* from = matrix_of(strip) + high + super * (8 * HIGH_BYTES) + chunk * 16;
            row += first + (GATED ? strip / 2 : strip) * STRIP;
            if (AT_ONCE == 8 / CHUNKS || strip < STRIPS) copy_high<0, AT_ONCE>(place, from, row);
        }
        if (super % 2 == 0) {
#pragma unroll
            for (int before = 0; before < STRIPS; before += 4) {
                int strip = before + thread / 32, row = thread / 2 % STRIP, which = thread % 2;
                if ((STRIPS % 4 == 0 || strip < STRIPS) && super + which < n_supers)
                    copy_once<0>(room + TAILS + super / 2 % N_TAILS * TAILS_BYTES + strip * TAIL_BYTES + tail_at(row, which),
                                 row_at<0>(matrix_of(strip) + tails + (super + which) * 16, row_of(strip, row), n_out - 1, n_supers * 16));
            }
        }
    }
    // Begins to copy the part of the rows of x that superblock `super` is multiplied by.
    __device__ __forceinline__ void copy_rows_of_x(uint32_t room, int to, int super) const {
        const int thread = thread_index();
        const uint32_t stage = room + to * STAGE;
        {
            int group = thread % 8, row = thread / 8;
            copy_x<0>(stage + x_at(0, group, row), (const uint8_t*)x_bytes + super * 128 + group * 16, row);
        }
        // Scales and sums; a warp takes 4 groups of 8 rows.
#pragma unroll
        for (int pass = 0; pass < COLUMNS / 16; pass++) {
            int rest = pass * 32 + thread / 4, m = rest % COLUMNS, group = rest / COLUMNS * 4 + thread % 4;
            const uint8_t* from = row_at<0>(x_records + super * 64 + group * 8, m, n_rows - 1, n_in / 4);
            uint32_t place = stage + SCALES + group * SCALES_ROW + m * 4;
            copy_shared<4>(place, from);
            copy_shared<4>(place + (SUMS - SCALES), from + 4);
        }
    }
    template <int S, int STEP>
    __device__ __forceinline__ void copy_high(uint32_t to, const uint8_t* from, uint32_t row) const {
        copy_once<S * STRIP_BYTES>(to, row_at<(GATED ? S / 2 : S) * STRIP>(from, row, n_out - 1, n_in / 32 * HIGH_BYTES));
        if constexpr (S + STEP < STRIPS) copy_high<S + STEP, STEP>(to, from, row);
    }

    // The scales of superblocks where they are in a plane of their own, of this lane's rows.
    __device__ __forceinline__ void load_supers(int super, uint16_t (&d)[2][2]) const {
#pragma unroll
        for (int s = 0; s < 2; s++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if constexpr (!HAS_HALVES) continue;
                const uint16_t* plane = (const uint16_t*)(matrix_of(2 * pair + s) + supers);
                d[s][r] = __ldg(plane + row_of(2 * pair + s, threadIdx.x % WARP / 4 + 8 * r) * n_supers + super);
            }
        }
    }

    // Adds superblock `super`, which is in stage `from`.
    __device__ __forceinline__ void add(const uint8_t* room_bytes, int from, int super, const uint16_t (&super_d)[2][2],
                                        float (&acc)[2][TILES][4]) const {
        const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        const uint8_t* bytes = room_bytes + from * STAGE;
        const uint32_t stage = shared_at(bytes);
        const uint8_t* tails_of = room_bytes + TAILS + super / 2 % N_TAILS * TAILS_BYTES + 2 * pair * TAIL_BYTES;
        const int their_row = lane / 8 % 2 * 8 + lane % 8;
        float d[2][2];
#pragma unroll
        for (int s = 0; s < 2; s++) {
#pragma unroll
            for (int r = 0; r < 2; r++)
                d[s][r] = HAS_HALVES ? 0.25f * half_at(super_d[s][r])
                                     : half_at(*(const uint16_t*)(tails_of + s * TAIL_BYTES + tail_at(g + 8 * r, super % 2)));
        }
        // Quarters of a superblock, two groups each: by 64 rows of x there are not enough registers to unroll them all, or both groups.
        constexpr int AT_ONCE = HAS_HALVES && TILES == 8 ? 1 : 2, QUARTERS_AT_ONCE = SLICES == 1 && TILES == 2 ? 4 : 1;
#pragma unroll QUARTERS_AT_ONCE
        for (int quarter = slice; quarter < 4; quarter += SLICES) {
            uint32_t scales[2][2];
#pragma unroll
            for (int s = 0; s < 2; s++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const uint8_t* tail = tails_of + s * TAIL_BYTES + tail_at(g + 8 * r, super % 2);
                    scales[s][r] = HAS_HALVES ? *(const uint32_t*)(tail + quarter * 4) ^ 0x80808080 : k_scales(tail, quarter);
                }
            }
#pragma unroll AT_ONCE
            for (int j = 0; j < 2; j++) {
                const int group = 2 * quarter + j;
                uint32_t q[4];
                load_words<0>(q, stage + (2 * pair + lane / 16) * STRIP_BYTES + group * 256 + (their_row ^ group) * 16);
                uint32_t words[2][4];
                ExactScale scale[2][2][HAS_HALVES ? 2 : 1];
#pragma unroll
                for (int s = 0; s < 2; s++) {
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        unpack(q[2 * s + r], bytes + (2 * pair + s) * STRIP_BYTES + 2048 + r * 128, group, g, t, words[s][r], words[s][2 + r]);
                        if constexpr (HAS_HALVES) {
#pragma unroll
                            for (int half = 0; half < 2; half++)
                                scale[s][r][half] = ExactScale::of(scales[s][r], 2 * j + half, d[s][r], 128.0f);
                        } else {
                            scale[s][r][0] = ExactScale::of(scales[s][r], j, d[s][r], 0.0f);
                        }
                    }
                }
                // Two tiles at a time: of each the first and the last 16 bytes of the group.
                const uint32_t x_of = stage + x_at(lane / 8 % 2, group, lane / 16 * 8 + lane % 8);
                const float* x_scales = (const float*)(bytes + SCALES + group * SCALES_ROW) + 2 * t;
                uint32_t b[4];
#pragma unroll
                for (int n = 0; n < TILES; n++) {
                    if (n % 2 == 0) load_tiles(b, x_of, n / 2);
                    const float2 both = *(const float2*)(x_scales + 8 * n);
                    const float its[2] = {both.x, both.y};
#pragma unroll
                    for (int s = 0; s < 2; s++) {
                        int dot[4], upper_dot[4];
                        if constexpr (HAS_HALVES) {
                            multiply_half_onto_mantissa(dot, words[s][0], words[s][1], b[n % 2 * 2]);
                            multiply_half_onto_mantissa(upper_dot, words[s][2], words[s][3], b[n % 2 * 2 + 1]);
                        } else {
                            multiply_onto_mantissa(dot, words[s], b[n % 2 * 2], b[n % 2 * 2 + 1]);
                        }
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            float sum = scale[s][i / 2][0].of_sum(dot[i]);
                            if constexpr (HAS_HALVES) sum += scale[s][i / 2][1].of_sum(upper_dot[i]);
                            acc[s][n][i] = fmaf(its[i % 2], sum, acc[s][n][i]);
                        }
                    }
                }
            }
        }
        if constexpr (!HAS_HALVES) subtract_minima(bytes, tails_of, super, acc);
    }

    // The 6-bit scales of two groups, in the lower bytes.
    static __device__ __forceinline__ uint32_t k_scales(const uint8_t* header, int quarter) {
        uint32_t low = *(const uint32_t*)(header + 4), high = *(const uint32_t*)(header + 12);
        uint32_t four = quarter / 2 ? (high & 0x0f0f0f0f) | (low >> 2 & 0x30303030) : low & 0x3f3f3f3f;
        return four >> (quarter % 2 * 16);
    }

    // Columns 16 `two` .. of a group.
    static __device__ __forceinline__ void load_tiles(uint32_t (&b)[4], uint32_t at, int two) {
        switch (two) {
            case 0: return load_words<0>(b, at);
            case 1: return load_words<256>(b, at);
            case 2: return load_words<512>(b, at);
            default: return load_words<768>(b, at);
        }
    }

    // What a lane has of a row of a group in fragments of its first and its last 16 weights; `upper` is where further bits of 8 rows are.
    static __device__ __forceinline__ void unpack(uint32_t word, const uint8_t* upper, int group, int g, int t, uint32_t& first, uint32_t& last) {
        if constexpr (HIGH_BYTES == 8) {
            // Four times the weight: without its lowest bits, a byte of 6 bits less 32 is one with its sign turned.
            uint2 bits = *(const uint2*)(upper + group / 2 * 256 + (g ^ group / 2 * 2) * 16 + group % 2 * 8);
            bits.x = choose(0x3c3c3c3c, word << 2, __funnelshift_l(bits.x, bits.x, 6 - 2 * t));
            bits.y = choose(0x3c3c3c3c, word >> 2, __funnelshift_l(bits.y, bits.y, 6 - 2 * t));
            first = and_xor(bits.x, 0xfcfcfcfc, 0x80808080);
            last = and_xor(bits.y, 0xfcfcfcfc, 0x80808080);
            return;
        }
        first = word & 0x0f0f0f0f;
        last = word >> 4 & 0x0f0f0f0f;
        if constexpr (HIGH_BYTES == 4) {
            uint32_t bits = *(const uint32_t*)(upper + group / 4 * 256 + (g ^ group / 4 * 4) * 16 + group % 4 * 4);
            first = and_or(bits << (4 - t), 0x10101010, first);
            last = and_or(bits >> t, 0x10101010, last);
        }
    }

    // Takes dmin times the sums of minima times sums of x away, the latter as two numbers of 11 bits; warps that share rows share the tiles.
    __device__ __forceinline__ void subtract_minima(const uint8_t* bytes, const uint8_t* tails_of, int super, float (&acc)[2][TILES][4]) const {
        const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        uint32_t a[2][4];
        float d[2][2];
#pragma unroll
        for (int s = 0; s < 2; s++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint4 header = *(const uint4*)(tails_of + s * TAIL_BYTES + tail_at(g + 8 * r, super % 2));
                uint32_t first = header.z & 0x3f3f3f3f;
                uint32_t second = (header.w >> 4 & 0x0f0f0f0f) | (header.z >> 2 & 0x30303030);
                a[s][r] = __float_as_uint((float)byte_of(first, t));
                a[s][2 + r] = __float_as_uint((float)byte_of(second, t));
                d[s][r] = half2_at(header.x).y;
            }
        }
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            if (SLICES > 1 && n % SLICES != slice) continue;
            uint32_t value[2], rest[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int place = (t + 4 * i) * SCALES_ROW + (8 * n + g) * 4, halves = *(const int*)(bytes + SUMS + place);
                float sum = *(const float*)(bytes + SCALES + place) * (float)((int)(short)halves + (halves >> 16));
                value[i] = __float_as_uint(sum) & 0xffffe000u;
                rest[i] = __float_as_uint(sum - __uint_as_float(value[i])) & 0xffffe000u;
            }
#pragma unroll
            for (int s = 0; s < 2; s++) {
                float minima[4] = {};
                multiply_minima(minima, a[s], value[0], value[1]);
                multiply_minima(minima, a[s], rest[0], rest[1]);
#pragma unroll
                for (int i = 0; i < 4; i++) acc[s][n][i] = fmaf(-d[s][i / 2], minima[i], acc[s][n][i]);
            }
        }
    }

    // Adds up the superblocks from begin() to end(), which are asked for again each time; the first is of even number.
    template <class Range>
    __device__ __forceinline__ void sum(const Range& range, float (&acc)[2][TILES][4]) const {
        const uint32_t room = shared_at(strip_room);
        const int begin = range.begin();
#pragma unroll 1
        for (int i = 0; i < STAGES - 1; i++)
            if (begin + i < range.end()) copy_weights(room, i, begin + i);
        uint16_t d[2][2];
        load_supers(begin, d);
        // The weights of the first superblocks are on their way before x is there.
        await_earlier();
#pragma unroll 1
        for (int i = 0; i < STAGES - 1; i++) {
            if (begin + i < range.end()) copy_rows_of_x(room, i, begin + i);
            commit_copies();
        }
        int from = 0, to = STAGES - 1;
#pragma unroll 1
        for (int super = begin; super < range.end(); super++) {
            wait_copies<STAGES - 2>();
            __syncthreads();
            if (super + STAGES - 1 < range.end()) {
                copy_weights(room, to, super + STAGES - 1);
                copy_rows_of_x(room, to, super + STAGES - 1);
            }
            commit_copies();
            uint16_t next_d[2][2];
            load_supers(min(super + 1, n_supers - 1), next_d);
            add(strip_room, from, super, d, acc);
            from = from + 1 == STAGES ? 0 : from + 1;
            to = to + 1 == STAGES ? 0 : to + 1;
#pragma unroll
            for (int i = 0; i < 4; i++) d[i / 2][i % 2] = next_d[i / 2][i % 2];
        }
    }
};

// Stores the sums of a high band from row `first` on.
template <int TILES>
DEVICE void store_high(const Job& job, int first, int n_rows, const float (&acc)[2][TILES][4]) {
    const int thread = asked_again(threadIdx.x), lane = thread % WARP, warp = thread / WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int s = 0; s < 2; s++) {
#pragma unroll
        for (int n = 0; n < TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int row = first + (2 * warp + s) * STRIP + g + i / 2 * 8, m = 8 * n + 2 * t + i % 2;
                if (row < job.n_out && m < n_rows)
                    job.y[(size_t)m * job.n_out + row] = job.bias ? acc[s][n][i] + job.bias[row] : acc[s][n][i];
            }
        }
    }
}

// What a thread block of 128 has of a job: `height` rows, by COLUMNS rows of x.
template <class F, int TILES, int HEIGHT>
DEVICE void multiply_band(const Job& job, int block, const int8_t* xq, const Q8Scale* xs, int n_rows, int n_in) {
    using B = Band<F, TILES, HEIGHT, false>;
    const int first = block * HEIGHT, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    if (first >= job.n_out) return;
    const B band({job.w, nullptr, job.n_out, first}, xq, xs, n_rows, n_in);
    float acc[2][TILES][4] = {};
    band.sum(AllSupers{n_in / 256}, acc);
    if constexpr (B::SLICES == 1) {
        store_high(job, first, n_rows, acc);
    } else {
        // Of each warp the columns, HEIGHT sums in a row and some space, so that columns that are stored together are in different banks.
        constexpr int ROW = HEIGHT + 4;
        float* sums = (float*)strip_room;
        __syncthreads();
#pragma unroll
        for (int s = 0; s < 2; s++) {
#pragma unroll
            for (int n = 0; n < TILES; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sums[(warp * B::COLUMNS + 8 * n + 2 * t + i % 2) * ROW + s * STRIP + g + i / 2 * 8] = acc[s][n][i];
            }
        }
        __syncthreads();
        int row = first + lane;
        float bias = job.bias && row < job.n_out ? job.bias[row] : 0.0f;
        for (int m = warp; m < n_rows && m < B::COLUMNS; m += BAND_WARPS) {
            float sum = sums[m * ROW + lane];
#pragma unroll
            for (int slice = 1; slice < BAND_WARPS; slice++) sum += sums[(slice * B::COLUMNS + m) * ROW + lane];
            if (row < job.n_out) job.y[(size_t)m * job.n_out + row] = sum + bias;
        }
    }
}

// Where thread blocks share a band: each leaves its sums in `parts`, [tiles][splits][4 TILES][128] f32 by 4; who comes last adds those of the tile up, in
// their order, and is told so. Counters are 0 before and after.
template <int TILES>
DEVICE bool add_parts(float4* parts, uint32_t* counters, float (&acc)[2][TILES][4]) {
    constexpr int N = 2 * TILES, THREADS = BAND_WARPS * WARP;
    const int tile = asked_again(blockIdx.y) * gridDim.x + blockIdx.x, n_splits = gridDim.z, split = asked_again(blockIdx.z);
    parts += (size_t)tile * n_splits * (N * THREADS) + asked_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float(&a)[4] = acc[i / TILES][i % TILES];
        parts[(split * N + i) * THREADS] = make_float4(a[0], a[1], a[2], a[3]);
    }
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
    auto add = [&](int s, bool is_first) {
        float4 x[N];
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = parts[(s * N + i) * THREADS];
#pragma unroll
        for (int i = 0; i < N; i++) {
            float(&a)[4] = acc[i / TILES][i % TILES];
            a[0] = is_first ? x[i].x : a[0] + x[i].x;
            a[1] = is_first ? x[i].y : a[1] + x[i].y;
            a[2] = is_first ? x[i].z : a[2] + x[i].z;
            a[3] = is_first ? x[i].w : a[3] + x[i].w;
        }
    };
    add(0, true);
#pragma unroll 1
    for (int s = 1; s < n_splits; s++) add(s, false);
    return true;
}

// A thread block's share of a high band: `pick(block)` gives its job and makes `block` relative to it; it is asked again behind the sums.
template <class F, int TILES, class Pick>
DEVICE void multiply_share(const Pick& pick, const int8_t* xq, const Q8Scale* xs, int n_rows, int n_in, float4* parts, uint32_t* counters, int each) {
    float acc[2][TILES][4] = {};
    {
        int block = blockIdx.x, before = blockIdx.y * 8 * TILES;
        const Job job = pick(block);
        const Band<F, TILES, 128, false> band({job.w, nullptr, job.n_out, block * 128}, q8_row(xq, before, n_in), q8_scales(xs, before, n_in),
                                              n_rows - before, n_in);
        band.sum(ShareOfSupers{n_in / 256, each}, acc);
    }
    if (!add_parts<TILES>(parts, counters, acc)) return;
    int block = asked_again(blockIdx.x), before = asked_again(blockIdx.y) * 8 * TILES;
    Job job = pick(block);
    job.y += (size_t)before * job.n_out;
    store_high(job, block * 128, n_rows - before, acc);
}

// What thread block `block` of 128 threads has of a gate and up: 64 rows of both.
template <class F, int TILES>
DEVICE void multiply_gated_band(const uint8_t* gate, const uint8_t* up, const Gated& out, int block, int before, const int8_t* xq,
                                const Q8Scale* xs, int n_rows, int n_in) {
    using B = Band<F, TILES, 128, true>;
    constexpr int ROWS = 64, ROW = ROWS + 4;
    const int first = block * ROWS, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const B band({gate, up, out.n_out, first}, xq, xs, n_rows, n_in);
    float acc[2][TILES][4] = {};
    band.sum(AllSupers{n_in / 256}, acc);
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
    store_gated_tile<ROWS, ROW, BAND_WARPS>(out, tile, first, before, min(n_rows, B::COLUMNS));
}

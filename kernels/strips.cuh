// Strips of K-quants times 1 to 16 rows of x a thread block on tensor cores: what products of one matrix, of two formats and gated ones share.
// More rows, as narrow products have up to 48, are further thread blocks of matvec_m16, which read the weights again.
//
// A strip is 16 rows of a matrix. Warps share its superblocks: a warp takes pairs of them, every `n_slices`th, copies each with its part of
// x into shared memory STAGES - 1 superblocks ahead, and multiplies group by group (mma m16n8k32 s8, m16n8k16 where scales are by 16):
// 16 rows by 8 rows of x, and once more where M is 16. Scales multiply the integer sums, minima are a product of their own (mma m16n8k8 tf32, with the sums of x in two
// parts). Instructions for each weight hardly depend on M, and a row's bits do not: each column is added up by itself, in one order.
//
// Of gate and up each warp has a strip of its own. Of a tall matrix, which has more strips than a GPU has room for warps and short rows, each warp of
// matvec_m1 to _m8 has several, one after the other (tall_strips.cuh).
//
// Formats say STRIP_HIGH: bytes of a group beyond its nibbles (0, 4 or 8). Weights as formats/planes.cuh says, x as q8.cuh does.
// Shared, for each warp: STAGES * (2048 + 8 * 16 * STRIP_HIGH + 320 M) + (STAGES / 2 + 1) * 512 bytes, and for a strip of Q6_K TABLE_BYTES
// more; the twin of this is `crates/cuda-exec/src/strips.rs`. Alignment: 16 bytes. No bank conflicts: chunks of 16 bytes are spread by XOR.
#pragma once
#include "async_copy.cuh"
#include "bits.cuh"
#include "gated.cuh"
#include "matvec.cuh"
#include "normed_row.cuh"

constexpr int STRIP = 16;          // rows
constexpr int SUPER = 8;           // groups of a superblock
constexpr int TAIL_BYTES = 2 * STRIP * 16;  // what two superblocks of each row have once

extern __shared__ __align__(128) uint8_t strip_room[];

DEVICE void multiply(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}
DEVICE void multiply_half(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5},{%6},{%7,%7,%7,%7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(0));
}
DEVICE void multiply_minima(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Byte k of a word, without and with its sign.
DEVICE int byte_of(uint32_t word, int k) { return (int)__byte_perm(word, 0, 0x4440 + k); }
DEVICE int signed_byte_of(uint32_t word, int k) {
    int byte;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(byte) : "r"(word), "r"(0x8880 + 0x1111 * k));
    return byte;
}

// The float of an integer below 2^22, by its place in the mantissa.
constexpr int MANTISSA = 0x4B400000;
DEVICE float float_of_mantissa(int x) { return __int_as_float(x) - 12582912.0f; }

// Superblocks whose f16 scales are in shared memory at a time, where warps share a strip or have one each.
constexpr int TABLE = 64;

// Columns of y that a lane adds up.
template <int M>
constexpr int COLUMNS_OF = M == 1 ? 1 : M == 16 ? 4 : 2;

// The rows of a strip, and what they are multiplied by.
struct StripJob {
    const uint8_t* w;
    size_t n_all_rows;  // of the matrices in w
    size_t first;       // row of the strip among them
    int n_rows;         // of the strip that are there, at least 1
};

// Of a table of the f16 scales of a strip, superblocks and further numbers of a row: an odd number of words, so that rows are in different banks.
constexpr int TABLE_PAD = 2;
template <int N_SUPERS>
constexpr int TABLE_BYTES = STRIP * (N_SUPERS + TABLE_PAD) * 2;

// NORMED: the one row of x is in shared memory as a whole (normed_row.cuh), and stages have weights alone.
template <class F, int M, int STAGES, bool NORMED = false>
struct Strip {
    static constexpr int HIGH_BYTES = F::STRIP_HIGH;
    static constexpr bool HAS_HALVES = F::SUB == 16;       // Q6_K: signed scales by 16 weights, and d in a plane of its own
    static constexpr bool FITS_MANTISSA = HIGH_BYTES == 0;  // scale times sum, of a group
    static constexpr int TILES = M == 16 ? 2 : 1;           // of 8 rows of x
    static constexpr int EACH = M == 1 ? 1 : 2;            // columns of a tile that a lane adds up
    static constexpr int COLUMNS = TILES * EACH;
    static constexpr int HIGH = 2048, X = HIGH + SUPER * STRIP * HIGH_BYTES, RECORDS = X + 256 * M, STAGE = NORMED ? X : RECORDS + 64 * M;
    static constexpr int TAILS = STAGES * STAGE, N_TAILS = STAGES / 2 + 1;
    static constexpr int WARP_BYTES = TAILS + N_TAILS * TAIL_BYTES;
    static constexpr int X_COPIES = M < 2 ? 1 : M / 2, RECORD_COPIES = M < 4 ? 1 : M / 4;

    // Places in shared memory, in bytes; chunks of 16.
    static __device__ __forceinline__ int x_at(int half, int group, int m) {
        return X + ((half * SUPER + group) * M + (m ^ (M < 8 ? group * M / 8 & (M - 1) : group))) * 16;
    }
    static __device__ __forceinline__ int record_at(int group, int m) {
        int spread = M == 16 ? (group & 3) * 2 | group >> 2 : M == 8 ? (group & 2) | group >> 2 : M == 4 ? group >> 2 : 0;
        return RECORDS + group * M * 8 + (M == 1 ? 0 : (m / 2 ^ spread) * 16 + m % 2 * 8);
    }
    static __device__ __forceinline__ int tail_at(int row, int which) { return (row * 2 + (which ^ (row >> 2 & 1))) * 16; }

    const uint8_t *quants, *high, *tails, *x_bytes, *x_records;  // where this lane copies superblock 0 from
    uint32_t quant_rows[4], high_rows[2], x_rows[X_COPIES], record_rows[RECORD_COPIES];
    const uint16_t* supers;
    uint32_t room;
    const uint8_t* room_bytes;
    int n_supers, lane;

    __device__ __forceinline__ Strip(const StripJob& job, const Input<M>& x, uint8_t* warp_room) {
        lane = threadIdx.x % WARP;
        int n_in = x.n_in;
        n_supers = n_in / 256;
        take(job, n_in);
        int group = lane % 8;
        x_bytes = (const uint8_t*)x.bytes + group * 16;
#pragma unroll
        for (int i = 0; i < X_COPIES; i++) {
            int chunk = (lane + 32 * i) / 8;
            x_rows[i] = (uint32_t)min(chunk % M, x.n_rows - 1) * n_in + chunk / M * (n_in / 2);
        }
        x_records = (const uint8_t*)x.scales + group * 8;
#pragma unroll
        for (int i = 0; i < RECORD_COPIES; i++)
            record_rows[i] = (uint32_t)min(lane / 8 + 4 * i, x.n_rows - 1) * (n_in / 4);
        room = shared_at(warp_room);
        room_bytes = warp_room;
    }

    // From here on copies weights of this strip.
    __device__ __forceinline__ void take(const StripJob& job, int n_in) {
        int last = job.n_rows - 1;
        size_t n_groups = job.n_all_rows * (n_in / 32);
        const uint8_t* after = job.w + (n_groups * 16 + 255) / 256 * 256;
        quants = job.w + job.first * (n_in / 2) + lane % 8 * 16;
#pragma unroll
        for (int i = 0; i < 4; i++) quant_rows[i] = (uint32_t)min(4 * i + lane / 8, last) * (n_in / 2);
        if constexpr (HIGH_BYTES > 0) {
            constexpr int CHUNKS = HIGH_BYTES / 2;  // of a row
            int row_bytes = n_in / 32 * HIGH_BYTES;
            high = after + job.first * row_bytes + lane % CHUNKS * 16;
#pragma unroll
            for (int i = 0; i < 2; i++) high_rows[i] = (uint32_t)min(8 * i + lane / CHUNKS, last) * row_bytes;
            after += (n_groups * HIGH_BYTES + 255) / 256 * 256;
        }
        tails = after + (job.first + min(lane / 2, last)) * n_supers * 16;
        supers = (const uint16_t*)(after + (n_groups * 2 + 255) / 256 * 256) + job.first * n_supers;
    }

    // Begins to copy superblock `super`, the i-th of the warp; those of even i bring what the next has once.
    __device__ __forceinline__ void copy(int i, int super, int end) const {
        copy_weights(i, super, end);
        if (!NORMED) copy_x(i, super);
    }
    __device__ __forceinline__ void copy_weights(int i, int super, int end) const {
        uint32_t stage = room + (i & (STAGES - 1)) * STAGE;
        int group = lane % 8;
        uint32_t to = stage + group * 256 + (lane / 8 ^ group) * 16;
        uint32_t to_next = stage + group * 256 + ((lane / 8 ^ group) ^ 4) * 16;
        const uint8_t* from = quants + (uint32_t)super * 128;
        copy_once<0>(to, from + quant_rows[0]);
        copy_once<0>(to_next, from + quant_rows[1]);
        copy_once<128>(to, from + quant_rows[2]);
        copy_once<128>(to_next, from + quant_rows[3]);
        if (HIGH_BYTES == 8) {
            int part = lane % 4;
            uint32_t place = stage + HIGH + part * 256 + (lane / 4 ^ 2 * part) * 16;
            const uint8_t* upper = high + (uint32_t)super * 64;
            copy_once<0>(place, upper + high_rows[0]);
            copy_once<128>(place, upper + high_rows[1]);
        } else if (HIGH_BYTES == 4) {
            int part = lane % 2;
            copy_once<0>(stage + HIGH + part * 256 + (lane / 2 ^ 4 * part) * 16, high + (uint32_t)super * 32 + high_rows[0]);
        }
        if (i % 2 == 0 && super + lane % 2 < end)
            copy_once<0>(room + TAILS + i / 2 % N_TAILS * TAIL_BYTES + tail_at(lane / 2, lane % 2),
                         tails + ((uint32_t)super + lane % 2) * 16);
    }
    __device__ __forceinline__ void copy_x(int i, int super) const {
        uint32_t stage = room + (i & (STAGES - 1)) * STAGE;
        int group = lane % 8;
#pragma unroll
        for (int j = 0; j < X_COPIES; j++) {
            int chunk = (lane + 32 * j) / 8;
            if (M > 1 || lane < 16)
                copy_shared<16>(stage + x_at(chunk / M, group, chunk % M), x_bytes + (uint32_t)super * 128 + x_rows[j]);
        }
#pragma unroll
        for (int j = 0; j < RECORD_COPIES; j++) {
            if (M >= 4 || lane < 8 * M)
                copy_shared<8>(stage + record_at(group, lane / 8 + 4 * j), x_records + (uint32_t)super * 64 + record_rows[j]);
        }
    }

    // Stores the f16 scales of superblocks [begin, end) of the strip's rows first, first + STRIP / N, .. in a table. A lane has one of WIDTH superblocks
    // and every row of as many that is left to it, whose loads are on their way together.
    template <int N, int WIDTH>
    __device__ __forceinline__ void fill_table(const StripJob& job, int first, int begin, int end, uint16_t* table, int table_row) const {
#pragma unroll 1
        for (int at = begin + lane % WIDTH; at < end; at += WIDTH) {
            uint16_t d[N];
#pragma unroll
            for (int k = 0; k < N; k++) d[k] = __ldg(supers + (size_t)min(first + k * (STRIP / N), job.n_rows - 1) * n_supers + at);
#pragma unroll
            for (int k = 0; k < N; k++) table[(first + k * (STRIP / N)) * table_row + at - begin] = d[k];
        }
    }

    // Puts the parts of x that belong to the warp's first N superblocks, those `super_of` gives before `end`, into shared memory.
    template <int N, class SuperOf>
    __device__ __forceinline__ void store_first_x(SuperOf super_of, int end) const {
        const int group = lane % 8;
        const bool has_bytes = M > 1 || lane < 16, has_record = M >= 4 || lane < 8 * M;
        uint4 bytes[N][X_COPIES];
        uint2 records[N][RECORD_COPIES];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint32_t super = min(super_of(i), n_supers - 1);
#pragma unroll
            for (int j = 0; j < X_COPIES; j++)
                if (has_bytes) bytes[i][j] = *(const uint4*)(x_bytes + super * 128 + x_rows[j]);
#pragma unroll
            for (int j = 0; j < RECORD_COPIES; j++)
                if (has_record) records[i][j] = *(const uint2*)(x_records + super * 64 + record_rows[j]);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (super_of(i) >= end) break;
            uint8_t* stage = const_cast<uint8_t*>(room_bytes) + (i & (STAGES - 1)) * STAGE;
#pragma unroll
            for (int j = 0; j < X_COPIES; j++) {
                int chunk = (lane + 32 * j) / 8;
                if (has_bytes) *(uint4*)(stage + x_at(chunk / M, group, chunk % M)) = bytes[i][j];
            }
#pragma unroll
            for (int j = 0; j < RECORD_COPIES; j++)
                if (has_record) *(uint2*)(stage + record_at(group, lane / 8 + 4 * j)) = records[i][j];
        }
    }

    // Adds the i-th superblock of the warp, `super`, which is there; `row_d` are the scales of the lane's rows where they are apart, and `normed` the row
    // of x where it is in shared memory.
    __device__ __forceinline__ void add(int i, int super, const uint8_t* normed, float2 row_d, float (&acc)[2][COLUMNS]) const {
        const int g = lane / 4, t = lane % 4;
        uint32_t stage = room + (i & (STAGES - 1)) * STAGE;
        const uint8_t* bytes = room_bytes + (i & (STAGES - 1)) * STAGE;
        const uint8_t* bytes_of_x = NORMED ? normed + super * NORMED_SUPER - X : bytes;
        const uint32_t stage_of_x = NORMED ? shared_at(normed) + super * NORMED_SUPER - X : stage;
        const uint8_t* tail = room_bytes + TAILS + i / 2 % N_TAILS * TAIL_BYTES + tail_at(g, i % 2);
        const uint4 tail_of[2] = {*(const uint4*)tail, *(const uint4*)(tail + 8 * 32)};
        float part[2][COLUMNS] = {};
        // ldmatrix: a lane gives the address of a row of a group, or of a half of a group of x.
        const int their_row = lane / 8 % 2 * 8 + lane % 8, their_group = lane / 16;
        uint32_t scales[2][2];
        if (!HAS_HALVES) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                scales[r][0] = tail_of[r].y & 0x3f3f3f3f;
                scales[r][1] = (tail_of[r].w & 0x0f0f0f0f) | (tail_of[r].y >> 2 & 0x30303030);
            }
        }
        uint4 upper[2];
#pragma unroll
        for (int a = 0; a < SUPER; a += 2) {
            int group = a + their_group;
            uint32_t q[4], b[TILES][4];
            load_words(q, stage + group * 256 + (their_row ^ group) * 16);
#pragma unroll
            for (int n = 0; n < TILES; n++) load_words(b[n], stage_of_x + x_at(lane / 8 % 2, group, min(8 * n + lane % 8, M - 1)));
            if (HIGH_BYTES == 8 || (HIGH_BYTES == 4 && a % 4 == 0)) {
                int chunk = a * HIGH_BYTES / 16, spread = chunk * (HIGH_BYTES == 8 ? 2 : 4);
#pragma unroll
                for (int r = 0; r < 2; r++)
                    upper[r] = *(const uint4*)(bytes + HIGH + chunk * 256 + ((g ^ spread) + 8 * r) * 16);
            }
#pragma unroll
            for (int u = 0; u < 2; u++) {
                uint32_t words[4];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    uint32_t word = q[2 * u + r];
                    if (HIGH_BYTES == 8) {
                        // Four times the weight: without its lowest bits, a byte of 6 bits less 32 is one with its sign turned.
                        uint32_t first = u ? upper[r].z : upper[r].x, second = u ? upper[r].w : upper[r].y;
                        first = choose(0x3c3c3c3c, word << 2, __funnelshift_l(first, first, 6 - 2 * t));
                        second = choose(0x3c3c3c3c, word >> 2, __funnelshift_l(second, second, 6 - 2 * t));
                        words[r] = and_xor(first, 0xfcfcfcfc, 0x80808080);
                        words[2 + r] = and_xor(second, 0xfcfcfcfc, 0x80808080);
                        continue;
                    }
                    words[r] = word & 0x0f0f0f0f;
                    words[2 + r] = word >> 4 & 0x0f0f0f0f;
                    if (HIGH_BYTES == 4) {
                        uint32_t bits = a % 4 == 0 ? (u ? upper[r].y : upper[r].x) : (u ? upper[r].w : upper[r].z);
                        words[r] = and_or(bits << (4 - t), 0x10101010, words[r]);
                        words[2 + r] = and_or(bits >> t, 0x10101010, words[2 + r]);
                    }
                }
                int scale[2];
                if (!HAS_HALVES) {
#pragma unroll
                    for (int r = 0; r < 2; r++) scale[r] = byte_of(scales[r][a / 4], (a + u) % 4);
                }
                int2 half_scales[2];
                if (HAS_HALVES) {
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        const uint32_t all[4] = {tail_of[r].x, tail_of[r].y, tail_of[r].z, tail_of[r].w};
                        half_scales[r].x = signed_byte_of(all[(a + u) / 2], u * 2);
                        half_scales[r].y = signed_byte_of(all[(a + u) / 2], u * 2 + 1);
                    }
                }
#pragma unroll
                for (int n = 0; n < TILES; n++) {
                    uint32_t its[2];
                    load_scales(bytes_of_x, a + u, 8 * n + 2 * t, its);
                    if (HAS_HALVES) {
                        add_halves(words, b[n][2 * u], b[n][2 * u + 1], its, half_scales, n * EACH, part);
                        continue;
                    }
                    int dot[4];
                    multiply(dot, words, b[n][2 * u], b[n][2 * u + 1]);
#pragma unroll
                    for (int r = 0; r < 2; r++) {
#pragma unroll
                        for (int c = 0; c < EACH; c++) {
                            float sum = FITS_MANTISSA ? float_of_mantissa(dot[2 * r + c] * scale[r] + MANTISSA)
                                                      : (float)(dot[2 * r + c] * scale[r]);
                            part[r][n * EACH + c] += __uint_as_float(its[c]) * sum;
                        }
                    }
                }
            }
        }
        if (HAS_HALVES) {
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                // A quarter: sums are of four times the weights.
                acc[0][c] += 0.25f * row_d.x * part[0][c];
                acc[1][c] += 0.25f * row_d.y * part[1][c];
            }
            return;
        }
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            float minima[4];
            sum_minima(bytes_of_x, tail_of, 8 * n, minima);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float2 d = half2_at(tail_of[r].x);
#pragma unroll
                for (int c = 0; c < EACH; c++)
                    acc[r][n * EACH + c] += d.x * part[r][n * EACH + c] - d.y * minima[2 * r + c];
            }
        }
    }

    // The scales of a group of x, for rows m and m + 1 of it: two words, which four places of a warp ask for, and not the records around them.
    __device__ __forceinline__ void load_scales(const uint8_t* bytes, int group, int m, uint32_t (&scales)[2]) const {
        const uint32_t* records = (const uint32_t*)(bytes + record_at(group, M == 1 ? 0 : min(m, M - 2)));
        scales[0] = records[0];
        if (M > 1) scales[1] = records[2];
    }

    // A group of Q6_K, whose halves have scales of their own.
    __device__ __forceinline__ void add_halves(const uint32_t (&words)[4], uint32_t b0, uint32_t b1, const uint32_t (&its)[2],
                                               const int2 (&scale)[2], int column, float (&part)[2][COLUMNS]) const {
        int low[4], upper[4];
        multiply_half(low, words[0], words[1], b0);
        multiply_half(upper, words[2], words[3], b1);
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int c = 0; c < EACH; c++) {
                float sum = (float)(low[2 * r + c] * scale[r].x + upper[2 * r + c] * scale[r].y);
                part[r][column + c] += __uint_as_float(its[c]) * sum;
            }
        }
    }

    // Sums of minima times sums of x, the latter as two numbers of 11 bits.
    __device__ __forceinline__ void sum_minima(const uint8_t* bytes, const uint4 (&tail_of)[2], int first_m, float (&minima)[4]) const {
        const int t = lane % 4, m = min(first_m + lane / 4, M - 1);
        uint32_t a[4], value[2], rest[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t first = tail_of[r].z & 0x3f3f3f3f;
            uint32_t second = (tail_of[r].w >> 4 & 0x0f0f0f0f) | (tail_of[r].z >> 2 & 0x30303030);
            a[r] = __float_as_uint((float)byte_of(first, t));
            a[2 + r] = __float_as_uint((float)byte_of(second, t));
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint2 record = *(const uint2*)(bytes + record_at(t + 4 * i, m));
            float sum = __uint_as_float(record.x) * (float)((int)(short)record.y + ((int)record.y >> 16));
            value[i] = __float_as_uint(sum) & 0xffffe000u;
            rest[i] = __float_as_uint(sum - __uint_as_float(value[i])) & 0xffffe000u;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) minima[i] = 0.0f;
        multiply_minima(minima, a, value[0], value[1]);
        multiply_minima(minima, a, rest[0], rest[1]);
    }
};

// Adds up a strip's superblocks, of which this warp has a slice of SLICES. `table` is the strip's, and has room for TABLE superblocks. All threads of the thread block call it, for matrices of one width.
// `ahead` is loaded into `held` once earlier launches are done, where it is not null. NORMED: x is what `row` gives, in `normed`.
template <class F, int M, int STAGES, int SLICES, bool NORMED = false>
DEVICE void sum_strip(const StripJob& job, const Input<M>& x, int slice, uint8_t* warp_room, uint16_t* table,
                      float (&acc)[2][COLUMNS_OF<M>], const float* ahead, float& held, const NormedRow& row = {},
                      uint8_t* normed = nullptr) {
    using S = Strip<F, M, STAGES, NORMED>;
    const NormWeight weight(row, NORMED ? x.n_in : 0);
    const S strip(job, x, warp_room);
    const int lane = threadIdx.x % WARP, g = lane / 4;
    const int chunk_len = S::HAS_HALVES ? TABLE : strip.n_supers, table_row = TABLE + TABLE_PAD;
#pragma unroll 1
    for (int begin = 0; begin < strip.n_supers; begin += chunk_len) {
        int end = min(begin + chunk_len, strip.n_supers);
        if (S::HAS_HALVES) {
            if (begin > 0) __syncthreads();
            strip.template fill_table<STRIP / SLICES, WARP>(job, slice, begin, end, table, table_row);
        }
        auto super_of = [&](int i) { return begin + 2 * (slice + i / 2 * SLICES) + i % 2; };
        // Weights of the first superblocks are copied before x is there. Few rows of x then come next to them, not behind them; many are as much
        // as the weights, and come in their turn.
        constexpr int MOST = M <= 2 ? STAGES - 1 : 1, AHEAD = NORMED && MOST > 3 ? 3 : MOST;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (super_of(i) < end) strip.copy_weights(i, super_of(i), end);
            if (M <= 2) commit_copies();
        }
        if (begin == 0) {
            if constexpr (NORMED) {
                // A row to be normed would queue behind more weights, which come while it is normed.
                norm_row(row, x.n_in, weight, normed, [&]() {
#pragma unroll
                    for (int i = AHEAD; i < MOST; i++) {
                        if (super_of(i) < end) strip.copy_weights(i, super_of(i), end);
                        commit_copies();
                    }
                });
            } else {
                await_earlier();
            }
            if (ahead) held = *ahead;
        }
        if constexpr (NORMED) {
        } else if constexpr (M <= 2) {
            strip.template store_first_x<AHEAD>(super_of, end);
        } else {
#pragma unroll
            for (int i = 0; i < STAGES - 1; i++) {
                if (super_of(i) < end) {
                    if (i > 0) strip.copy_weights(i, super_of(i), end);
                    strip.copy_x(i, super_of(i));
                }
                commit_copies();
            }
        }
        if (S::HAS_HALVES) __syncthreads();
#pragma unroll 1
        for (int i = 0; super_of(i) < end; i++) {
            wait_copies<STAGES - 2>();
            __syncwarp();
            int next = i + STAGES - 1;
            if (super_of(next) < end) strip.copy(next, super_of(next), end);
            commit_copies();
            float2 row_d = make_float2(0.0f, 0.0f);
            if (S::HAS_HALVES) {
                const uint16_t* d = table + super_of(i) - begin;
                row_d = make_float2(half_at(d[g * table_row]), half_at(d[(g + 8) * table_row]));
            }
            strip.add(i, super_of(i), normed, row_d, acc);
        }
    }
}

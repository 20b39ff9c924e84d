// The KV store of a layer: pages of 16 tokens; keys and values are each f16, f32 or q8_0, or both e4m3.
//
// K and V are two arrays [n_pages][n_kv_heads][16][row] where row is the head's width rounded up to a multiple of 8, the
// rest zero; so a token of a head is a whole number of 16-byte loads. A slot is page * 16 + place in the page.
// q8_0: rows are a multiple of 32 numbers. A page is n_kv_heads parts of [16][row] bytes, then [16][row / 32] f16 scales; it is padded to
// 256 bytes. A number is scale * byte, the scale max |x| / 127 of its 32 numbers (as GGUF has it).
// e4m3: a byte a number, of four bits of exponent and three of mantissa, without a scale. Rows are a multiple of 16 numbers.
#pragma once
#include "bits.cuh"
#include "reduce.cuh"

constexpr int PAGE = 16;

DEVICE int kv_row(int head_dim) { return (head_dim + 7) / 8 * 8; }

// The first position that a query at `position` sees: where the window begins that ends there, or where the chunk of the window's length
// begins that the position lies in. A window of 0 sees all.
DEVICE int first_seen(int position, int window, int is_chunked) {
    if (window <= 0) return 0;
    return is_chunked ? position - position % window : max(0, position + 1 - window);
}

// Index of the first element of a slot's row.
DEVICE size_t kv_index(uint32_t slot, int head, int n_kv_heads, int row) {
    return (((size_t)(slot / PAGE) * n_kv_heads + head) * PAGE + slot % PAGE) * row;
}

// Where a slot's row begins; + n is n numbers further.
template <class T>
DEVICE T* kv_place(T* store, uint32_t slot, int head, int n_kv_heads, int row) {
    return store + kv_index(slot, head, n_kv_heads, row);
}

// What a pointer to a q8_0 store points to.
struct Q8Store {
    uint8_t byte;
};

// A place in a row of a q8_0 store.
struct Q8Place {
    int8_t* bytes;
    __half* scales;
    int at;
};

DEVICE Q8Place operator+(Q8Place p, int n) {
    p.at += n;
    return p;
}

DEVICE Q8Place kv_place(const Q8Store* store, uint32_t slot, int head, int n_kv_heads, int row) {
    int part = PAGE * row / 32 * 34, place = slot % PAGE;
    size_t page = (size_t)((n_kv_heads * part + 255) / 256) * 256;
    uint8_t* from = (uint8_t*)store + slot / PAGE * page + (size_t)head * part;
    return {(int8_t*)from + place * row, (__half*)(from + PAGE * row) + place * (row / 32), 0};
}

DEVICE Q8Place kv_place(Q8Store* store, uint32_t slot, int head, int n_kv_heads, int row) {
    return kv_place((const Q8Store*)store, slot, head, n_kv_heads, row);
}

DEVICE void load8(Q8Place p, float (&v)[8]) {
    uint2 q = __ldg((const uint2*)(p.bytes + p.at));
    __half_raw raw;
    raw.x = __ldg((const unsigned short*)p.scales + p.at / 32);
    float scale = __half2float(__half(raw));
    const uint32_t words[2] = {q.x, q.y};
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = scale * (float)(int8_t)(words[j / 4] >> (j % 4 * 8));
}

DEVICE void load8(const __half* p, float (&v)[8]) {
    uint4 q = __ldg((const uint4*)p);
    const uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        __half2_raw raw;
        raw.x = (unsigned short)words[j];
        raw.y = (unsigned short)(words[j] >> 16);
        float2 pair = __half22float2(__half2(raw));
        v[2 * j] = pair.x, v[2 * j + 1] = pair.y;
    }
}

DEVICE void load8(const float* p, float (&v)[8]) {
    float4 a = __ldg((const float4*)p), b = __ldg((const float4*)p + 1);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// A number of a store of E4M3.
struct E4m3 {
    uint8_t code;
};

// To the nearest, ties to even codes; finite numbers beyond 448 are 448, and what is not finite is no number.
DEVICE void put(E4m3* p, float x) {
    const uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
    uint32_t code = 0x7f;
    if (magnitude < (127 - 6) << 23) {
        // f32 of the exponent of 2^14 are as far apart as the numbers below 2^-6 are.
        code = __float_as_uint(__uint_as_float(magnitude) + 16384.0f) - 0x46800000u;
    } else if (magnitude < 0x7f800000u) {
        code = min(((magnitude + 0x7ffffu + (magnitude >> 20 & 1)) >> 20) - ((127 - 7) << 3), 0x7eu);
    }
    p->code = (uint8_t)(code | (bits >> 24 & 0x80));
}

// Four codes as numbers of f16, the first and the third, and the second and the fourth: f16 has an exponent that is 8 larger, so they are
// 1/256 of what they stand for. The magnitude that is no number gets a bit with which it is none of f16.
DEVICE void halves_of(uint32_t codes, uint32_t& even, uint32_t& odd) {
    const uint32_t shifted = codes << 8, first = shifted >> 1 & 0x3f803f80u, second = codes >> 1 & 0x3f803f80u;
    even = and_or(shifted, 0x80008000u, and_or(first + 0x00800080u, 0x40004000u, first));
    odd = and_or(codes, 0x80008000u, and_or(second + 0x00800080u, 0x40004000u, second));
}
constexpr float OF_HALVES = 256.0f;

DEVICE void put(__half* p, float x) { *p = __float2half_rn(x); }
DEVICE void put(float* p, float x) { *p = x; }

// A whole warp stores 32 numbers of a row, one a lane.
DEVICE void put(Q8Place p, float x) {
    float scale = warp_max(fabsf(x)) / 127.0f;
    float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    // To the nearest, halves away from zero.
    int size = (int)(fabsf(x) * inverse + 0.5f);
    p.bytes[p.at] = (int8_t)(x < 0.0f ? -size : size);
    if (p.at % WARP == 0) p.scales[p.at / WARP] = __float2half_rn(scale);
}

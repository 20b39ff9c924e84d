// The KV store of a layer: pages of 16 tokens, f16 or f32.
//
// K and V are two arrays [n_pages][n_kv_heads][16][row] where row is the head's width rounded up to a multiple of 8, the
// rest zero; so a token of a head is a whole number of 16-byte loads. A slot is page * 16 + place in the page.
#pragma once
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

DEVICE void put(__half* p, float x) { *p = __float2half_rn(x); }
DEVICE void put(float* p, float x) { *p = x; }

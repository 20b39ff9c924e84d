// F32, F16 and BF16: rows as in the file, each padded with zeros to a multiple of 16 bytes.
//
// A *chunk* is 16 bytes of a row: 4 or 8 weights. A format is a struct with LEN (weights of a chunk), values(chunk, v).
#pragma once
#include "../reduce.cuh"

struct F32 {
    static constexpr int LEN = 4;
    DEVICE void values(uint4 q, float (&v)[LEN]) {
        v[0] = __uint_as_float(q.x), v[1] = __uint_as_float(q.y), v[2] = __uint_as_float(q.z), v[3] = __uint_as_float(q.w);
    }
};

struct F16 {
    static constexpr int LEN = 8;
    DEVICE void values(uint4 q, float (&v)[LEN]) {
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
};

struct BF16 {
    static constexpr int LEN = 8;
    DEVICE void values(uint4 q, float (&v)[LEN]) {
        const uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[2 * j] = __uint_as_float(words[j] << 16);
            v[2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u);
        }
    }
};

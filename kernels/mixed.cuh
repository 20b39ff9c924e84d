// Stores whose keys and values are of two types, which kernels know at run time alone: f16, f32 or q8_0 each.
//
// Few use them, and a kernel for each pair would be as much text as everything that many use. So every load asks for its type, which all lanes have
// in common. A kernel for them takes the types of keys and of values as its last two arguments.
#pragma once
#include "attention_tiles.cuh"

// What a pointer to such a store points to.
struct MixedStore {
    uint8_t byte;
};

// The type of its rows: 0 f16, 1 f32, 2 q8_0.
template <>
struct Kind<MixedStore> {
    int type;

    __device__ __forceinline__ int bytes() const { return type == 0 ? 2 : type == 1 ? 4 : 1; }
    __device__ __forceinline__ bool has_scales() const { return type == 2; }
    // The row of a slot.
    __device__ __forceinline__ const uint8_t* row_at(const MixedStore* store, uint32_t slot, int head, int n_kv_heads, int row) const {
        if (type == 2) return row_bytes(kv_place((const Q8Store*)store, slot, head, n_kv_heads, row));
        return (const uint8_t*)store + kv_index(slot, head, n_kv_heads, row) * bytes();
    }
    // N neighbouring numbers of a tile's row, still to be multiplied by a scale.
    template <int N>
    __device__ __forceinline__ void load(const uint8_t* row, int at, float (&x)[N]) const {
        if (type == 0) {
#pragma unroll
            for (int i = 0; i < N; i += 4) {
                const uint2 q = *(const uint2*)(row + 2 * (at + i));
                const float2 a = __half22float2(*(const __half2*)&q.x), b = __half22float2(*(const __half2*)&q.y);
                x[i] = a.x, x[i + 1] = a.y, x[i + 2] = b.x, x[i + 3] = b.y;
            }
        } else if (type == 1) {
            Rows<float>::load(row + 4 * at, x);
        } else {
#pragma unroll
            for (int i = 0; i < N; i += 4) {
                // A byte plus 128 below the exponent of 2^23 is a number without a conversion.
                const uint32_t word = *(const uint32_t*)(row + at + i) ^ 0x80808080u;
#pragma unroll
                for (int j = 0; j < 4; j++) x[i + j] = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7650 | j)) - 8388736.0f;
            }
        }
    }
};

// A place in such a store to put numbers.
struct MixedPlace {
    Q8Place place;  // of the other types its bytes are the row
    int type;
};

DEVICE MixedPlace operator+(MixedPlace p, int n) {
    p.place = p.place + n;
    return p;
}

// A whole warp stores 32 numbers of a row of q8_0, one a lane.
DEVICE void put(MixedPlace p, float x) {
    if (p.type == 0) {
        put((__half*)p.place.bytes + p.place.at, x);
    } else if (p.type == 1) {
        put((float*)p.place.bytes + p.place.at, x);
    } else {
        put(p.place, x);
    }
}

// Such a store to write.
struct MixedTarget {
    MixedStore* store;
    int type;
};

DEVICE MixedPlace kv_place(MixedTarget to, uint32_t slot, int head, int n_kv_heads, int row) {
    if (to.type == 2) return {kv_place((Q8Store*)to.store, slot, head, n_kv_heads, row), to.type};
    const Kind<MixedStore> kind = {to.type};
    return {{(int8_t*)kind.row_at(to.store, slot, head, n_kv_heads, row), nullptr, 0}, to.type};
}

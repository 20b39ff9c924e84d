// Pages of keys and values as tiles in shared memory, for attention_decode.cu; attention_prefill_of_types.cu has its sizes of rows from here.
//
// A tile is a page of a KV head, or some of its columns: 16 rows of numbers as the store has them, an odd number of 16 bytes apart, so that
// neither reads along a row nor reads down a column have bank conflicts; behind them, for q8_0, the scales of the whole page.
#pragma once
#include <type_traits>

#include "kv.cuh"
#include "mma.cuh"

// Rows of a type in a tile: bytes of a number, numbers of 16 bytes, and how 8 and 16 bytes become numbers that are still to be multiplied by a scale.
template <class T>
struct Rows;

template <>
struct Rows<__half> {
    static constexpr int BYTES = 2, CHUNK = 8;
    static constexpr bool HAS_SCALES = false;
    DEVICE void load(const uint8_t* p, float (&x)[8]) {
        const uint4 q = *(const uint4*)p;
        const uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 pair = __half22float2(*(const __half2*)&words[i]);
            x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
        }
    }
};

template <>
struct Rows<float> {
    static constexpr int BYTES = 4, CHUNK = 4;
    static constexpr bool HAS_SCALES = false;
    template <int N>
    DEVICE void load(const uint8_t* p, float (&x)[N]) {
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            float4 q = ((const float4*)p)[i];
            x[4 * i] = q.x, x[4 * i + 1] = q.y, x[4 * i + 2] = q.z, x[4 * i + 3] = q.w;
        }
    }
};

template <>
struct Rows<Q8Store> {
    static constexpr int BYTES = 1, CHUNK = 16;
    static constexpr bool HAS_SCALES = true;
    template <int N>
    DEVICE void load(const uint8_t* p, float (&x)[N]) {
        uint32_t words[N / 4];
        if (N == 16) {
            uint4 q = *(const uint4*)p;
            words[0] = q.x, words[1] = q.y, words[N / 4 - 2] = q.z, words[N / 4 - 1] = q.w;
        } else {
            uint2 q = *(const uint2*)p;
            words[0] = q.x, words[1] = q.y;
        }
        // A byte plus 128 below the exponent of 2^23 is a number without a conversion.
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = __uint_as_float(__byte_perm(words[i / 4] ^ 0x80808080u, 0x4b000000u, 0x7650 | i % 4)) - 8388736.0f;
    }
};

// Loads of e4m3 are those of whoever multiplies them.
template <>
struct Rows<E4m3> {
    static constexpr int BYTES = 1, CHUNK = 16;
    static constexpr bool HAS_SCALES = false;
};

template <class Place>
DEVICE const uint8_t* row_bytes(Place row) {
    if constexpr (std::is_same<Place, Q8Place>::value) {
        return (const uint8_t*)row.bytes;
    } else {
        return (const uint8_t*)row;
    }
}

// What copies need to know of a type, which is known when they are compiled but for stores of mixed types (mixed.cuh).
template <class T>
struct Kind {
    __device__ __forceinline__ static constexpr int bytes() { return Rows<T>::BYTES; }
    __device__ __forceinline__ static constexpr bool has_scales() { return Rows<T>::HAS_SCALES; }
    // The row of a slot.
    DEVICE const uint8_t* row_at(const T* store, uint32_t slot, int head, int n_kv_heads, int row) {
        return row_bytes(kv_place(store, slot, head, n_kv_heads, row));
    }
};

// Bytes between the rows of a tile.
template <class T>
DEVICE int tile_stride(const Kind<T>& kind, int columns) {
    return (columns * kind.bytes() / 16 | 1) * 16;
}

template <class T>
DEVICE int tile_bytes(const Kind<T>& kind, int columns, int row) {
    return PAGE * tile_stride(kind, columns) + (kind.has_scales() ? row : 0);
}

// The scale of a number of a tile: those of the page's whole rows follow the tile's rows.
DEVICE float tile_scale(const uint8_t* tile, int stride, int row, int place, int column) {
    return __half2float(((const __half*)(tile + PAGE * stride))[place * (row / 32) + column / 32]);
}

// Lanes for `n` neighbouring things: the next power of two.
DEVICE int lanes_of(int n) { return n > 1 ? 1 << (32 - __clz(n - 1)) : 1; }

// How a warp copies tiles of a type: what does not depend on the page. LANES take a row, or as many as it needs where that is 0.
template <class T, int LANES>
struct TileCopy {
    Kind<T> kind;
    int row, row_size, stride, at_once, first_place, chunk;

    __device__ __forceinline__ TileCopy(const Kind<T>& kind, int row, int columns)
        : kind(kind), row(row), row_size(row * kind.bytes()), stride(tile_stride(kind, columns)) {
        const int lane = threadIdx.x % WARP, lanes = LANES > 0 ? LANES : lanes_of(columns * kind.bytes() / 16);
        at_once = WARP / lanes, first_place = lane / lanes, chunk = lane % lanes;
    }

    // Columns [column, column + n), zeros beyond the row and for positions outside of [first, end); `position` is the page's first.
    __device__ __forceinline__ void start(uint8_t* tile, const T* store, uint32_t page, int g, int n_kv_heads, int column, int n,
                                          int position, int first, int end) const {
        const uint8_t* rows = kind.row_at(store, page * PAGE, g, n_kv_heads, row);
        const int at = column * kind.bytes() + chunk * 16, begin = first - position, n_places = end - first;
        const bool is_stored = at < row_size;
        const uint8_t* from = rows + first_place * row_size + (is_stored ? at : 0);
        uint8_t* to = tile + first_place * stride + chunk * 16;
        const bool is_column = chunk * 16 < n * kind.bytes();
        if constexpr (LANES > 0) {
            constexpr int AT_ONCE = WARP / LANES;
            if (is_column) {
#pragma unroll
                for (int i = 0; i < PAGE; i += AT_ONCE)
                    copy16(to + i * stride, from + i * row_size,
                           is_stored && (unsigned)(first_place + i - begin) < (unsigned)n_places);
            }
        } else if (is_column) {
#pragma unroll 4
            for (int i = first_place; i < PAGE; i += at_once) {
                copy16(to, from, is_stored && (unsigned)(i - begin) < (unsigned)n_places);
                from += at_once * row_size, to += at_once * stride;
            }
        }
        if (kind.has_scales()) {
            // Two bytes for each 32 numbers of the page's rows.
#pragma unroll 1
            for (int i = threadIdx.x % WARP * 16; i < row; i += WARP * 16)
                copy16(tile + PAGE * stride + i, rows + PAGE * row_size + i, true);
        }
    }
};

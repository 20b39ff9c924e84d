// Functions of three words, bit by bit, as one instruction each.
#pragma once
#include "reduce.cuh"

// The bits of `first` where `mask` has ones, else those of `second`.
DEVICE uint32_t choose(uint32_t mask, uint32_t first, uint32_t second) {
    uint32_t chosen;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(chosen) : "r"(mask), "r"(first), "r"(second));
    return chosen;
}

DEVICE uint32_t and_xor(uint32_t word, uint32_t mask, uint32_t flipped) {
    uint32_t result;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(word), "r"(mask), "r"(flipped));
    return result;
}
DEVICE uint32_t and_or(uint32_t word, uint32_t mask, uint32_t other) {
    uint32_t result;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(other));
    return result;
}

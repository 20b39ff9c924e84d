//! The kernels on every instruction set, against naive twins and against each other.
//!
//! The library is not compiled as a test (`test = false`): that would compile each format's products for each instruction
//! set a second time, which takes minutes. Public functions are tested from outside. Modules that no caller sees are
//! compiled here from their source, with the tests that stand in them. Invariant: no other module of the library has tests,
//! since nothing would run them; `cargo xtask tidy` checks it.

#![expect(
    clippy::inline_always,
    reason = "as in the library: a vector operation has its instruction set only once it is inlined"
)]
#![expect(
    clippy::cast_ptr_alignment,
    reason = "as in the library: every load and store of a vector is an unaligned one"
)]
#![expect(
    clippy::needless_range_loop,
    reason = "as in the library: indices of several arrays run together"
)]

#[path = "../../src/activation.rs"]
#[expect(
    dead_code,
    unreachable_pub,
    reason = "recurrent layers use one function of it"
)]
mod activation;
#[path = "../../src/activation_block.rs"]
#[expect(dead_code, unreachable_pub, reason = "products use the rest")]
mod activation_block;
#[path = "../../src/math.rs"]
mod math;
#[path = "../../src/recurrence/mod.rs"]
#[expect(unreachable_pub, unused_imports, reason = "the library exports it")]
mod recurrence;
#[path = "../../src/rotation.rs"]
#[expect(unreachable_pub, reason = "the library exports it")]
mod rotation;
#[path = "../../src/simd/mod.rs"]
#[expect(dead_code, unreachable_pub, reason = "products and attention use the rest")]
mod simd;
#[path = "../../src/tile_memory.rs"]
#[expect(dead_code, unreachable_pub, reason = "the library exports it")]
mod tile_memory;

mod attention_bytes;
mod float_products;

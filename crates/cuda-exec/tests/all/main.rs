//! Kernels, operations and the driver layer on simulated GPUs. One binary, so that the tests link once and modules are decoded
//! once.
//!
//! All tests share the simulated driver of the process. Each test adds GPUs of its own, whose ordinals are never given again,
//! so that no test counts the GPUs that there are.

mod adapters;
mod checked_kernels;
mod checks;
mod driver;
mod grid;
mod kernels;
mod nccl;
mod prefill;
mod preparing;
mod products;
mod streams;
mod wide;

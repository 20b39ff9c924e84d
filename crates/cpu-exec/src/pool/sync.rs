//! The synchronization primitives the pool is built from: the standard ones, or loom's when a model check is built.
//!
//! Separate so that the same protocol source runs in production and under `--cfg loom`.

#[cfg(loom)]
pub(super) use loom::{
    hint::spin_loop,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread::yield_now,
};
#[cfg(not(loom))]
pub(super) use std::{
    hint::spin_loop,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread::yield_now,
};

//! The synchronization primitives of the pool: the standard ones, or loom's in a model check.
//!
//! So the same protocol source runs in production and under `--cfg loom`.

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

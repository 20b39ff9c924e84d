//! The synchronization primitives of the engine in one place, so that tests can run the same code under a
//! scheduler that explores thread interleavings.

pub(crate) mod channel;

pub(crate) use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
};

//! [`load_with`]: a load on the CPU, with all threads or quietly.
//!
//! Draft models are loaded this way too. Invariant: a quiet load leaves the processors to other computations
//! of this process.

use std::{
    panic,
    sync::{Mutex, PoisonError, mpsc},
    thread,
};

use tokenmill_cpu_exec::CpuBackend;
use tokenmill_model::{LoadError, LoadProgress};

use crate::{compute::Compute, low_priority::at_low_priority};

/// Loads on a backend, quietly if that was requested.
///
/// # Errors
/// As [`Model::load_on`].
pub(crate) fn load_with<T: Send>(
    backend: CpuBackend,
    compute: &Compute,
    on_progress: &mut dyn FnMut(LoadProgress),
    load: impl FnOnce(CpuBackend, &mut dyn FnMut(LoadProgress)) -> Result<T, LoadError> + Send,
) -> Result<T, LoadError> {
    if compute.is_quiet {
        load_quietly(backend, on_progress, load)
    } else {
        load(backend, on_progress)
    }
}

/// Loads on one thread of low priority. The backend's threads were started before and have the usual one. If the system starts no thread,
/// the load has the caller's priority.
fn load_quietly<T: Send>(
    mut backend: CpuBackend,
    on_progress: &mut dyn FnMut(LoadProgress),
    load: impl FnOnce(CpuBackend, &mut dyn FnMut(LoadProgress)) -> Result<T, LoadError> + Send,
) -> Result<T, LoadError> {
    backend.set_load_threads(1);
    let (sender, progress) = mpsc::channel();
    // A thread that does not start drops its arguments.
    let parts = Mutex::new(Some((backend, load)));
    let take = || {
        let parts = parts.lock().unwrap_or_else(PoisonError::into_inner).take();
        parts.expect("it is loaded once")
    };
    thread::scope(|scope| {
        let started = thread::Builder::new().spawn_scoped(scope, move || {
            let (backend, load) = take();
            at_low_priority(|| {
                // The receiver is gone only where this load's caller panics.
                load(backend, &mut |news| {
                    sender.send(news).unwrap_or_default();
                })
            })
        });
        let Ok(loading) = started else {
            let (backend, load) = take();
            return load(backend, on_progress);
        };
        for news in progress {
            on_progress(news);
        }
        loading
            .join()
            .unwrap_or_else(|payload| panic::resume_unwind(payload))
    })
}

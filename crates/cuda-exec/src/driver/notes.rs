//! [`Notes`]: a record of launches, for tools that measure or show them.
//!
//! Invariant: a launch costs only one load more while no caller requests the record.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use super::{Handle, Kernel, LaunchShape, switch::Switch};

/// A queued launch.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NotedLaunch {
    /// The kernel's module.
    pub module: String,
    /// The kernel's name.
    pub name: String,
    /// The kernel.
    pub kernel: Kernel,
    /// Thread blocks, their threads and dynamic shared memory.
    pub shape: LaunchShape,
}

/// Holds the names of a device's kernels, and the launches since recording was requested.
#[derive(Debug, Default)]
pub(super) struct Notes {
    names: Mutex<HashMap<Handle, [String; 2]>>,
    is_noting: AtomicBool,
    launches: Mutex<Vec<(Kernel, LaunchShape)>>,
}

impl Notes {
    /// Notes the name of a kernel.
    pub(super) fn name(&self, function: Handle, module: &str, kernel: &str) {
        let mut names = lock(&self.names);
        names
            .entry(function)
            .or_insert_with(|| [module.to_owned(), kernel.to_owned()]);
    }

    /// Returns the module and the name of a kernel.
    pub(super) fn names_of(&self, kernel: Kernel) -> [String; 2] {
        lock(&self.names)
            .get(&kernel.function)
            .cloned()
            .unwrap_or_default()
    }

    /// Notes a launch if launches are recorded.
    pub(super) fn launch(&self, kernel: Kernel, shape: LaunchShape) {
        if self.is_noting.load(SeqCst) {
            lock(&self.launches).push((kernel, shape));
        }
    }

    /// Records the launches during a function.
    pub(super) fn of<T>(&self, run: impl FnOnce() -> T) -> (T, Vec<NotedLaunch>) {
        lock(&self.launches).clear();
        let noting = Switch::turn_on(&self.is_noting);
        let result = run();
        drop(noting);
        let launches = std::mem::take(&mut *lock(&self.launches));
        let names = lock(&self.names);
        let named = launches.into_iter().map(|(kernel, shape)| {
            let [module, name] = names.get(&kernel.function).cloned().unwrap_or_default();
            NotedLaunch {
                module,
                name,
                kernel,
                shape,
            }
        });
        (result, named.collect())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokenmill_sim_driver::{SimOptions, Simulator};

    use crate::{Ops, QuantizedRows, driver::simulated};

    #[test]
    fn launches_are_noted_while_they_are_asked_for() {
        let device = simulated(&Simulator::new(&SimOptions::default()));
        let ops = Ops::load(&device).unwrap();
        let x = device.upload("x", &[1.0f32; 64]).unwrap();
        let mut rows = QuantizedRows::new(&device, 2, 32).unwrap();
        let mut quantize = || ops.quantize(2, 32, x.view(), rows.view_mut());
        quantize().unwrap();
        let (done, launches) = device.launches_of(&mut quantize);
        done.unwrap();
        let [launch] = launches.as_slice() else {
            panic!("{launches:?}");
        };
        assert_eq!((&*launch.module, &*launch.name), ("norm", "quantize_rows"));
        assert!(launch.shape.n_threads > 0);
        quantize().unwrap();
        assert!(device.launches_of(|| ()).1.is_empty());
    }

    #[test]
    fn nothing_is_noted_after_something_that_was_noted_panicked() {
        let device = simulated(&Simulator::new(&SimOptions::default()));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            device.launches_of(|| panic!("as a step may"));
        }));
        caught.unwrap_err();
        let ops = Ops::load(&device).unwrap();
        let x = device.upload("x", &[1.0f32; 32]).unwrap();
        let mut rows = QuantizedRows::new(&device, 1, 32).unwrap();
        ops.quantize(1, 32, x.view(), rows.view_mut()).unwrap();
        assert!(super::lock(&device.notes().launches).is_empty());
    }
}

//! [`Gpu`]: a simulated GPU, and the list of them.
//!
//! Its context comes and goes as the program opens and closes the GPU. Invariants: a context is current on a thread or its calls
//! fail; when the last user of a GPU's context releases it, everything in it is freed, including its fault, and the counts
//! remain.

use std::{
    cell::Cell,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use crate::{
    code::{self, Outcome},
    context::{Context, State},
    counts::Counts,
    fault::Fault,
    machine::{GpuSpec, Machine},
};

/// A simulated GPU.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) spec: GpuSpec,
    state: Mutex<State>,
}

impl Gpu {
    fn new(spec: GpuSpec) -> Self {
        Self {
            state: Mutex::new(State {
                context: Context::new(&spec),
                counts: Counts::default(),
                fault: spec.lost_launch.map(|after| Fault::Lose { after }),
                defects: spec.defects.clone(),
                timing: None,
                n_retained: 0,
            }),
            spec,
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// The GPUs of the process, by ordinal.
#[derive(Debug)]
struct Machines {
    gpus: Vec<Option<Arc<Gpu>>>,
    cuda_version: i32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lists the GPUs that the environment describes, and those that were added.
fn machines() -> MutexGuard<'static, Machines> {
    static MACHINES: OnceLock<Mutex<Machines>> = OnceLock::new();
    lock(MACHINES.get_or_init(|| {
        let machine = Machine::from_env();
        Mutex::new(Machines {
            gpus: (0..machine.n_devices)
                .map(|_| Some(Arc::new(Gpu::new(machine.gpu.clone()))))
                .collect(),
            cuda_version: machine.cuda_version,
        })
    }))
}

pub(crate) fn cuda_version() -> i32 {
    machines().cuda_version
}

pub(crate) fn n_devices() -> i32 {
    machines().gpus.len() as i32
}

/// Adds a GPU and returns it with its ordinal.
pub(crate) fn add(spec: GpuSpec) -> (usize, Arc<Gpu>) {
    let gpu = Arc::new(Gpu::new(spec));
    let mut machines = machines();
    machines.gpus.push(Some(Arc::clone(&gpu)));
    (machines.gpus.len() - 1, gpu)
}

/// Removes a GPU from the machine once its context has no user; its ordinal is not reused.
pub(crate) fn remove_if_unused(ordinal: usize) {
    if let Some(slot) = machines().gpus.get_mut(ordinal) {
        slot.take_if(|gpu| gpu.lock().n_retained == 0);
    }
}

pub(crate) fn gpu(device: i32) -> Outcome<Arc<Gpu>> {
    usize::try_from(device)
        .ok()
        .and_then(|ordinal| machines().gpus.get(ordinal).cloned().flatten())
        .ok_or(code::INVALID_DEVICE)
}

thread_local! {
    /// The device whose context is current on this thread.
    static CURRENT: Cell<Option<i32>> = const { Cell::new(None) };
}

/// Opens the context of a device once more. The id of a context is its device's ordinal plus 1.
pub(crate) fn retain(device: i32) -> Outcome<u64> {
    let gpu = gpu(device)?;
    let mut state = gpu.lock();
    state.n_retained += 1;
    state.counts.n_opened += 1;
    Ok(device as u64 + 1)
}

/// Closes the context of a device once; the last close frees everything in it.
pub(crate) fn release(device: i32) -> Outcome {
    let gpu = gpu(device)?;
    let mut state = gpu.lock();
    state.n_retained = state.n_retained.checked_sub(1).ok_or(code::INVALID_CONTEXT)?;
    if state.n_retained == 0 {
        state.context = Context::new(&gpu.spec);
        drop(state);
        // One reference is here, the other is the machine's: no simulator holds the GPU.
        if Arc::strong_count(&gpu) == 2 && gpu.spec.is_added {
            remove_if_unused(device as usize);
        }
    }
    Ok(())
}

/// Makes a context current on this thread, or none.
pub(crate) fn set_current(context: u64) -> Outcome {
    let device = match context {
        0 => None,
        context => {
            let device = i32::try_from(context - 1).map_err(|_| code::INVALID_CONTEXT)?;
            let gpu = gpu(device).map_err(|_| code::INVALID_CONTEXT)?;
            let state = gpu.lock();
            if state.n_retained == 0 {
                return Err(code::INVALID_CONTEXT);
            }
            state.context.check()?;
            Some(device)
        }
    };
    CURRENT.set(device);
    Ok(())
}

/// Returns the device whose context is current on this thread.
pub(crate) fn current() -> Option<i32> {
    CURRENT.get()
}

/// Runs a function in the context that is current on this thread.
pub(crate) fn in_context<T>(act: impl FnOnce(&mut State) -> Outcome<T>) -> Outcome<T> {
    let device = CURRENT.get().ok_or(code::INVALID_CONTEXT)?;
    let gpu = gpu(device).map_err(|_| code::CONTEXT_IS_DESTROYED)?;
    let mut state = gpu.lock();
    if state.n_retained == 0 {
        return Err(code::CONTEXT_IS_DESTROYED);
    }
    act(&mut state)
}

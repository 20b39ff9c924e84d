//! [`NcclApi`]: the functions of NCCL with which the ranks of a group sum, and [`NcclRank`], a rank's end of
//! a communicator.
//! A machine may have GPUs and no NCCL, so the library is loaded at run time, as the driver is. Invariants: a sum is queued on the compute
//! stream of its device, so it adds the results of earlier work, later work reads the sum, and a capture records it; a wait for a device of a
//! communicator ends, with an error if another rank failed, did not arrive in time, or NCCL reports an error. The communicator is then
//! aborted on all ranks.
//!
//! `ncclCommAbort` first waits for the queued work, and returns when the graphs that hold sums of its communicator are destroyed
//! (`commDestroySync` in NCCL's `src/init.cc`). It is therefore called on a thread of its own.

use std::{
    error::Error as _,
    ffi::{CStr, c_char, c_void},
    ptr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use libloading::Library;
use tokenmill_backend::{GroupError, HostGroup};

use super::{
    Device, Handle, Stream, View, ViewMut,
    api::Pointer,
    cuda::{Driver, Watch},
};
use crate::{CudaExecError, error::Result};

/// The library's name, by its interface's version.
const LIBRARY: &str = "libnccl.so.2";
/// The oldest version in which captured and uncaptured sums may follow each other.
const NEEDED_NCCL: (u32, u32) = (2, 13);
/// `ncclFloat32` and `ncclSum`.
const FLOAT32: i32 = 7;
const SUM: i32 = 0;
/// `ncclSuccess` and `ncclInProgress`.
const SUCCESS: i32 = 0;
const IN_PROGRESS: i32 = 7;
/// Limit of the time in which GPUs find each other at load.
const JOIN_TAKES: Duration = Duration::from_mins(1);
/// Time that a rank keeps waiting after another one failed: the sums that the failed rank had queued may still complete the wait.
const GRACE: Duration = Duration::from_secs(1);
/// Limit of the wait for the end of an aborted communicator.
const ABORT_TAKES: Duration = Duration::from_secs(5);
const JOINING: &str = "joining the GPUs by NCCL";
const ADDING: &str = "adding up over the ranks";
const GATHERING: &str = "gathering from the ranks";

/// `ncclUniqueId`, by which ranks find each other.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([c_char; 128]);

/// Writes the table: the name here, NCCL's name, and the arguments.
macro_rules! nccl_functions {
    ($($field:ident = $name:literal ($($ty:ty),*) -> $gives:ty;)*) => {
        /// The functions of NCCL that this crate calls.
        #[derive(Clone, Copy, Debug)]
        pub struct NcclApi {
            $($field: unsafe extern "C" fn($($ty),*) -> $gives,)*
        }

        impl NcclApi {
            /// Takes the functions from `find` by NCCL's names, for instance those of a simulated NCCL.
            ///
            /// # Errors
            /// [`CudaExecError::Failed`] if a function is missing or the library is too old.
            ///
            /// # Safety
            /// `find` returns functions that keep the contract of NCCL's function of that name, for as long
            /// as the process lives.
            pub unsafe fn from_symbols(find: &dyn Fn(&str) -> Option<*const c_void>) -> Result<Self> {
                let missing = |name: &str| not_loaded(format!("it has no function `{name}`"));
                let api = Self {
                    $($field: {
                        let address = find($name).filter(|address| !address.is_null()).ok_or_else(|| missing($name))?;
                        // SAFETY: the caller says that this is NCCL's function of this name, whose arguments are these.
                        unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn($($ty),*) -> $gives>(address) }
                    },)*
                };
                api.check_version()?;
                Ok(api)
            }
        }
    };
}

nccl_functions! {
    version = "ncclGetVersion" (*mut i32) -> i32;
    unique_id = "ncclGetUniqueId" (*mut UniqueId) -> i32;
    init_rank = "ncclCommInitRank" (*mut Pointer, i32, UniqueId, i32) -> i32;
    all_reduce = "ncclAllReduce" (*const c_void, *mut c_void, usize, i32, i32, Pointer, Pointer) -> i32;
    all_gather = "ncclAllGather" (*const c_void, *mut c_void, usize, i32, Pointer, Pointer) -> i32;
    async_error = "ncclCommGetAsyncError" (Pointer, *mut i32) -> i32;
    abort = "ncclCommAbort" (Pointer) -> i32;
    error_text = "ncclGetErrorString" (i32) -> *const c_char;
}

fn not_loaded(reason: String) -> CudaExecError {
    CudaExecError::Failed {
        operation: "loading NCCL",
        reason,
    }
}

/// Returns the version as NCCL numbers it: 22105 for 2.21.5.
fn version_from(number: i32) -> (u32, u32) {
    (number as u32 / 10_000, number as u32 % 10_000 / 100)
}

impl NcclApi {
    /// Takes the functions from the system's library, which is loaded once and never unloaded.
    ///
    /// # Errors
    /// [`CudaExecError::Failed`] if there is none, or it is too old.
    pub fn of_system() -> Result<Self> {
        static LOADED: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
        let library = LOADED.get_or_init(|| {
            // SAFETY: the library is NCCL by its name, whose initializers may run at any time.
            unsafe { Library::new(LIBRARY) }.map_err(|error| match error.source() {
                // The message of the system's loader, with the library's name.
                Some(source) => source.to_string(),
                None => format!("{LIBRARY}: {error}"),
            })
        });
        let library = library.as_ref().map_err(|reason| not_loaded(reason.clone()))?;
        let find = |name: &str| {
            // SAFETY: the address is only passed on; its type is the table's.
            let symbol = unsafe { library.get::<*const c_void>(name.as_bytes()) };
            symbol.ok().map(|symbol| *symbol)
        };
        // SAFETY: these are the functions of NCCL's library.
        unsafe { Self::from_symbols(&find) }
    }

    fn check_version(&self) -> Result<()> {
        let mut version = 0;
        // SAFETY: the pointer is to a local.
        let code = unsafe { (self.version)(&raw mut version) };
        self.done("loading NCCL", code)?;
        let found = version_from(version);
        if found < NEEDED_NCCL {
            let (major, minor) = NEEDED_NCCL;
            return Err(not_loaded(format!(
                "it is NCCL {}.{}, {major}.{minor} or newer is needed",
                found.0, found.1
            )));
        }
        Ok(())
    }

    fn describe(&self, code: i32) -> String {
        // SAFETY: the function takes any code.
        let text = unsafe { (self.error_text)(code) };
        if text.is_null() {
            return format!("NCCL error {code}");
        }
        // SAFETY: NCCL gives a static text that ends with a zero byte.
        let text = unsafe { CStr::from_ptr(text) };
        format!("NCCL error {code}: {}", text.to_string_lossy())
    }

    fn done(&self, operation: &'static str, code: i32) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        Err(CudaExecError::Failed {
            operation,
            reason: self.describe(code),
        })
    }
}

fn pointer(handle: Handle) -> Pointer {
    ptr::with_exposed_provenance_mut(handle as usize)
}

/// A communicator as one rank holds it.
#[derive(Debug)]
struct Communicator {
    api: NcclApi,
    handle: Handle,
    group: HostGroup,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the failure of a rank became known.
    failed_since: Option<Instant>,
    /// Why it was aborted.
    failure: Option<String>,
    /// The thread that aborts it.
    end: Option<JoinHandle<()>>,
}

/// A device as a rank of a communicator, which sums with the others.
#[derive(Debug)]
pub struct NcclRank {
    driver: Arc<Driver>,
    communicator: Arc<Communicator>,
}

impl NcclRank {
    /// Makes devices the ranks of a communicator, in their order. `group`, which has as many ranks, reports
    /// failures, and its patience limits the wait for a device.
    ///
    /// # Errors
    /// [`CudaExecError::Failed`] if NCCL cannot join them, or takes longer than a minute. Threads that still
    /// wait within NCCL then are left there.
    ///
    /// # Panics
    /// If the group has another number of ranks.
    pub fn join(api: &NcclApi, devices: &[Device], group: &HostGroup) -> Result<Vec<Self>> {
        let n_ranks = devices.len();
        assert_eq!(n_ranks, group.n_ranks(), "a device for each rank");
        let mut id = UniqueId([0; 128]);
        // SAFETY: the pointer is to a local.
        api.done(JOINING, unsafe { (api.unique_id)(&raw mut id) })?;
        let (sender, joined) = mpsc::channel();
        for (rank, device) in devices.iter().enumerate() {
            let (api, driver, sender) = (*api, Arc::clone(device.driver()), sender.clone());
            let join = move || {
                // If the receiver is gone, the load has ended with an error.
                let _ = sender.send((rank, init_rank(&api, &driver, n_ranks, id, rank)));
            };
            (thread::Builder::new()
                .name(format!("joining rank {rank}"))
                .spawn(join))
            .map_err(|error| CudaExecError::Failed {
                operation: JOINING,
                reason: error.to_string(),
            })?;
        }
        drop(sender);
        let until = Instant::now() + JOIN_TAKES;
        let mut ranks: Vec<Option<Self>> = devices.iter().map(|_| None).collect();
        for _ in devices {
            let rest = until.saturating_duration_since(Instant::now());
            let (rank, handle) = joined.recv_timeout(rest).map_err(|error| CudaExecError::Failed {
                operation: JOINING,
                reason: match error {
                    RecvTimeoutError::Timeout => {
                        format!("they did not join within {} s", JOIN_TAKES.as_secs())
                    }
                    RecvTimeoutError::Disconnected => "a thread of it panicked".to_owned(),
                },
            })?;
            ranks[rank] = Some(Self {
                driver: Arc::clone(devices[rank].driver()),
                communicator: Arc::new(Communicator {
                    api: *api,
                    handle: handle?,
                    group: group.clone(),
                    state: Mutex::default(),
                }),
            });
        }
        let ranks: Vec<Self> = ranks.into_iter().flatten().collect();
        for rank in &ranks {
            rank.driver.set_watch(Arc::clone(&rank.communicator) as _);
        }
        Ok(ranks)
    }

    /// Returns whether this rank belongs to the device.
    pub fn is_of(&self, device: &Device) -> bool {
        Arc::ptr_eq(&self.driver, device.driver())
    }

    /// Starts to abort the rank's communicator: work on the device that waits for other ranks ends. Memory and graphs of the device can then
    /// be freed without waiting for ranks that do not arrive.
    pub fn end(&self) {
        let mut state = self.communicator.lock();
        self.communicator
            .abort(&mut state, "its group has ended".to_owned());
    }

    /// Queues, on the compute stream, the replacement of values by their sum over the ranks. All ranks get the same bits. NCCL chooses the
    /// order of addition, which may depend on the number of ranks, of values, and on the links between the devices.
    ///
    /// # Errors
    /// [`CudaExecError::Lost`] once the communicator was aborted, or NCCL's error.
    pub fn all_reduce(&mut self, values: &ViewMut<'_, f32>) -> Result<()> {
        let communicator = self.usable(ADDING)?;
        if values.is_empty() {
            return Ok(());
        }
        let at = pointer(values.address());
        self.driver.queue_foreign(ADDING, Stream::Compute, |stream| {
            // SAFETY: the view is device memory of so many floats, and queued memory keeps its place until the work ran, as with a launch;
            // the communicator is this device's and not aborted, stream and context are the device's.
            let code = unsafe {
                (communicator.api.all_reduce)(
                    at.cast_const(),
                    at,
                    values.len(),
                    FLOAT32,
                    SUM,
                    pointer(communicator.handle),
                    stream,
                )
            };
            communicator.api.done(ADDING, code)
        })
    }

    /// Queues, on the compute stream, a gather of the values of all ranks into `all`, one rank after the
    /// other, each with as many values.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`] if `all` has no room for them, and the errors of [`Self::all_reduce`].
    pub fn all_gather(&mut self, own: View<'_, f32>, all: &ViewMut<'_, f32>) -> Result<()> {
        let communicator = self.usable(GATHERING)?;
        let n_values = own.len() * communicator.group.n_ranks();
        if n_values > all.len() {
            return Err(CudaExecError::Bounds {
                range: 0..n_values,
                len: all.len(),
            });
        }
        if own.is_empty() {
            return Ok(());
        }
        let (from, to) = (pointer(own.address()), pointer(all.address()));
        self.driver.queue_foreign(GATHERING, Stream::Compute, |stream| {
            // SAFETY: both views are device memory, the second of as many floats as all ranks give; the rest is as for a sum.
            let code = unsafe {
                (communicator.api.all_gather)(
                    from.cast_const(),
                    to,
                    own.len(),
                    FLOAT32,
                    pointer(communicator.handle),
                    stream,
                )
            };
            communicator.api.done(GATHERING, code)
        })
    }

    /// Returns the communicator, unless it was aborted.
    fn usable(&self, operation: &'static str) -> Result<&Communicator> {
        match &self.communicator.lock().failure {
            None => Ok(&self.communicator),
            Some(failure) => Err(CudaExecError::Lost {
                operation,
                reason: format!(
                    "the communicator was aborted: {failure}; the GPUs add up again once the program is started again"
                ),
            }),
        }
    }
}

/// Joins a communicator as one rank, which waits for the others.
fn init_rank(api: &NcclApi, driver: &Driver, n_ranks: usize, id: UniqueId, rank: usize) -> Result<Handle> {
    driver.enter_for(JOINING)?;
    let mut communicator = ptr::null_mut();
    // SAFETY: the pointer is to a local, the context of the rank's device is current.
    let code = unsafe { (api.init_rank)(&raw mut communicator, n_ranks as i32, id, rank as i32) };
    api.done(JOINING, code)?;
    Ok(communicator.expose_provenance() as Handle)
}

impl Communicator {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the error that NCCL found asynchronously, if any.
    fn async_error(&self) -> Option<String> {
        let mut code = SUCCESS;
        // SAFETY: the communicator is not aborted, as the caller saw under the lock that it holds; the pointer is to a local.
        let asked = unsafe { (self.api.async_error)(pointer(self.handle), &raw mut code) };
        let code = if asked == SUCCESS { code } else { asked };
        (code != SUCCESS && code != IN_PROGRESS).then(|| self.api.describe(code))
    }

    /// Aborts the communicator; work on the device that waits for other ranks ends without them.
    fn abort(&self, state: &mut State, failure: String) {
        if state.failure.is_some() {
            return;
        }
        state.failure = Some(failure);
        let (abort, handle) = (self.api.abort, self.handle);
        let end = move || {
            // SAFETY: it is aborted once, and no call names it any more since `failure` is set.
            let _ = unsafe { abort(pointer(handle)) };
        };
        // If no thread can be started, the host's waits still end, but the device's work does not.
        state.end = thread::Builder::new()
            .name("ending NCCL".to_owned())
            .spawn(end)
            .ok();
    }
}

impl Watch for Communicator {
    fn look(&self, waited: Duration) -> Result<()> {
        let mut state = self.lock();
        if state.failure.is_none() {
            match self.group.failure() {
                None => state.failed_since = None,
                Some(_) => {
                    state.failed_since.get_or_insert_with(Instant::now);
                }
            }
            let is_over = state.failed_since.is_some_and(|since| since.elapsed() > GRACE);
            let patience = self.group.patience();
            let missing = || GroupError::RankMissing {
                waited_s: patience.as_secs(),
            };
            let failure = match self.async_error() {
                Some(error) => Some(error),
                None if is_over => self.group.failure().map(|failure| failure.to_string()),
                None => (waited > patience).then(|| missing().to_string()),
            };
            if let Some(failure) = failure {
                self.abort(&mut state, failure);
            }
        }
        match &state.failure {
            None => Ok(()),
            Some(failure) => Err(CudaExecError::Failed {
                operation: ADDING,
                reason: failure.clone(),
            }),
        }
    }
}

impl Drop for NcclRank {
    /// Ends the rank's communicator, whose graphs are gone, without waiting for the other ranks.
    fn drop(&mut self) {
        self.end();
        let Some(end) = self.communicator.lock().end.take() else {
            return;
        };
        let began = Instant::now();
        while !end.is_finished() && began.elapsed() < ABORT_TAKES {
            thread::sleep(Duration::from_millis(1));
        }
        if end.is_finished() {
            let _ = end.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn old_version(to: *mut i32) -> i32 {
        // SAFETY: the caller's pointer.
        unsafe { to.write(21_004) };
        SUCCESS
    }

    #[test]
    fn a_library_that_is_old_or_lacks_a_function_is_refused() {
        let refusal = |find: &dyn Fn(&str) -> Option<*const c_void>| {
            // SAFETY: the simulated NCCL keeps the contract of the real one's functions, and so does the other version.
            unsafe { NcclApi::from_symbols(find) }.unwrap_err().to_string()
        };
        for missing in [
            "ncclGetVersion",
            "ncclAllReduce",
            "ncclAllGather",
            "ncclCommAbort",
        ] {
            let find = |name: &str| {
                (name != missing)
                    .then(|| tokenmill_sim_driver::nccl_symbol(name))
                    .flatten()
            };
            assert_eq!(
                refusal(&find),
                format!("loading NCCL failed: it has no function `{missing}`")
            );
        }
        let old = |name: &str| match name {
            "ncclGetVersion" => Some(old_version as *const c_void),
            _ => tokenmill_sim_driver::nccl_symbol(name),
        };
        assert_eq!(
            refusal(&old),
            "loading NCCL failed: it is NCCL 2.10, 2.13 or newer is needed"
        );
    }
}

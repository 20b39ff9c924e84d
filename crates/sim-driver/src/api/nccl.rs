//! NCCL's functions, by the names under which a program looks them up.
//!
//! Only pointers are handled here; the work is [`Communicator`](crate::nccl::Communicator)'s. Handles are numbers that are never dereferenced.
//! Invariant: a call on a missing communicator is refused.

use std::{
    collections::HashMap,
    ffi::{CStr, c_char, c_int, c_void},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use tokenmill_cuda_exec::NcclApi;

use super::pointer;
use crate::{
    gpu,
    nccl::{
        Call, Communicator, INVALID_ARGUMENT, INVALID_USAGE, RankEnd, SUCCESS, SYSTEM_ERROR,
        UNHANDLED_CUDA_ERROR,
    },
};

/// The version, as NCCL numbers it.
const VERSION: c_int = 22_105;
/// Limit of the wait for the end of graphs that use an aborted communicator; a real NCCL waits without a limit.
const GRAPHS_TAKE: Duration = Duration::from_secs(30);

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; 128]);

#[derive(Debug, Default)]
struct Communicators {
    /// The id by which ranks find each other; removed when all have joined or given up.
    joining: HashMap<[u8; 128], (Arc<Communicator>, usize)>,
    /// Ends of ranks, by their handles.
    ends: HashMap<u64, Arc<RankEnd>>,
}

fn communicators() -> MutexGuard<'static, Communicators> {
    static COMMUNICATORS: OnceLock<Mutex<Communicators>> = OnceLock::new();
    (COMMUNICATORS.get_or_init(Mutex::default).lock()).unwrap_or_else(PoisonError::into_inner)
}

fn number() -> u64 {
    static N_NUMBERS: AtomicU64 = AtomicU64::new(1);
    N_NUMBERS.fetch_add(1, Relaxed)
}

/// Joins a communicator on the current device.
fn join(id: [u8; 128], n_ranks: c_int, rank: c_int) -> Result<u64, c_int> {
    let device = gpu::current().ok_or(UNHANDLED_CUDA_ERROR)?;
    let (Ok(n_ranks), Ok(rank)) = (usize::try_from(n_ranks), usize::try_from(rank)) else {
        return Err(INVALID_ARGUMENT);
    };
    let communicator = {
        let mut all = communicators();
        let entry = all.joining.entry(id);
        let (communicator, n_came) = entry.or_insert_with(|| (Arc::new(Communicator::new(n_ranks)), 0));
        if communicator.n_ranks() != n_ranks {
            return Err(INVALID_ARGUMENT);
        }
        *n_came += 1;
        let communicator = Arc::clone(communicator);
        if *n_came == n_ranks {
            all.joining.remove(&id);
        }
        communicator
    };
    let end = communicator.join(rank, device)?;
    let handle = number();
    communicators().ends.insert(handle, Arc::new(end));
    Ok(handle)
}

fn end_of(communicator: *mut c_void) -> Result<Arc<RankEnd>, c_int> {
    let ends = &communicators().ends;
    ends.get(&(communicator as u64)).cloned().ok_or(INVALID_ARGUMENT)
}

/// Queues a call on a stream of the rank's device.
fn queue(
    places: [u64; 2],
    call: Option<Call>,
    communicator: *mut c_void,
    stream: *mut c_void,
) -> Result<(), c_int> {
    let end = end_of(communicator)?;
    let call = call.ok_or(INVALID_ARGUMENT)?;
    if gpu::current() != Some(end.device()) {
        return Err(INVALID_USAGE);
    }
    gpu::in_context(|state| state.context.queue_collective(stream as u64, end, places, call))
        .map_err(|_| UNHANDLED_CUDA_ERROR)
}

/// Ends the rank's calls, and returns when no graph and no queue uses it any more.
fn abort(communicator: *mut c_void) -> Result<(), c_int> {
    let end = communicators()
        .ends
        .remove(&(communicator as u64))
        .ok_or(INVALID_ARGUMENT)?;
    end.abort();
    let began = Instant::now();
    while Arc::strong_count(&end) > 1 {
        if began.elapsed() > GRAPHS_TAKE {
            return Err(SYSTEM_ERROR);
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn result(outcome: Result<(), c_int>) -> c_int {
    outcome.err().unwrap_or(SUCCESS)
}

fn text_of(result: c_int) -> &'static CStr {
    match result {
        SUCCESS => c"no error",
        UNHANDLED_CUDA_ERROR => c"unhandled cuda error",
        SYSTEM_ERROR => c"unhandled system error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        _ => c"unknown result code",
    }
}

/// Returns the functions for callers in this process.
pub(crate) fn nccl_functions() -> NcclApi {
    // SAFETY: the functions keep the contract of NCCL's.
    unsafe { NcclApi::from_symbols(&nccl_symbol) }.expect("every function is here")
}

/// Writes exported functions (their names, arguments and bodies) and [`nccl_symbol`]. All callers keep NCCL's contract: pointers are valid for
/// the function's reads and writes.
macro_rules! exported {
    ($($name:ident($($argument:ident: $ty:ty),*) -> $gives:ty $body:block)*) => {
        $(
            // SAFETY: the names are NCCL's, and this library stands in its place.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $ty),*) -> $gives $body
        )*

        /// Returns the address of NCCL's function with this name, as the loader of shared libraries gives it.
        pub fn nccl_symbol(name: &str) -> Option<*const c_void> {
            match name {
                $(stringify!($name) => {
                    Some($name as unsafe extern "C" fn($($ty),*) -> $gives as *const c_void)
                })*
                _ => None,
            }
        }
    };
}

exported! {
    ncclGetVersion(version: *mut c_int) -> c_int {
        // SAFETY: the caller's pointer.
        unsafe { version.write(VERSION) };
        SUCCESS
    }

    ncclGetUniqueId(id: *mut UniqueId) -> c_int {
        let mut bytes = [0; 128];
        bytes[..8].copy_from_slice(&number().to_le_bytes());
        // SAFETY: the caller's pointer.
        unsafe { id.write(UniqueId(bytes)) };
        SUCCESS
    }

    ncclCommInitRank(communicator: *mut *mut c_void, n_ranks: c_int, id: UniqueId, rank: c_int) -> c_int {
        match join(id.0, n_ranks, rank) {
            Ok(handle) => {
                // SAFETY: the caller's pointer.
                unsafe { communicator.write(pointer(handle)) };
                SUCCESS
            }
            Err(code) => code,
        }
    }

    ncclAllReduce(
        from: *const c_void,
        to: *mut c_void,
        n_values: usize,
        data_type: c_int,
        operation: c_int,
        communicator: *mut c_void,
        stream: *mut c_void
    ) -> c_int {
        let call = Call::sum(n_values, data_type, operation);
        result(queue([from as u64, to as u64], call, communicator, stream))
    }

    ncclAllGather(
        from: *const c_void,
        to: *mut c_void,
        n_values: usize,
        data_type: c_int,
        communicator: *mut c_void,
        stream: *mut c_void
    ) -> c_int {
        let call = Call::gather(n_values, data_type);
        result(queue([from as u64, to as u64], call, communicator, stream))
    }

    ncclCommGetAsyncError(communicator: *mut c_void, code: *mut c_int) -> c_int {
        match end_of(communicator) {
            Ok(end) => {
                // SAFETY: the caller's pointer.
                unsafe { code.write(end.error()) };
                SUCCESS
            }
            Err(code) => code,
        }
    }

    ncclCommAbort(communicator: *mut c_void) -> c_int {
        result(abort(communicator))
    }

    ncclGetErrorString(code: c_int) -> *const c_char {
        text_of(code).as_ptr()
    }
}

//! The C interface: the context of a call, the calls that a capture refuses, and the time at which queued
//! work runs.

use std::{
    ffi::{c_int, c_uint, c_void},
    mem::transmute,
    ptr, thread,
};

use super::symbol;
use crate::{Fault, SimOptions, Simulator};

const INVALID_CONTEXT: c_int = 201;
const INVALID_HANDLE: c_int = 400;
const CONTEXT_IS_DESTROYED: c_int = 709;
const CAPTURE_UNSUPPORTED: c_int = 900;
const CAPTURE_INVALIDATED: c_int = 901;

/// Calls a function of the driver by its name.
macro_rules! call {
    ($name:literal, $($ty:ty: $argument:expr),*) => {{
        let address = symbol($name).expect("the driver has it");
        // SAFETY: the function of this name has these arguments.
        let function = unsafe { transmute::<*const c_void, unsafe extern "C" fn($($ty),*) -> c_int>(address) };
        // SAFETY: the arguments are valid for the function.
        unsafe { function($($argument),*) }
    }};
}

/// Opens a context of a GPU that is current on this thread.
fn open(simulator: &Simulator) -> *mut c_void {
    let mut context = ptr::null_mut();
    let device = simulator.ordinal() as c_int;
    assert_eq!(
        call!("cuDevicePrimaryCtxRetain", *mut *mut c_void: &raw mut context, c_int: device),
        0
    );
    assert_eq!(call!("cuCtxSetCurrent", *mut c_void: context), 0);
    context
}

fn stream() -> *mut c_void {
    let mut stream = ptr::null_mut();
    assert_eq!(
        call!("cuStreamCreate", *mut *mut c_void: &raw mut stream, c_uint: 1),
        0
    );
    stream
}

fn alloc() -> (c_int, u64) {
    let mut address = 0;
    (
        call!("cuMemAlloc_v2", *mut u64: &raw mut address, usize: 16),
        address,
    )
}

fn event() -> (c_int, *mut c_void) {
    let mut event = ptr::null_mut();
    (
        call!("cuEventCreate", *mut *mut c_void: &raw mut event, c_uint: 0),
        event,
    )
}

#[test]
fn a_call_without_a_current_context_fails() {
    let simulator = Simulator::new(&SimOptions::default());
    assert_eq!(alloc().0, INVALID_CONTEXT);
    let context = open(&simulator);
    assert_eq!(alloc().0, 0);
    // A context that is current on one thread is not current on another.
    let elsewhere = thread::spawn(|| (alloc().0, event().0)).join().unwrap();
    assert_eq!(elsewhere, (INVALID_CONTEXT, INVALID_CONTEXT));
    assert_eq!(call!("cuCtxSetCurrent", *mut c_void: ptr::null_mut()), 0);
    assert_eq!(alloc().0, INVALID_CONTEXT);
    assert_eq!(event().0, INVALID_CONTEXT);
    assert_eq!(call!("cuCtxSetCurrent", *mut c_void: context), 0);
    assert_eq!(alloc().0, 0);
}

#[test]
fn what_belongs_to_another_context_is_not_found() {
    let simulators = [(); 2].map(|()| Simulator::new(&SimOptions::default()));
    open(&simulators[0]);
    let (stream_of_first, (_, event_of_first)) = (stream(), event());
    open(&simulators[1]);
    let stream_of_second = stream();
    let record = |event, stream| call!("cuEventRecord", *mut c_void: event, *mut c_void: stream);
    assert_eq!(record(event_of_first, stream_of_second), INVALID_HANDLE);
    assert_eq!(record(event().1, stream_of_first), INVALID_HANDLE);
    assert_eq!(record(event().1, stream_of_second), 0);
}

#[test]
fn a_context_goes_with_its_last_user() {
    let simulator = Simulator::new(&SimOptions::default());
    let device = simulator.ordinal() as c_int;
    let context = open(&simulator);
    open(&simulator);
    let release = || call!("cuDevicePrimaryCtxRelease_v2", c_int: device);
    assert_eq!(release(), 0);
    assert_eq!(alloc().0, 0);
    assert_eq!(release(), 0);
    assert_eq!(alloc().0, CONTEXT_IS_DESTROYED);
    assert_eq!(release(), INVALID_CONTEXT);
    assert_eq!(call!("cuCtxSetCurrent", *mut c_void: context), INVALID_CONTEXT);
}

#[test]
fn what_cannot_be_captured_spoils_the_capture() {
    let simulator = Simulator::new(&SimOptions::default());
    open(&simulator);
    let stream = stream();
    let begin = || call!("cuStreamBeginCapture_v2", *mut c_void: stream, c_int: 1);
    let end = || {
        let mut graph = ptr::null_mut();
        call!("cuStreamEndCapture", *mut c_void: stream, *mut *mut c_void: &raw mut graph)
    };
    assert_eq!((begin(), end()), (0, 0));
    assert_eq!(begin(), 0);
    assert!(simulator.is_capturing());
    assert_eq!(alloc().0, CAPTURE_UNSUPPORTED);
    assert_eq!(end(), CAPTURE_INVALIDATED);
    assert!(!simulator.is_capturing());
    assert_eq!((begin(), end()), (0, 0));
}

#[test]
fn a_copy_runs_when_it_is_waited_for() {
    let simulator = Simulator::new(&SimOptions::default());
    open(&simulator);
    let (stream, (_, address), (_, event)) = (stream(), alloc(), event());
    let mut memory: *mut c_void = ptr::null_mut();
    assert_eq!(
        call!("cuMemHostAlloc", *mut *mut c_void: &raw mut memory, usize: 16, c_uint: 0),
        0
    );
    assert_eq!(
        call!("cuMemsetD8Async", u64: address, u8: 7, usize: 16, *mut c_void: stream),
        0
    );
    let download =
        || call!("cuMemcpyDtoHAsync_v2", *mut c_void: memory, u64: address, usize: 16, *mut c_void: stream);
    assert_eq!(download(), 0);
    assert_eq!(call!("cuEventRecord", *mut c_void: event, *mut c_void: stream), 0);
    // SAFETY: the driver gave 16 bytes, and no copy runs before it is waited for.
    assert_eq!(unsafe { memory.cast::<u8>().read() }, 0);
    assert_eq!(call!("cuEventSynchronize", *mut c_void: event), 0);
    // SAFETY: as above.
    assert_eq!(unsafe { memory.cast::<u8>().read() }, 7);
    assert_eq!(
        (simulator.copy_counts(), simulator.downloaded_bytes()),
        ((0, 1), 16)
    );
    simulator.inject(Fault::Download { after: 1 });
    assert_eq!((download(), download(), download()), (0, 1, 0));
    // Two copies use the memory.
    assert_ne!(call!("cuMemFreeHost", *mut c_void: memory), 0);
    assert_ne!(alloc().0, 0);
}

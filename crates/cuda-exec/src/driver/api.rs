//! [`Api`]: the functions of the CUDA driver, found by their names.
//!
//! The functions come from the real library, which is loaded at run time, or from a test's simulated driver. Invariant: a
//! value has every function that this crate calls, so a driver that lacks one is an error before anything is called.

use std::ffi::{c_char, c_void};

use cudarc::driver::sys;

use super::NEEDED_CUDA;
use crate::{CudaExecError, error::Result};

/// The result of a call; 0 is success.
pub(super) type Code = u32;
/// A context, stream, module, function, event or graph of the driver, or host memory.
pub(super) type Pointer = *mut c_void;

/// `cuLaunchKernelEx`.
pub(super) type LaunchWithAttributes =
    unsafe extern "C" fn(*const sys::CUlaunchConfig, Pointer, *mut Pointer, *mut Pointer) -> Code;

/// `cuDeviceGetUuid`.
pub(super) type DeviceUuid = unsafe extern "C" fn(*mut [u8; 16], i32) -> Code;

/// Writes the table: the name here, the driver's name, and the arguments.
macro_rules! driver_functions {
    ($($field:ident = $name:literal ($($ty:ty),*);)*) => {
        /// The functions of a CUDA driver that this crate calls.
        #[derive(Clone, Copy, Debug)]
        pub struct Api {
            $(pub(super) $field: unsafe extern "C" fn($($ty),*) -> Code,)*
            /// `cuLaunchKernelEx`, which drivers have from CUDA 11.8 on.
            pub(super) launch_with_attributes: Option<LaunchWithAttributes>,
            /// `cuDeviceGetUuid`; without it, cards are identified by their numbers.
            pub(super) device_uuid: Option<DeviceUuid>,
        }

        impl Api {
            /// Finds the functions by name. The error is the name of the first missing one.
            ///
            /// # Safety
            /// As [`Self::from_symbols`].
            unsafe fn find(
                find: &dyn Fn(&str) -> Option<*const c_void>,
            ) -> std::result::Result<Self, &'static str> {
                Ok(Self {
                    $($field: {
                        let address = find($name).filter(|address| !address.is_null()).ok_or($name)?;
                        // SAFETY: the caller says that this is the driver's function of this name, whose arguments are these.
                        unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn($($ty),*) -> Code>(address) }
                    },)*
                    launch_with_attributes: {
                        let address = find("cuLaunchKernelEx").filter(|address| !address.is_null());
                        // SAFETY: as above.
                        address.map(|address| unsafe { std::mem::transmute::<*const c_void, LaunchWithAttributes>(address) })
                    },
                    device_uuid: {
                        let address = find("cuDeviceGetUuid").filter(|address| !address.is_null());
                        // SAFETY: as above.
                        address.map(|address| unsafe { std::mem::transmute::<*const c_void, DeviceUuid>(address) })
                    },
                })
            }
        }
    };
}

driver_functions! {
    init = "cuInit" (u32);
    driver_version = "cuDriverGetVersion" (*mut i32);
    device_count = "cuDeviceGetCount" (*mut i32);
    device = "cuDeviceGet" (*mut i32, i32);
    device_name = "cuDeviceGetName" (*mut c_char, i32, i32);
    device_total_bytes = "cuDeviceTotalMem_v2" (*mut usize, i32);
    device_attribute = "cuDeviceGetAttribute" (*mut i32, i32, i32);
    retain_context = "cuDevicePrimaryCtxRetain" (*mut Pointer, i32);
    release_context = "cuDevicePrimaryCtxRelease_v2" (i32);
    set_context = "cuCtxSetCurrent" (Pointer);
    memory_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
    alloc = "cuMemAlloc_v2" (*mut u64, usize);
    free = "cuMemFree_v2" (u64);
    alloc_host = "cuMemHostAlloc" (*mut Pointer, usize, u32);
    free_host = "cuMemFreeHost" (Pointer);
    synchronize_context = "cuCtxSynchronize" ();
    load_module = "cuModuleLoadDataEx" (*mut Pointer, *const c_void, u32, *mut i32, *mut Pointer);
    function = "cuModuleGetFunction" (*mut Pointer, Pointer, *const c_char);
    function_attribute = "cuFuncGetAttribute" (*mut i32, i32, Pointer);
    occupancy = "cuOccupancyMaxActiveBlocksPerMultiprocessor" (*mut i32, Pointer, i32, usize);
    set_function_attribute = "cuFuncSetAttribute" (Pointer, i32, i32);
    launch = "cuLaunchKernel" (Pointer, u32, u32, u32, u32, u32, u32, u32, Pointer, *mut Pointer, *mut Pointer);
    upload = "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Pointer);
    download = "cuMemcpyDtoHAsync_v2" (Pointer, u64, usize, Pointer);
    copy = "cuMemcpyDtoDAsync_v2" (u64, u64, usize, Pointer);
    copy_rows = "cuMemcpy2DAsync_v2" (*const sys::CUDA_MEMCPY2D, Pointer);
    fill = "cuMemsetD8Async" (u64, u8, usize, Pointer);
    create_stream = "cuStreamCreate" (*mut Pointer, u32);
    destroy_stream = "cuStreamDestroy_v2" (Pointer);
    wait_event = "cuStreamWaitEvent" (Pointer, Pointer, u32);
    begin_capture = "cuStreamBeginCapture_v2" (Pointer, i32);
    end_capture = "cuStreamEndCapture" (Pointer, *mut Pointer);
    instantiate_graph = "cuGraphInstantiateWithFlags" (*mut Pointer, Pointer, u64);
    destroy_graph = "cuGraphDestroy" (Pointer);
    destroy_executable = "cuGraphExecDestroy" (Pointer);
    launch_graph = "cuGraphLaunch" (Pointer, Pointer);
    create_event = "cuEventCreate" (*mut Pointer, u32);
    destroy_event = "cuEventDestroy_v2" (Pointer);
    record_event = "cuEventRecord" (Pointer, Pointer);
    synchronize_event = "cuEventSynchronize" (Pointer);
    query_event = "cuEventQuery" (Pointer);
    elapsed_ms = "cuEventElapsedTime" (*mut f32, Pointer, Pointer);
    error_name = "cuGetErrorName" (Code, *mut *const c_char);
    error_text = "cuGetErrorString" (Code, *mut *const c_char);
}

impl Api {
    /// Takes the functions from the driver's library, which is loaded now.
    pub(super) fn of_system() -> Result<Self> {
        if !is_present() {
            return Err(CudaExecError::NoDriver);
        }
        let find = |name: &str| {
            // SAFETY: the library is there, as asked above.
            let library = unsafe { sys::culib() };
            // SAFETY: the address is only passed on; its type is the table's.
            let symbol = unsafe { library.get::<*const c_void>(name.as_bytes()) };
            symbol.ok().map(|symbol| *symbol)
        };
        // SAFETY: these are the functions of the driver's library, which is never unloaded.
        unsafe { Self::from_symbols(&find) }
    }

    /// Takes the functions from wherever `find` finds them by the driver's names: a simulated driver, say.
    ///
    /// # Errors
    /// [`CudaExecError::DriverTooOld`] if a function is missing, or [`CudaExecError::Failed`] if even the
    /// version cannot be read.
    ///
    /// # Safety
    /// `find` returns functions that keep the contract of the CUDA driver's function of that name, for as
    /// long as the process lives.
    pub unsafe fn from_symbols(find: &dyn Fn(&str) -> Option<*const c_void>) -> Result<Self> {
        // SAFETY: the caller says so.
        unsafe { Self::find(find) }.map_err(|missing| {
            let reason = format!("the driver has no function `{missing}`");
            // SAFETY: the caller says so.
            match unsafe { version_of(find) } {
                Some(found) => CudaExecError::DriverTooOld {
                    found,
                    needed: NEEDED_CUDA,
                    reason,
                },
                None => CudaExecError::Failed {
                    operation: "loading the driver",
                    reason,
                },
            }
        })
    }
}

/// Returns whether the driver's library can be loaded.
pub(super) fn is_present() -> bool {
    // SAFETY: this only tries to open a library by its name.
    unsafe { sys::is_culib_present() }
}

/// Returns the version as the driver numbers it: 12040 for 12.4.
pub(super) fn version_from(number: i32) -> (u32, u32) {
    (number as u32 / 1000, number as u32 % 1000 / 10)
}

/// Returns the version of a driver that may lack functions.
///
/// # Safety
/// As [`Api::from_symbols`].
unsafe fn version_of(find: &dyn Fn(&str) -> Option<*const c_void>) -> Option<(u32, u32)> {
    let address = find("cuDriverGetVersion").filter(|address| !address.is_null())?;
    // SAFETY: the caller says that this is the driver's function of this name, whose argument is this.
    let ask =
        unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn(*mut i32) -> Code>(address) };
    let mut version = 0;
    // SAFETY: the pointer is to a local.
    let code = unsafe { ask(&raw mut version) };
    (code == 0).then(|| version_from(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn version(to: *mut i32) -> Code {
        // SAFETY: the caller's pointer.
        unsafe { to.write(10020) };
        0
    }

    #[test]
    fn a_driver_without_a_function_is_refused_with_its_version() {
        let old = |name: &str| (name == "cuDriverGetVersion").then_some(version as *const c_void);
        // SAFETY: the one function that is found keeps the contract.
        let error = unsafe { Api::from_symbols(&old) }.unwrap_err();
        let CudaExecError::DriverTooOld { found, reason, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(found, (10, 2));
        assert_eq!(reason, "the driver has no function `cuInit`");
        // SAFETY: nothing is found.
        let nothing = unsafe { Api::from_symbols(&|_| None) };
        assert!(matches!(nothing, Err(CudaExecError::Failed { .. })));
    }
}

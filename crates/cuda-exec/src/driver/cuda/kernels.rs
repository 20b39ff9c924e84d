//! Modules and kernels of a [`Driver`]: loading, compiling, and the resources that they take.
//!
//! Invariant: the error for a rejected module contains the message of the driver's compiler.

use std::{ffi::CString, ptr};

use cudarc::driver::sys::CUfunction_attribute as FunctionAttribute;

use super::{Driver, describe, handle, pointer};
use crate::{
    CudaExecError,
    driver::{Handle, KernelResources, NEEDED_CUDA, codes, jit::JitLogs},
    error::Result,
};

/// Preferred shared memory carveout, in percent of the maximum.
const ALL_SHARED: i32 = 100;

impl Driver {
    /// Loads a module: PTX, which the driver compiles, or a cubin. Returns it with the log of the driver's compiler.
    pub(in crate::driver) fn load_module(
        &self,
        name: &'static str,
        image: &[u8],
    ) -> Result<(Handle, String)> {
        self.enter("loading kernels")?;
        // PTX is a text that ends with a zero byte; a cubin states its own length.
        let image = [image, &[0]].concat();
        let mut logs = JitLogs::new();
        let (mut options, mut values) = logs.options();
        let mut module = ptr::null_mut();
        // SAFETY: the context is current, the image is whole, and the logs live until the call returns.
        let code = unsafe {
            (self.api.load_module)(
                &raw mut module,
                image.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if let Some(refusal) = codes::refusal_of_module(code) {
            let said = logs.errors();
            let separator = if said.is_empty() { "" } else { "; " };
            let reason = format!("module `{name}`: {}{separator}{said}", describe(&self.api, code));
            return Err(match refusal {
                codes::Refusal::NoCompiler => CudaExecError::NoJitCompiler { reason },
                codes::Refusal::Image => CudaExecError::DriverTooOld {
                    found: self.info.cuda_version,
                    needed: NEEDED_CUDA,
                    reason,
                },
            });
        }
        self.check("loading kernels", code)?;
        Ok((handle(module), logs.info()))
    }

    /// Returns a kernel's resources on a multiprocessor, as the driver compiled it.
    pub(in crate::driver) fn resources(&self, function: Handle) -> Result<KernelResources> {
        self.enter("describing a kernel")?;
        let attribute = |attribute: FunctionAttribute| -> Result<u32> {
            let mut value = 0;
            // SAFETY: the function is of this context, the pointer is to a local.
            let code =
                unsafe { (self.api.function_attribute)(&raw mut value, attribute as i32, pointer(function)) };
            self.check("describing a kernel", code)?;
            Ok(value as u32)
        };
        Ok(KernelResources {
            n_registers: attribute(FunctionAttribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local_bytes: attribute(FunctionAttribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            shared_bytes: attribute(FunctionAttribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            max_threads: attribute(FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            binary_version: attribute(FunctionAttribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION)?,
        })
    }

    /// Returns the kernel with this name, `None` if the module has none.
    pub(in crate::driver) fn function(&self, module: Handle, name: &str) -> Result<Option<Handle>> {
        self.enter("finding a kernel")?;
        let Ok(name) = CString::new(name) else {
            return Ok(None);
        };
        let mut function = ptr::null_mut();
        // SAFETY: the module came from `load_module` and is never unloaded; the name ends with a zero byte.
        let code = unsafe { (self.api.function)(&raw mut function, pointer(module), name.as_ptr()) };
        if code == codes::NOT_FOUND {
            return Ok(None);
        }
        self.check("finding a kernel", code)?;
        Ok(Some(handle(function)))
    }

    /// Returns the number of thread blocks of a kernel that a multiprocessor runs at a time.
    pub(in crate::driver) fn blocks_per_multiprocessor(
        &self,
        function: Handle,
        n_threads: u32,
        shared_bytes: usize,
    ) -> Result<u32> {
        self.enter("describing a kernel")?;
        let mut n_blocks = 0;
        // SAFETY: the function is of this context, the pointer is to a local.
        let code = unsafe {
            (self.api.occupancy)(
                &raw mut n_blocks,
                pointer(function),
                n_threads as i32,
                shared_bytes,
            )
        };
        self.check("describing a kernel", code)?;
        Ok(n_blocks as u32)
    }

    /// Returns a kernel's static shared memory, in bytes.
    pub(in crate::driver) fn static_shared_bytes(&self, function: Handle) -> Result<usize> {
        self.enter("describing a kernel")?;
        let mut n_bytes = 0;
        let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES as i32;
        // SAFETY: the function belongs to this context, and the pointer is to a local.
        let code = unsafe { (self.api.function_attribute)(&raw mut n_bytes, attribute, pointer(function)) };
        self.check("describing a kernel", code)?;
        Ok(n_bytes as usize)
    }

    /// Requests the largest shared memory carveout. Drivers without this attribute keep their own choice.
    pub(in crate::driver) fn prefer_shared_memory(&self, function: Handle) -> Result<()> {
        self.enter("preparing a kernel")?;
        let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT as i32;
        // SAFETY: the function belongs to this context.
        let code = unsafe { (self.api.set_function_attribute)(pointer(function), attribute, ALL_SHARED) };
        match self.check("preparing a kernel", code) {
            Err(lost @ CudaExecError::Lost { .. }) => Err(lost),
            // The attribute affects only speed.
            _ => Ok(()),
        }
    }

    /// Allows a kernel more than [`UNASKED_SHARED_BYTES`](super::UNASKED_SHARED_BYTES) of shared memory; `n_bytes` is the dynamic part.
    pub(in crate::driver) fn allow_shared_bytes(&self, function: Handle, n_bytes: usize) -> Result<()> {
        self.enter("preparing a kernel")?;
        let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as i32;
        // SAFETY: the function is of this context.
        let code = unsafe { (self.api.set_function_attribute)(pointer(function), attribute, n_bytes as i32) };
        self.check("preparing a kernel", code)
    }
}

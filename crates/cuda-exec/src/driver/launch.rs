//! [`Kernel`], [`LaunchShape`] and [`Args`]: the parts of a launch.
//!
//! Invariant: arguments are stored inline, so that a launch allocates nothing.

use std::marker::PhantomData;

use bytemuck::Pod;

use super::{Handle, View, ViewMut};
use crate::error::{CudaExecError, Result};

/// A kernel, ready to launch.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    pub(super) function: Handle,
    /// Whether it waits for earlier launches itself, so that it may begin early.
    pub(super) awaits_earlier: bool,
}

/// Thread blocks, threads and dynamic shared memory of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LaunchShape {
    /// Thread blocks.
    pub grid: [u32; 3],
    /// Threads of a thread block.
    pub n_threads: u32,
    /// Dynamic shared memory of a thread block.
    pub shared_bytes: u32,
}

impl LaunchShape {
    /// A launch without dynamic shared memory.
    pub fn new(grid: [usize; 3], n_threads: u32) -> Self {
        Self {
            grid: grid.map(|n| n as u32),
            n_threads,
            shared_bytes: 0,
        }
    }

    /// Sets the dynamic shared memory.
    #[must_use]
    pub fn with_shared_bytes(mut self, n_bytes: usize) -> Self {
        self.shared_bytes = n_bytes as u32;
        self
    }
}

/// Largest count that kernels take: counts are `int`s.
pub(crate) const MAX_COUNT: usize = i32::MAX as usize;

/// More arguments than any kernel here has.
const MAX_ARGS: usize = 40;

/// The arguments of a kernel in order. They borrow the buffers they point to.
#[derive(Clone, Debug)]
pub struct Args<'a> {
    values: [u64; MAX_ARGS],
    len: usize,
    /// Whether a count is too large for a kernel.
    too_large: Option<usize>,
    buffers: PhantomData<&'a ()>,
}

impl Default for Args<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Args<'a> {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self {
            values: [0; MAX_ARGS],
            len: 0,
            too_large: None,
            buffers: PhantomData,
        }
    }

    /// Appends a buffer that the kernel reads.
    #[must_use]
    pub fn read<T: Pod>(self, view: View<'a, T>) -> Self {
        self.push(view.address())
    }

    /// Appends a buffer that the kernel reads, or a null pointer.
    #[must_use]
    pub fn read_or_null<T: Pod>(self, view: Option<View<'a, T>>) -> Self {
        self.push(view.map_or(0, |view| view.address()))
    }

    /// Appends a buffer that the kernel writes.
    #[must_use]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "taking the view keeps its elements from being passed twice in a launch"
    )]
    pub fn write<T: Pod>(self, view: ViewMut<'a, T>) -> Self {
        self.push(view.address())
    }

    /// Appends a buffer that the kernel writes, or a null pointer.
    #[must_use]
    pub fn write_or_null<T: Pod>(self, view: Option<ViewMut<'a, T>>) -> Self {
        self.push(view.map_or(0, |view| view.address()))
    }

    /// Appends an `int` that is a count. A count beyond `i32::MAX` becomes an error of the launch.
    #[must_use]
    pub fn count(mut self, value: usize) -> Self {
        if value > MAX_COUNT {
            self.too_large = Some(value);
        }
        self.push(value as u32 as u64)
    }

    /// Returns whether all counts are in the range of kernels.
    pub(super) fn check(&self) -> Result<()> {
        match self.too_large {
            None => Ok(()),
            Some(found) => Err(CudaExecError::Shape {
                what: "a count of a kernel",
                found,
                expected: format!("at most {MAX_COUNT}"),
            }),
        }
    }

    /// Appends a float.
    #[must_use]
    pub fn float(self, value: f32) -> Self {
        self.push(value.to_bits() as u64)
    }

    /// Appends the bits of an argument.
    #[must_use]
    pub(super) fn push(mut self, value: u64) -> Self {
        self.values[self.len] = value;
        self.len += 1;
        self
    }

    /// Returns the bits of the arguments.
    pub(super) fn values(&self) -> &[u64] {
        &self.values[..self.len]
    }

    /// Returns the address of each argument's value. A 4-byte argument is the first half of its value: the hosts of CUDA are
    /// little-endian.
    pub(super) fn pointers(&self) -> [*mut core::ffi::c_void; MAX_ARGS] {
        let mut pointers = [std::ptr::null_mut(); MAX_ARGS];
        for (pointer, value) in pointers.iter_mut().zip(&self.values) {
            *pointer = std::ptr::from_ref(value).cast_mut().cast();
        }
        pointers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_is_no_int_fails_the_launch() {
        assert_eq!(Args::new().count(MAX_COUNT).count(3).check(), Ok(()));
        let error = Args::new().count(MAX_COUNT + 1).count(3).check();
        assert!(
            matches!(error, Err(CudaExecError::Shape { found, .. }) if found == 1 << 31),
            "{error:?}"
        );
    }
}

//! [`zeroed`]: large buffers whose memory is provided as they are written.

use bytemuck::{Zeroable, allocation::try_zeroed_slice_box};

use crate::CpuExecError;

/// Returns `len` items whose bytes are all zero; `what` is the purpose named in the error. The system may
/// back them only when they are first written, so that a lack of memory can appear after this call.
///
/// # Errors
/// [`CpuExecError::OutOfMemory`].
pub fn zeroed<T: Zeroable>(len: usize, what: &'static str) -> Result<Vec<T>, CpuExecError> {
    match try_zeroed_slice_box(len) {
        Ok(items) => Ok(items.into_vec()),
        Err(()) => Err(CpuExecError::OutOfMemory {
            what,
            n_bytes: len.saturating_mul(size_of::<T>()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_sizes_are_errors() {
        assert_eq!(zeroed::<u8>(5, "a test").unwrap(), [0; 5]);
        assert!(zeroed::<f32>(0, "a test").unwrap().is_empty());
        for (len, n_bytes) in [(1 << 55, 1 << 57), (usize::MAX, usize::MAX)] {
            let error = zeroed::<f32>(len, "a test").unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("{n_bytes} bytes of memory could not be allocated for a test")
            );
        }
    }
}

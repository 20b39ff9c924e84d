//! Pages of a [`KvStore`] as bytes, to keep them outside of the device.
//!
//! Separate from the moves between the pool and the host tier, which no caller waits for. A page's bytes are those of its arrays, layer by
//! layer. Invariant: a page is read after the work and the moves queued before, and written ahead of those queued later.

use tokenmill_backend::KvType;

use super::KvStore;
use crate::{Pinned, Stream, error::Result};

impl KvStore {
    /// Bytes of a page, all layers.
    pub fn bytes_of_page(&self) -> usize {
        self.page_bytes
    }

    /// Types of the stored keys and values.
    pub fn types(&self) -> [KvType; 2] {
        self.types
    }

    /// Copies a page to the front of `staging`, which has room for one.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`](crate::CudaExecError::Bounds), or the driver's.
    pub fn read_page(&mut self, page: u32, staging: &mut Pinned<u8>) -> Result<()> {
        self.await_pages(&[page])?;
        let mut offset = 0;
        for layer in &self.layers {
            for (buffer, n_bytes) in layer.arrays(self.types) {
                let start = page as usize * n_bytes;
                let source = buffer.view().range(start..start + n_bytes)?;
                staging.download(Stream::Compute, source, offset..offset + n_bytes)?;
                offset += n_bytes;
            }
        }
        Ok(())
    }

    /// Copies the front of `staging` to a page.
    ///
    /// # Errors
    /// As [`Self::read_page`].
    pub fn write_page(&mut self, page: u32, staging: &mut Pinned<u8>) -> Result<()> {
        self.await_pages(&[page])?;
        let mut offset = 0;
        for layer in &mut self.layers {
            for (buffer, n_bytes) in layer.arrays_mut(self.types) {
                let start = page as usize * n_bytes;
                let target = buffer.view_mut().range(start..start + n_bytes)?;
                staging.upload(Stream::Compute, offset..offset + n_bytes, &target)?;
                offset += n_bytes;
            }
        }
        Ok(())
    }
}

//! [`PageRows`]: a page of several arrays at equal distances.
//!
//! A layer's keys and values are arrays of equal length, one after the other in an arena, so the parts of a page in all of them are
//! rows of a copy in two dimensions: one call of the driver instead of one for each array. Invariant: a page is inside every array.

use super::{
    Buffer, Device, SharedView, Stream,
    cuda::{RowPlace, RowStart},
};
use crate::{CudaExecError, error::Result};

/// Largest distance of two rows of a copy; every CUDA device supports it.
const MAX_PITCH: u64 = (1 << 31) - 1;

/// Arrays of pages of equal size, at equal distances.
#[derive(Debug)]
pub struct PageRows {
    /// Keeps the memory alive.
    arrays: Vec<SharedView<u8>>,
    start: u64,
    pitch: usize,
    /// Bytes of a page in each.
    row_bytes: usize,
    n_pages: usize,
}

impl PageRows {
    /// Combines arrays of `n_pages` pages, in their order, into as few as possible. Each array comes with the bytes of its pages.
    pub fn arrange<'a>(arrays: impl Iterator<Item = (&'a Buffer<u8>, usize)>, n_pages: usize) -> Vec<Self> {
        let mut arranged: Vec<Self> = Vec::new();
        for (array, row_bytes) in arrays {
            let address = array.view().address();
            if let Some(last) = arranged.last_mut()
                && last.takes(address, row_bytes)
            {
                last.pitch = (address - last.start) as usize / last.arrays.len();
                last.arrays.push(array.share());
            } else {
                arranged.push(Self {
                    arrays: vec![array.share()],
                    start: address,
                    pitch: row_bytes,
                    row_bytes,
                    n_pages,
                });
            }
        }
        arranged
    }

    /// Returns whether an array continues these.
    fn takes(&self, address: u64, row_bytes: usize) -> bool {
        let Some(distance) = address.checked_sub(self.start) else {
            return false;
        };
        let pitch = if self.arrays.len() == 1 {
            distance
        } else {
            self.pitch as u64
        };
        row_bytes == self.row_bytes
            && distance == pitch * self.arrays.len() as u64
            && (row_bytes as u64..=MAX_PITCH).contains(&pitch)
    }

    /// Bytes of a page in all of them.
    pub fn page_bytes(&self) -> usize {
        self.row_bytes * self.n_rows()
    }

    pub(super) fn n_rows(&self) -> usize {
        self.arrays.len()
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Returns the address of a page.
    pub(super) fn place(&self, page: u32) -> Result<RowPlace> {
        let page = page as usize;
        if page >= self.n_pages {
            return Err(CudaExecError::Bounds {
                range: page..page + 1,
                len: self.n_pages,
            });
        }
        Ok(RowPlace {
            start: RowStart::Device(self.start + (page * self.row_bytes) as u64),
            pitch: self.pitch,
        })
    }
}

impl Device {
    /// Queues a copy of a page to another one.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`], or the driver's.
    pub fn copy_page(&self, stream: Stream, rows: &PageRows, from: u32, to: u32) -> Result<()> {
        let places = [rows.place(from)?, rows.place(to)?];
        // SAFETY: neither side is on the host.
        unsafe {
            self.driver()
                .copy_rows(stream, places, rows.row_bytes, rows.n_rows())
        }
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_sim_driver::{SimOptions, Simulator};

    use super::*;
    use crate::driver::simulated;

    #[test]
    fn arrays_of_equal_pages_at_equal_distances_are_one() {
        let device = simulated(&Simulator::new(&SimOptions::default()));
        let lens = [1024, 1024, 1024, 512, 1024, 1024];
        let buffers = lens.map(|len| device.alloc::<u8>("an array", len).unwrap());
        let sized = buffers.iter().zip(lens.map(|len| len / 4));
        let arranged = PageRows::arrange(sized, 4);
        let n_rows: Vec<usize> = arranged.iter().map(PageRows::n_rows).collect();
        assert_eq!(n_rows, [3, 1, 2]);
        assert_eq!(arranged[0].page_bytes(), 3 * 256);
        assert!(arranged[0].place(3).is_ok());
        assert!(arranged[0].place(4).is_err());
    }
}

//! [`TileMemory`]: zeroed bytes for tiles, on huge pages if the system has them.
//!
//! Weights are read from end to end for every token; with pages of 4 KiB two threads of a machine may get
//! half of the bandwidth of pages of 2 MiB. Invariant: the bytes start at a multiple of 64 and are owned by
//! one value.

/// The system cannot provide the requested memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{n_bytes} bytes of memory could not be allocated")]
pub struct OutOfMemory {
    /// The number of bytes requested.
    pub n_bytes: usize,
}

/// An allocation of zeroed bytes.
#[derive(Debug)]
pub struct TileMemory {
    owner: Owner,
    len: usize,
}

/// The size in bytes from which an allocation is mapped by itself.
#[cfg(target_os = "linux")]
const MAP_FROM_BYTES: usize = 1 << 20;
#[cfg(target_os = "linux")]
const HUGE_PAGE_BYTES: usize = 2 << 20;

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "read through a pointer to all lines")] [u8; 64]);

#[derive(Debug)]
enum Owner {
    Lines(Vec<Line>),
    #[cfg(target_os = "linux")]
    Map(Map),
}

impl TileMemory {
    /// Allocates `len` zeroed bytes.
    ///
    /// # Errors
    /// Returns [`OutOfMemory`].
    pub fn zeroed(len: usize) -> Result<Self, OutOfMemory> {
        let out_of_memory = || OutOfMemory { n_bytes: len };
        #[cfg(target_os = "linux")]
        if len >= MAP_FROM_BYTES {
            let owner = Owner::Map(Map::new(len).ok_or_else(out_of_memory)?);
            return Ok(Self { owner, len });
        }
        let n_lines = len.div_ceil(64);
        let mut lines = Vec::new();
        lines.try_reserve_exact(n_lines).map_err(|_| out_of_memory())?;
        lines.resize(n_lines, Line([0; 64]));
        Ok(Self {
            owner: Owner::Lines(lines),
            len,
        })
    }

    /// Returns the number of bytes.
    pub fn n_bytes(&self) -> usize {
        self.len
    }

    fn as_ptr(&self) -> *const u8 {
        match &self.owner {
            Owner::Lines(lines) => lines.as_ptr().cast(),
            #[cfg(target_os = "linux")]
            Owner::Map(map) => map.start,
        }
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: each owner holds at least `len` initialized bytes, which `self` borrows.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    /// Returns the bytes mutably.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let ptr = match &mut self.owner {
            Owner::Lines(lines) => lines.as_mut_ptr().cast(),
            #[cfg(target_os = "linux")]
            Owner::Map(map) => map.start,
        };
        // SAFETY: each owner holds at least `len` initialized bytes, which `self` borrows mutably.
        unsafe { std::slice::from_raw_parts_mut(ptr, self.len) }
    }
}

/// An anonymous private mapping whose used part starts at a huge page.
#[cfg(target_os = "linux")]
#[derive(Debug)]
struct Map {
    base: *mut libc::c_void,
    n_bytes: usize,
    start: *mut u8,
}

// SAFETY: the mapping belongs to this value alone, like the heap memory of a `Vec<u8>`.
#[cfg(target_os = "linux")]
unsafe impl Send for Map {}
// SAFETY: as above; shared references only read.
#[cfg(target_os = "linux")]
unsafe impl Sync for Map {}

#[cfg(target_os = "linux")]
impl Map {
    fn new(len: usize) -> Option<Self> {
        let map_bytes = len.checked_add(HUGE_PAGE_BYTES)?;
        // SAFETY: a new anonymous mapping touches no existing memory.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                map_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let offset = base.align_offset(HUGE_PAGE_BYTES);
        // SAFETY: `offset` is below a huge page, by which the mapping is longer than `len`.
        let start = unsafe { base.cast::<u8>().add(offset) };
        // SAFETY: the range is inside the mapping. The advice changes no content; a system without huge pages refuses
        // it, which is not an error here.
        unsafe {
            libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE);
        }
        Some(Self {
            base,
            n_bytes: map_bytes,
            start,
        })
    }
}

#[cfg(target_os = "linux")]
impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new`, and nothing borrows it any more.
        unsafe {
            libc::munmap(self.base, self.n_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_aligned_and_writable() {
        for len in [0, 1, 63, 65, 1 << 20, (5 << 20) + 3] {
            let mut memory = TileMemory::zeroed(len).unwrap();
            assert_eq!((memory.n_bytes(), memory.as_ptr().addr() % 64), (len, 0));
            let bytes = memory.as_mut_slice();
            assert!(bytes.len() == len && bytes.iter().all(|byte| *byte == 0));
            bytes.fill(7);
        }
        assert!(TileMemory::zeroed(isize::MAX as usize).is_err());
    }
}

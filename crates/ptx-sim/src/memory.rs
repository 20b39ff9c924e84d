//! [`DeviceMemory`]: simulated global memory, with allocations and bounds, which tracks the written bytes.
//!
//! Thread blocks of a launch run on several host threads and share it, so its words are atomics (relaxed accesses are
//! plain loads and stores on the host); kernels that race are reported, never undefined. Invariant: an address belongs to at most
//! one allocation, and adjacent allocations are at least [`GUARD_BYTES`] apart, also after being freed: addresses are never reused.

use std::sync::{
    Mutex, OnceLock,
    atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
};

use crate::MemoryError;

/// Free address space after each allocation, so that small overruns hit nothing.
pub const GUARD_BYTES: u64 = 1 << 16;
/// Alignment of an allocation, as on a real device.
pub const ALLOCATION_ALIGN: u64 = 256;

const FIRST_ADDRESS: u64 = 0x1_0000_0000;

/// An address in simulated global memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// Returns the address `bytes` further on.
    #[must_use]
    pub fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// Global memory of a simulated device.
#[derive(Debug)]
pub struct DeviceMemory {
    /// Sorted by address; freed ones stay as tombstones without words.
    allocations: Vec<Allocation>,
    next_address: u64,
    used_bytes: u64,
    capacity_bytes: u64,
    /// Whether memory exists only where a value other than zero was written.
    is_sparse: bool,
    /// Serializes atomics wider than a word.
    pub(crate) wide_atomics: Mutex<()>,
}

#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    words: Words,
    /// One bit a byte; consulted only while `is_whole` is false.
    written: Box<[AtomicU32]>,
    /// Whether every byte was written.
    is_whole: AtomicBool,
}

impl Default for DeviceMemory {
    fn default() -> Self {
        Self::with_capacity(u64::MAX / 4)
    }
}

impl DeviceMemory {
    /// Makes a device without a limit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a device that holds at most `capacity_bytes`.
    pub fn with_capacity(capacity_bytes: u64) -> Self {
        Self {
            allocations: Vec::new(),
            next_address: FIRST_ADDRESS,
            used_bytes: 0,
            capacity_bytes,
            is_sparse: false,
            wide_atomics: Mutex::new(()),
        }
    }

    /// Does the same for a memory that reads as zeros and counts as written. It takes host memory only where other values are
    /// written, for [`estimate`](crate::estimate), which looks at addresses.
    pub fn sparse(capacity_bytes: u64) -> Self {
        Self {
            is_sparse: true,
            ..Self::with_capacity(capacity_bytes)
        }
    }

    /// Returns the bytes in live allocations.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Returns the bytes that the device can hold.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Allocates `bytes` that count as never written.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`] beyond the capacity.
    pub fn alloc(&mut self, bytes: u64) -> Result<DevicePtr, MemoryError> {
        let available = self.capacity_bytes - self.used_bytes;
        if bytes > available {
            return Err(MemoryError::OutOfMemory {
                bytes,
                available,
                capacity: self.capacity_bytes,
            });
        }
        let address = self.next_address;
        let words = bytes.div_ceil(4) as usize;
        self.allocations.push(Allocation {
            address,
            bytes,
            words: Words::new(words, self.is_sparse),
            written: if self.is_sparse {
                Box::default()
            } else {
                zeroed(words.div_ceil(8))
            },
            is_whole: AtomicBool::new(self.is_sparse),
        });
        self.used_bytes += bytes;
        self.next_address = (address + bytes + GUARD_BYTES).next_multiple_of(ALLOCATION_ALIGN);
        Ok(DevicePtr(address))
    }

    /// Allocates and writes `data`.
    ///
    /// # Errors
    /// As [`Self::alloc`].
    pub fn alloc_with(&mut self, data: &[u8]) -> Result<DevicePtr, MemoryError> {
        let address = self.alloc(data.len() as u64)?;
        self.write(address, data)?;
        Ok(address)
    }

    /// Frees an allocation by its first address. Later accesses are out of bounds.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] if no live allocation starts there.
    pub fn free(&mut self, address: DevicePtr) -> Result<(), MemoryError> {
        let index = self
            .find(address.0, 0)
            .filter(|&index| {
                self.allocations[index].address == address.0 && !self.allocations[index].is_freed()
            })
            .ok_or(MemoryError::OutOfBounds {
                address: address.0,
                bytes: 0,
            })?;
        let allocation = &mut self.allocations[index];
        self.used_bytes -= allocation.bytes;
        allocation.words = Words::Dense(Box::default());
        allocation.written = Box::default();
        allocation.bytes = 0;
        Ok(())
    }

    /// Copies from the host.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] if the range is not inside one allocation.
    pub fn write(&self, address: DevicePtr, data: &[u8]) -> Result<(), MemoryError> {
        let (allocation, start) = self.range(address.0, data.len())?;
        if start % 4 == 0 {
            let (words, tail) = data.as_chunks::<4>();
            allocation.words.write(start / 4, words);
            let tail_start = start + words.len() * 4;
            for (index, &byte) in tail.iter().enumerate() {
                allocation.store_byte(tail_start + index, byte);
            }
        } else {
            for (index, &byte) in data.iter().enumerate() {
                allocation.store_byte(start + index, byte);
            }
        }
        allocation.mark_written(start, data.len());
        Ok(())
    }

    /// Sets a range to one byte value.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] if the range is not inside one allocation.
    pub fn fill(&self, address: DevicePtr, value: u8, bytes: usize) -> Result<(), MemoryError> {
        self.write(address, &vec![value; bytes])
    }

    /// Copies to the host.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], or [`MemoryError::Uninitialized`] if a byte was never written.
    pub fn read(&self, address: DevicePtr, out: &mut [u8]) -> Result<(), MemoryError> {
        let (allocation, start) = self.range(address.0, out.len())?;
        if let Some(unwritten) = allocation.first_unwritten(start, out.len()) {
            return Err(MemoryError::Uninitialized {
                address: allocation.address + unwritten as u64,
            });
        }
        for (index, byte) in out.iter_mut().enumerate() {
            let offset = start + index;
            *byte = (allocation.words.get(offset / 4) >> (8 * (offset % 4))) as u8;
        }
        Ok(())
    }

    /// Copies to a new vector.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_vec(&self, address: DevicePtr, bytes: usize) -> Result<Vec<u8>, MemoryError> {
        let mut out = vec![0; bytes];
        self.read(address, &mut out)?;
        Ok(out)
    }

    /// Copies within the device. Copies of uninitialized bytes are uninitialized too.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] if a range is not inside one allocation.
    pub fn copy(&self, from: DevicePtr, to: DevicePtr, bytes: usize) -> Result<(), MemoryError> {
        let (source, start) = self.range(from.0, bytes)?;
        let mut data = vec![0; bytes];
        for (index, byte) in data.iter_mut().enumerate() {
            let offset = start + index;
            *byte = (source.words.get(offset / 4) >> (8 * (offset % 4))) as u8;
        }
        let unwritten: Vec<usize> = if source.is_whole.load(Relaxed) {
            Vec::new()
        } else {
            (0..bytes)
                .filter(|index| !source.is_written(start + index))
                .collect()
        };
        self.write(to, &data)?;
        let (target, start) = self.range(to.0, bytes)?;
        for index in unwritten {
            target.mark_unwritten(start + index);
        }
        Ok(())
    }

    /// Returns the live allocation that contains an address: its start, and its bytes.
    pub fn allocation_at(&self, address: DevicePtr) -> Option<(DevicePtr, u64)> {
        let allocation = &self.allocations[self.find(address.0, 0)?];
        allocation
            .contains(address.0, 1)
            .then_some((DevicePtr(allocation.address), allocation.bytes))
    }

    fn range(&self, address: u64, bytes: usize) -> Result<(&Allocation, usize), MemoryError> {
        self.find(address, 0)
            .map(|index| &self.allocations[index])
            .filter(|allocation| allocation.contains(address, bytes as u64))
            .map(|allocation| (allocation, (address - allocation.address) as usize))
            .ok_or(MemoryError::OutOfBounds { address, bytes })
    }

    /// Returns the index of the last allocation that starts at or before `address`; `hint` is tried first.
    pub(crate) fn find(&self, address: u64, hint: usize) -> Option<usize> {
        if let Some(allocation) = self.allocations.get(hint)
            && allocation.contains(address, 1)
        {
            return Some(hint);
        }
        self.allocations
            .partition_point(|allocation| allocation.address <= address)
            .checked_sub(1)
    }

    pub(crate) fn allocation(&self, index: usize) -> &Allocation {
        &self.allocations[index]
    }

    pub(crate) fn n_allocations(&self) -> usize {
        self.allocations.len()
    }

    /// Describes the allocation nearest to an address.
    pub(crate) fn describe(&self, address: u64) -> String {
        match self.find(address, 0) {
            None => "no allocation lies before it".to_owned(),
            Some(index) => {
                let allocation = &self.allocations[index];
                let distance = address - allocation.address;
                if allocation.is_freed() {
                    format!(
                        "{distance} bytes into the freed allocation at {:#x}",
                        allocation.address
                    )
                } else {
                    format!(
                        "{distance} bytes into the allocation of {} bytes at {:#x}",
                        allocation.bytes, allocation.address
                    )
                }
            }
        }
    }
}

impl Allocation {
    fn is_freed(&self) -> bool {
        self.bytes == 0 && self.words.is_empty()
    }

    pub(crate) fn contains(&self, address: u64, bytes: u64) -> bool {
        address >= self.address
            && address
                .checked_add(bytes)
                .is_some_and(|end| end <= self.address + self.bytes)
    }

    /// Loads the word that holds byte `offset`.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> u32 {
        self.words.get(offset / 4)
    }

    #[inline]
    pub(crate) fn store_word(&self, offset: usize, value: u32) {
        self.words.cell(offset / 4).store(value, Relaxed);
    }

    /// Replaces the bits of `mask` in the word that holds byte `offset`.
    pub(crate) fn store_bits(&self, offset: usize, value: u32, mask: u32) {
        self.update(offset, |word| (word & !mask) | (value & mask));
    }

    /// Replaces a word by a function of it, atomically, and returns the old one.
    pub(crate) fn update(&self, offset: usize, f: impl Fn(u32) -> u32) -> u32 {
        self.words
            .cell(offset / 4)
            .fetch_update(Relaxed, Relaxed, |word| Some(f(word)))
            .expect("the closure always gives a value")
    }

    fn store_byte(&self, offset: usize, value: u8) {
        let shift = 8 * (offset % 4);
        self.store_bits(offset, u32::from(value) << shift, 0xff << shift);
    }

    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole.load(Relaxed)
    }

    fn is_written(&self, offset: usize) -> bool {
        self.is_whole() || self.written[offset / 32].load(Relaxed) >> (offset % 32) & 1 == 1
    }

    /// Marks up to 16 bytes, aligned to their length.
    #[inline]
    pub(crate) fn mark_written_small(&self, offset: usize, bytes: usize) {
        if self.is_whole() {
            return;
        }
        let mask = ((1u32 << bytes) - 1) << (offset % 32);
        let word = &self.written[offset / 32];
        if word.load(Relaxed) & mask != mask {
            word.fetch_or(mask, Relaxed);
        }
    }

    /// Returns whether up to 16 bytes, aligned to their length, were all written.
    #[inline]
    pub(crate) fn is_written_small(&self, offset: usize, bytes: usize) -> bool {
        let mask = ((1u32 << bytes) - 1) << (offset % 32);
        self.is_whole() || self.written[offset / 32].load(Relaxed) & mask == mask
    }

    fn mark_written(&self, start: usize, bytes: usize) {
        if self.is_whole() {
            return;
        }
        if start == 0 && bytes as u64 == self.bytes {
            self.is_whole.store(true, Relaxed);
        }
        let mut offset = start;
        let end = start + bytes;
        while offset < end {
            let n = (32 - offset % 32).min(end - offset);
            let mask = if n == 32 {
                u32::MAX
            } else {
                ((1 << n) - 1) << (offset % 32)
            };
            self.written[offset / 32].fetch_or(mask, Relaxed);
            offset += n;
        }
    }

    fn mark_unwritten(&self, offset: usize) {
        if self.written.is_empty() {
            return;
        }
        if self.is_whole.swap(false, Relaxed) {
            for word in &self.written {
                word.store(u32::MAX, Relaxed);
            }
        }
        self.written[offset / 32].fetch_and(!(1 << (offset % 32)), Relaxed);
    }

    fn first_unwritten(&self, start: usize, bytes: usize) -> Option<usize> {
        if self.is_whole() {
            return None;
        }
        (start..start + bytes).find(|&offset| !self.is_written(offset))
    }
}

/// The words of an allocation.
#[derive(Debug)]
enum Words {
    Dense(Box<[AtomicU32]>),
    /// In pieces of [`PIECE_WORDS`], which are allocated when a value other than zero is written.
    Sparse(Box<[OnceLock<Box<[AtomicU32]>>]>),
}

/// Words of a piece of sparse memory.
const PIECE_WORDS: usize = 1 << 14;

impl Words {
    fn new(n: usize, is_sparse: bool) -> Self {
        if is_sparse {
            Self::Sparse((0..n.div_ceil(PIECE_WORDS)).map(|_| OnceLock::new()).collect())
        } else {
            Self::Dense(zeroed(n))
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Dense(words) => words.is_empty(),
            Self::Sparse(pieces) => pieces.is_empty(),
        }
    }

    #[inline]
    fn get(&self, index: usize) -> u32 {
        match self {
            Self::Dense(words) => words[index].load(Relaxed),
            Self::Sparse(pieces) => pieces[index / PIECE_WORDS]
                .get()
                .map_or(0, |piece| piece[index % PIECE_WORDS].load(Relaxed)),
        }
    }

    #[inline]
    fn cell(&self, index: usize) -> &AtomicU32 {
        match self {
            Self::Dense(words) => &words[index],
            Self::Sparse(pieces) => {
                let piece = pieces[index / PIECE_WORDS].get_or_init(|| zeroed(PIECE_WORDS));
                &piece[index % PIECE_WORDS]
            }
        }
    }

    fn write(&self, start: usize, words: &[[u8; 4]]) {
        let pieces = match self {
            Self::Dense(cells) => {
                for (cell, word) in cells[start..].iter().zip(words) {
                    cell.store(u32::from_le_bytes(*word), Relaxed);
                }
                return;
            }
            Self::Sparse(pieces) => pieces,
        };
        let mut at = start;
        let mut rest = words;
        while !rest.is_empty() {
            let n = (PIECE_WORDS - at % PIECE_WORDS).min(rest.len());
            let (part, others) = rest.split_at(n);
            let is_zero = part.as_flattened().iter().all(|&byte| byte == 0);
            if !is_zero || pieces[at / PIECE_WORDS].get().is_some() {
                for (index, word) in part.iter().enumerate() {
                    self.cell(at + index).store(u32::from_le_bytes(*word), Relaxed);
                }
            }
            at += n;
            rest = others;
        }
    }
}

fn zeroed(words: usize) -> Box<[AtomicU32]> {
    (0..words).map(|_| AtomicU32::new(0)).collect()
}

//! Global memory as its owner sees it, without a kernel.

use tokenmill_ptx_sim::{DeviceMemory, MemoryError};

#[test]
fn bytes_come_back_at_any_alignment() {
    let mut memory = DeviceMemory::new();
    let base = memory.alloc_with(&[0xaa; 40]).unwrap();
    for start in 0..5 {
        for len in 0..9 {
            let data: Vec<u8> = (0..len).map(|index| (start * 16 + index) as u8).collect();
            memory.write(base.offset(start), &data).unwrap();
            assert_eq!(memory.read_vec(base.offset(start), len as usize).unwrap(), data);
        }
    }
}

#[test]
fn unwritten_bytes_are_refused_and_stay_unwritten_when_copied() {
    let mut memory = DeviceMemory::new();
    let from = memory.alloc(16).unwrap();
    let to = memory.alloc_with(&[7; 16]).unwrap();
    memory.write(from, &[1; 5]).unwrap();
    memory.copy(from, to, 16).unwrap();
    assert_eq!(memory.read_vec(to, 5).unwrap(), [1; 5]);
    assert_eq!(
        memory.read_vec(to, 6),
        Err(MemoryError::Uninitialized { address: to.0 + 5 })
    );
}

#[test]
fn sparse_memory_reads_as_zeros_and_keeps_what_is_written() {
    /// Bytes that are allocated and written at once.
    const PIECE_BYTES: u64 = 4 << 14;
    let mut memory = DeviceMemory::sparse(1 << 40);
    let base = memory.alloc(1 << 36).unwrap();
    let far = base.offset((1 << 35) + PIECE_BYTES - 6);
    assert_eq!(memory.read_vec(far, 12).unwrap(), [0; 12]);
    memory.write(far, &[9; 12]).unwrap();
    memory.write(base.offset(1 << 34), &vec![0; 1 << 20]).unwrap();
    assert_eq!(
        memory.read_vec(far, 13).unwrap(),
        [[9; 12].as_slice(), &[0]].concat()
    );
    memory.free(base).unwrap();
    assert!(memory.read_vec(far, 1).is_err());
}

#[test]
fn freed_and_foreign_ranges_are_out_of_bounds() {
    let mut memory = DeviceMemory::with_capacity(64);
    let base = memory.alloc_with(&[1; 64]).unwrap();
    assert!(matches!(
        memory.alloc(1),
        Err(MemoryError::OutOfMemory { available: 0, .. })
    ));
    assert!(memory.write(base.offset(60), &[0; 5]).is_err());
    memory.free(base).unwrap();
    assert!(memory.read_vec(base, 1).is_err());
    assert!(memory.free(base).is_err());
    assert_ne!(memory.alloc(64).unwrap(), base);
}

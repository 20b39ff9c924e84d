//! [`take`] and [`give_back`]: memory for the registers of warps, which later launches reuse.
//!
//! Most launches are short, and fresh memory for each took a sixth of the time of tests. One list under a lock serves the whole process,
//! because each launch starts its own host threads: a thread-local list would end with the launch. A thread block's warps are taken at once,
//! so a host thread mostly locks the list twice in a launch. Invariant: a kernel never sees the former contents; the memory is cleared for
//! each launch. Instructions compute all lanes and keep the active ones, and stale subnormal floats in the others would be slow.

use std::sync::{Mutex, PoisonError};

use crate::lanes::{LANES, Lanes32, Lanes64};

/// Warps whose registers are kept: those of two host threads with the largest thread blocks.
const N_KEPT: usize = 64;

type File = (Vec<Lanes32>, Vec<Lanes64>);

static KEPT: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// Returns the registers of some warps, with this many of each width, and the values that no instruction writes.
pub(super) fn take(
    n_warps: usize,
    n_regs: [usize; 2],
    uniform32: &[(u16, u32)],
    uniform64: &[(u16, u64)],
) -> Vec<File> {
    let mut files = {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let n_left = kept.len().saturating_sub(n_warps);
        kept.split_off(n_left)
    };
    files.resize_with(n_warps, File::default);
    for (regs32, regs64) in &mut files {
        fill(regs32, n_regs[0], uniform32);
        fill(regs64, n_regs[1], uniform64);
    }
    files
}

fn fill<T: Copy + Default>(registers: &mut Vec<[T; LANES]>, n: usize, uniform: &[(u16, T)]) {
    registers.clear();
    registers.resize(n, [T::default(); LANES]);
    for &(register, value) in uniform {
        registers[usize::from(register)] = [value; LANES];
    }
}

/// Keeps the registers of finished warps.
pub(super) fn give_back(files: impl Iterator<Item = File>) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let n_free = N_KEPT.saturating_sub(kept.len());
    kept.extend(files.take(n_free));
}

//! [`take`] and [`give_back`]: the registers of warps, in memory that later launches use again.
//!
//! Separate because kernels share it. Most launches are short, and taking fresh memory for each took a sixth of the time of tests.
//! Invariant: a kernel never sees what the memory held; it is cleared for each launch. Instructions compute all lanes and keep those that
//! are active, and what other kernels left in the rest would be slow: small floats that are no normal numbers.

use std::sync::{Mutex, PoisonError};

use crate::lanes::{LANES, Lanes32, Lanes64};

/// Warps whose registers are kept: those of two host threads with the largest thread blocks.
const N_KEPT: usize = 64;

type File = (Vec<Lanes32>, Vec<Lanes64>);

static KEPT: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// Gives the registers of a warp, so many of each width, with the values that no instruction writes.
pub(super) fn take(n_regs: [usize; 2], uniform32: &[(u16, u32)], uniform64: &[(u16, u64)]) -> File {
    let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let (mut regs32, mut regs64) = kept.unwrap_or_default();
    fill(&mut regs32, n_regs[0], uniform32);
    fill(&mut regs64, n_regs[1], uniform64);
    (regs32, regs64)
}

fn fill<T: Copy + Default>(registers: &mut Vec<[T; LANES]>, n: usize, uniform: &[(u16, T)]) {
    registers.clear();
    registers.resize(n, [T::default(); LANES]);
    for &(register, value) in uniform {
        registers[usize::from(register)] = [value; LANES];
    }
}

/// Keeps the registers of warps that are done.
pub(super) fn give_back(files: impl Iterator<Item = File>) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let n_free = N_KEPT.saturating_sub(kept.len());
    kept.extend(files.take(n_free));
}

//! [`take`] and [`give_back`]: memory for the registers of warps, which later launches reuse.
//!
//! Most launches are short, and fresh memory for each took a sixth of the time of tests. One list under a lock serves the whole process,
//! because each launch starts its own host threads: a thread-local list would end with the launch. A thread block's warps are taken at once,
//! so a host thread mostly locks the list twice in a launch.
//!
//! Memory that a kernel of another name or size used is cleared: instructions compute all lanes and keep the active ones, and stale
//! subnormal floats in the others would be slow. A kernel's own values stay, since clearing thousands of registers for each launch took a
//! tenth of the time of tests. Invariant: no result depends on stale values; a thread block clears the registers that it may read before it
//! writes them.

use std::sync::{Mutex, PoisonError};

use crate::{
    Kernel,
    lanes::{LANES, Lanes32, Lanes64},
};

/// Memory that is kept at most.
const MAX_KEPT_BYTES: usize = 64 << 20;

/// The registers of a warp, and the kernel that used them last.
#[derive(Default)]
pub(super) struct Registers {
    kernel: String,
    pub(super) regs32: Vec<Lanes32>,
    pub(super) regs64: Vec<Lanes64>,
}

impl Registers {
    fn bytes(&self) -> usize {
        size_of_val(&self.regs32[..]) + size_of_val(&self.regs64[..])
    }

    fn is_of(&self, kernel: &Kernel) -> bool {
        self.regs32.len() == kernel.n_regs32
            && self.regs64.len() == kernel.n_regs64
            && self.kernel == kernel.name
    }
}

/// Registers that no launch uses, the last used at the end.
static KEPT: Mutex<Vec<Registers>> = Mutex::new(Vec::new());

/// Returns the registers of some warps of a kernel, and the values that no instruction writes.
pub(super) fn take(
    n_warps: usize,
    kernel: &Kernel,
    uniform32: &[(u16, u32)],
    uniform64: &[(u16, u64)],
) -> Vec<Registers> {
    let mut all = Vec::with_capacity(n_warps);
    {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let own = kept.extract_if(.., |registers| registers.is_of(kernel));
        all.extend(own.take(n_warps));
        // Others' memory waits for their next launch as long as there is little of it.
        if kept.iter().map(Registers::bytes).sum::<usize>() > MAX_KEPT_BYTES / 2 {
            let n_oldest = (n_warps - all.len()).min(kept.len());
            all.extend(kept.drain(..n_oldest));
        }
    }
    all.resize_with(n_warps, Registers::default);
    for registers in &mut all {
        if !registers.is_of(kernel) {
            registers.kernel.clone_from(&kernel.name);
            clear(&mut registers.regs32, kernel.n_regs32);
            clear(&mut registers.regs64, kernel.n_regs64);
        }
        for &(register, value) in uniform32 {
            registers.regs32[usize::from(register)] = [value; LANES];
        }
        for &(register, value) in uniform64 {
            registers.regs64[usize::from(register)] = [value; LANES];
        }
    }
    all
}

fn clear<T: Copy + Default>(registers: &mut Vec<[T; LANES]>, n: usize) {
    registers.clear();
    registers.resize(n, [T::default(); LANES]);
}

/// Keeps the registers of finished warps, and drops those that were not used for longest.
pub(super) fn give_back(all: impl Iterator<Item = Registers>) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    kept.extend(all);
    let mut n_bytes = 0;
    let n_kept = (kept.iter().rev())
        .take_while(|registers| {
            n_bytes += registers.bytes();
            n_bytes <= MAX_KEPT_BYTES
        })
        .count();
    let n_forgotten = kept.len() - n_kept;
    kept.drain(..n_forgotten);
}

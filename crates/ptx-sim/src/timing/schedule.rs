//! [`Schedule`]: the order in which the instructions of a kernel are issued within each basic block.
//!
//! PTX lists instructions in the compiler's order; the assembler reorders them within a basic block so that long latencies overlap,
//! loads first of all. The model does the same by list scheduling on the longest path. Dependences are those of registers
//! and of memory: a load does not pass a store to its space unless it is `ld.global.nc`, and nothing that touches memory passes a
//! barrier, fence, atomic or volatile access. Invariant: the result is a permutation of each basic block that keeps every dependence.
//! Registers are assumed to suffice, according to the assembler's own count: a simplification.

use std::collections::HashMap;

use super::{DeviceProfile, cost::Cost};
use crate::{
    Kernel,
    op::{AsyncOp, Instruction, Op, Register},
    types::Space,
};

/// Longest basic block that is reordered; longer ones keep their order.
const MAX_BLOCK: usize = 4096;

/// The basic blocks of a kernel and their orders.
#[derive(Debug)]
pub(super) struct Schedule {
    /// By first instruction: the instructions of the basic block in the order of issue.
    blocks: HashMap<u32, Vec<u32>>,
}

impl Schedule {
    pub(super) fn of(kernel: &Kernel, device: &DeviceProfile) -> Self {
        let code = &kernel.code;
        let mut is_leader = vec![false; code.len() + 1];
        is_leader[0] = true;
        for (pc, instruction) in code.iter().enumerate() {
            match &instruction.op {
                Op::Branch { to } => {
                    is_leader[*to as usize] = true;
                    is_leader[pc + 1] = true;
                }
                Op::BranchTable { targets, .. } => {
                    targets.iter().for_each(|&to| is_leader[to as usize] = true);
                    is_leader[pc + 1] = true;
                }
                Op::Exit
                | Op::Trap
                | Op::Barrier { .. }
                // Later instructions read the data that these wait for; no register shows that dependence.
                | Op::Async(AsyncOp::GroupWait { .. } | AsyncOp::GroupFence | AsyncOp::TryWait { .. }) => {
                    is_leader[pc + 1] = true;
                }
                _ => {}
            }
        }
        let mut blocks = HashMap::new();
        let mut start = 0;
        for end in 1..=code.len() {
            if end == code.len() || is_leader[end] {
                let is_nc = |pc: usize| kernel.places[pc].mnemonic.contains(".nc");
                let order = order_of(&code[start..end], start, device, is_nc);
                blocks.insert(start as u32, order);
                start = end;
            }
        }
        Self { blocks }
    }

    /// Returns the order of the basic block that begins at an instruction.
    pub(super) fn block(&self, first: u32) -> Option<&[u32]> {
        self.blocks.get(&first).map(Vec::as_slice)
    }
}

/// Describes the memory access of an instruction, which decides its order among others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MemoryUse {
    None,
    /// Reads memory that no thread writes.
    Constant,
    Load(Space),
    Store(Space),
    /// Nothing passes it.
    Fence,
}

fn memory_use(op: &Op, is_nc: bool) -> MemoryUse {
    match op {
        Op::Load { order, .. } | Op::Store { order, .. } if order.is_strong() => MemoryUse::Fence,
        Op::Atomic { .. }
        | Op::CopyAsync { .. }
        | Op::CopyCommit
        | Op::CopyWait { .. }
        | Op::Fence { .. }
        | Op::Async(_)
        | Op::LetNextBegin
        | Op::AwaitEarlier
        | Op::Barrier { .. }
        | Op::WarpBarrier { .. } => MemoryUse::Fence,
        Op::Load { at, .. } if is_nc && at.space != Space::Shared => MemoryUse::Constant,
        Op::Load { at, .. } | Op::LoadMatrix { at, .. } => MemoryUse::Load(at.space),
        Op::Store { at, .. } => MemoryUse::Store(at.space),
        _ => MemoryUse::None,
    }
}

/// Returns whether two accesses must keep their order.
fn conflicts(first: MemoryUse, second: MemoryUse) -> bool {
    use MemoryUse as M;
    let same = |a: Space, b: Space| a == b || a == Space::Generic || b == Space::Generic;
    match (first, second) {
        (M::None, _) | (_, M::None) => false,
        (M::Fence, _) | (_, M::Fence) => true,
        (M::Store(a), M::Store(b) | M::Load(b)) | (M::Load(a), M::Store(b)) => same(a, b),
        _ => false,
    }
}

fn latency_of(op: &Op, device: &DeviceProfile) -> f64 {
    let latency = &device.latency;
    match op {
        Op::Load { at, .. } => match at.space {
            Space::Shared => latency.shared,
            Space::Local => latency.l1,
            _ => latency.dram,
        },
        Op::LoadMatrix { .. } => latency.shared,
        Op::Atomic { .. } => latency.l2,
        op => Cost::of(op, device).latency,
    }
}

fn order_of(
    code: &[Instruction],
    first: usize,
    device: &DeviceProfile,
    is_nc: impl Fn(usize) -> bool,
) -> Vec<u32> {
    let n = code.len();
    let pcs = |indices: Vec<usize>| indices.into_iter().map(|index| (first + index) as u32).collect();
    if !(3..=MAX_BLOCK).contains(&n) {
        return pcs((0..n).collect());
    }
    // Edges to later instructions, each with the least number of clocks in between.
    let mut successors: Vec<Vec<(usize, f64)>> = vec![Vec::new(); n];
    let mut n_waits = vec![0usize; n];
    let mut last_write: HashMap<Key, usize> = HashMap::new();
    let mut readers: HashMap<Key, Vec<usize>> = HashMap::new();
    let uses: Vec<MemoryUse> = (code.iter().enumerate())
        .map(|(index, instruction)| memory_use(&instruction.op, is_nc(first + index)))
        .collect();
    let latencies: Vec<f64> = code
        .iter()
        .map(|instruction| latency_of(&instruction.op, device))
        .collect();
    for (index, instruction) in code.iter().enumerate() {
        let mut edges: Vec<(usize, f64)> = Vec::new();
        instruction.reads(|register| {
            let key = Key::of(register);
            if let Some(&writer) = last_write.get(&key) {
                edges.push((writer, latencies[writer]));
            }
            readers.entry(key).or_default().push(index);
        });
        instruction.writes(|register| {
            let key = Key::of(register);
            if let Some(&writer) = last_write.get(&key) {
                edges.push((writer, 1.0));
            }
            for reader in readers.remove(&key).unwrap_or_default() {
                edges.push((reader, 0.0));
            }
            last_write.insert(key, index);
        });
        if uses[index] != MemoryUse::None {
            let earlier = (0..index).filter(|&other| conflicts(uses[other], uses[index]));
            edges.extend(earlier.map(|other| (other, 0.0)));
        }
        let ends_block = index + 1 == n
            && matches!(
                instruction.op,
                Op::Branch { .. }
                    | Op::BranchTable { .. }
                    | Op::Exit
                    | Op::Trap
                    | Op::Barrier { .. }
                    | Op::Async(AsyncOp::GroupWait { .. } | AsyncOp::GroupFence | AsyncOp::TryWait { .. })
            );
        if ends_block {
            edges.extend((0..index).map(|other| (other, 0.0)));
        }
        edges.retain(|&(other, _)| other != index);
        for (other, clocks) in edges {
            successors[other].push((index, clocks));
            n_waits[index] += 1;
        }
    }
    // Longest path to the end.
    let mut priority = vec![0.0f64; n];
    for index in (0..n).rev() {
        let ahead = successors[index]
            .iter()
            .map(|&(other, clocks)| clocks + priority[other])
            .fold(latencies[index], f64::max);
        priority[index] = ahead;
    }
    let mut earliest = vec![0.0f64; n];
    let mut ready: Vec<usize> = (0..n).filter(|&index| n_waits[index] == 0).collect();
    let mut clock = 0.0f64;
    let mut order = Vec::with_capacity(n);
    while !ready.is_empty() {
        let soonest = ready
            .iter()
            .map(|&index| earliest[index])
            .fold(f64::INFINITY, f64::min);
        clock = clock.max(soonest);
        let mut best = usize::MAX;
        for (position, &index) in ready.iter().enumerate() {
            if earliest[index] > clock {
                continue;
            }
            let is_better = best == usize::MAX
                || priority[index] > priority[ready[best]]
                || (priority[index] >= priority[ready[best]] && index < ready[best]);
            if is_better {
                best = position;
            }
        }
        let index = ready.swap_remove(best);
        order.push(index);
        for &(other, clocks) in &successors[index] {
            earliest[other] = earliest[other].max(clock + clocks);
            n_waits[other] -= 1;
            if n_waits[other] == 0 {
                ready.push(other);
            }
        }
        clock += 1.0;
    }
    pcs(order)
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key(u8, u16);

impl Key {
    fn of(register: Register) -> Self {
        match register {
            Register::R32(index) => Self(0, index),
            Register::R64(index) => Self(1, index),
            Register::Pred(index) => Self(2, index),
        }
    }
}

//! Registers that a thread may read before it has written them.
//!
//! A thread block begins with zeros only in these registers: the others hold values of the previous thread block, which no thread can
//! see. A kernel has thousands of registers of 128 bytes a warp, so clearing all of them took a third of the time of small thread
//! blocks. Invariant: a register that some path reads first is listed, whatever the other paths do.

use crate::op::{Instruction, Op, Reg, Register};

/// Registers that are zeroed when a thread block begins.
#[derive(Debug, Default)]
pub(crate) struct ReadFirst {
    pub(crate) regs32: Vec<Reg>,
    pub(crate) regs64: Vec<u16>,
}

/// Instructions that are executed one after the other.
struct Stretch {
    start: usize,
    end: usize,
    next: Vec<usize>,
    /// Registers that all paths to its start have written; all of them if no path is known.
    written: Bits,
}

#[derive(Clone, PartialEq)]
struct Bits(Vec<u64>);

impl Bits {
    fn all(n: usize) -> Self {
        Self(vec![u64::MAX; n.div_ceil(64)])
    }

    fn none(n: usize) -> Self {
        Self(vec![0; n.div_ceil(64)])
    }

    fn set(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    fn has(&self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 == 1
    }

    /// Keeps the registers that the other has too; returns whether that changes anything.
    fn intersect(&mut self, other: &Self) -> bool {
        let mut is_changed = false;
        for (word, &other) in self.0.iter_mut().zip(&other.0) {
            is_changed |= *word & !other != 0;
            *word &= other;
        }
        is_changed
    }
}

/// Finds them in code with resolved branches, and with this many registers of 32 and of 64 bits. `constants` are written before it
/// begins. Predicates are few and are skipped.
pub(crate) fn read_first(
    code: &[Instruction],
    [n_regs32, n_regs64]: [usize; 2],
    constants: impl IntoIterator<Item = Register>,
) -> ReadFirst {
    let n = n_regs32 + n_regs64;
    let index_of = |register: Register| match register {
        Register::R32(index) => Some(usize::from(index)),
        Register::R64(index) => Some(n_regs32 + usize::from(index)),
        Register::Pred(_) => None,
    };
    let mut stretches = stretches(code, n);
    let Some(first) = stretches.first_mut() else {
        return ReadFirst::default();
    };
    first.written = Bits::none(n);
    for index in constants.into_iter().filter_map(index_of) {
        first.written.set(index);
    }
    let write = |stretch: &Stretch, mut read: Option<&mut Bits>| {
        let mut written = stretch.written.clone();
        for instruction in &code[stretch.start..stretch.end] {
            if let Some(read) = read.as_deref_mut() {
                instruction.reads(|register| {
                    if let Some(index) = index_of(register).filter(|&index| !written.has(index)) {
                        read.set(index);
                    }
                });
            }
            // A guarded instruction may write nothing.
            if instruction.guard.is_none() {
                instruction.writes(|register| {
                    if let Some(index) = index_of(register) {
                        written.set(index);
                    }
                });
            }
        }
        written
    };
    let mut to_do = vec![0];
    while let Some(index) = to_do.pop() {
        let written = write(&stretches[index], None);
        for next in stretches[index].next.clone() {
            if stretches[next].written.intersect(&written) {
                to_do.push(next);
            }
        }
    }
    let mut read = Bits::none(n);
    for stretch in &stretches {
        write(stretch, Some(&mut read));
    }
    ReadFirst {
        regs32: (0..n_regs32)
            .filter(|&index| read.has(index))
            .map(|index| index as Reg)
            .collect(),
        regs64: (0..n_regs64)
            .filter(|&index| read.has(n_regs32 + index))
            .map(|index| index as u16)
            .collect(),
    }
}

/// Splits a kernel where paths separate and meet.
fn stretches(code: &[Instruction], n_registers: usize) -> Vec<Stretch> {
    let targets = |op: &Op| match op {
        Op::Branch { to } => vec![*to as usize],
        Op::BranchTable { targets, .. } => targets.iter().map(|&to| to as usize).collect(),
        _ => Vec::new(),
    };
    let mut is_start = vec![false; code.len() + 1];
    is_start[0] = true;
    for (pc, instruction) in code.iter().enumerate() {
        for to in targets(&instruction.op).into_iter().filter(|&to| to < code.len()) {
            is_start[to] = true;
        }
        if matches!(
            instruction.op,
            Op::Branch { .. } | Op::BranchTable { .. } | Op::Exit | Op::Trap
        ) {
            is_start[pc + 1] = true;
        }
    }
    let starts: Vec<usize> = (0..code.len()).filter(|&pc| is_start[pc]).collect();
    (starts.iter().enumerate())
        .map(|(index, &start)| {
            let end = starts.get(index + 1).copied().unwrap_or(code.len());
            let last = &code[end - 1];
            let goes_on = last.guard.is_some() || !matches!(last.op, Op::Branch { .. } | Op::Exit | Op::Trap);
            let next = targets(&last.op).into_iter().chain(goes_on.then_some(end));
            Stretch {
                start,
                end,
                next: next.filter_map(|to| starts.binary_search(&to).ok()).collect(),
                written: Bits::all(n_registers),
            }
        })
        .collect()
}

//! The matrix operations of warpgroups (`wgmma`): four warps multiply 64 rows of A with B while they continue.
//!
//! Each warp has 16 of the rows, so each computes its own, and the four need not be at the instruction together; they must execute
//! the same instruction, which is checked. The results are in the registers at once, but they are poisoned until the warp has waited
//! for the group: an earlier read gives NaN and a finding. A copy of a register (`mov`) is not an access: the assembler gives both
//! one register. Fragments are those of `mma.sync` m16n8k16, one after the other along the columns. Source: PTX ISA, "Register
//! fragments and shared memory matrix layouts" of `wgmma`. Products are exact in f32 and summed in order of k; a device sums in
//! another order.

use super::{
    BlockRunner, FULL, Stop, Warp,
    shared::{Place, TILE_K, Tile},
};
use crate::{
    FindingKind,
    half::{bf16_to_f32, f16_to_f32},
    kernel::Kernel,
    lanes::LANES,
    op::{AsyncOp, GroupLeft, GroupMultiply, Instruction, Op, Register},
};

/// Warps of a warpgroup.
const GROUP_WARPS: u32 = 4;
/// Rows of a warp.
const ROWS: usize = 16;
/// The value that a thread reads from an accumulator of an unfinished operation: a NaN.
const POISON: u32 = 0x7fff_dead;

/// A matrix operation that a warp has not waited for.
#[derive(Clone, Debug)]
struct Unfinished {
    group: u32,
    tiles: Vec<Tile>,
    /// The warp's vector clock when the operation began.
    known: Vec<u32>,
    pc: u32,
}

/// The matrix operations of a warp.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// By 32-bit register: one more than the group that writes it, or that reads it as A; 0 for none.
    writes: Vec<u32>,
    reads: Vec<u32>,
    /// Whether an ordinary instruction has touched the register since the last `wgmma.fence`.
    is_touched: Vec<bool>,
    has_fenced: bool,
    committed: u32,
    unfinished: Vec<Unfinished>,
    /// Number of matrix operations so far.
    n: usize,
}

/// Operands that all four warps of a warpgroup must share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pc: u32,
    a: u64,
    b: u64,
    adds: bool,
}

/// Returns whether a kernel has such operations.
pub(super) fn has_groups(kernel: &Kernel) -> bool {
    let is_group = |op: &Op| matches!(op, Op::Async(AsyncOp::GroupMultiply(_)));
    kernel.code.iter().any(|instruction| is_group(&instruction.op))
}

impl Groups {
    pub(super) fn reset(&mut self, kernel: &Kernel) {
        let n = kernel.n_regs32;
        *self = Self {
            writes: vec![0; n],
            reads: vec![0; n],
            is_touched: vec![false; n],
            ..Self::default()
        };
        self.touch_constants(kernel);
    }

    /// Marks copied constants as touched: a copy of a constant is a write.
    fn touch_constants(&mut self, kernel: &Kernel) {
        for (register, _) in &kernel.constants32 {
            self.is_touched[usize::from(*register)] = true;
        }
    }
}

impl BlockRunner<'_> {
    /// Reports ordinary accesses to registers of unfinished operations, and notes which registers need a fence.
    pub(super) fn note_registers(&mut self, warp: &mut Warp, instruction: &Instruction, mask: u32, pc: u32) {
        match &instruction.op {
            Op::Async(AsyncOp::GroupMultiply(_)) => return,
            Op::Move32 { d, a } => {
                let (d, a) = (usize::from(*d), usize::from(*a));
                let groups = &mut warp.groups;
                let overwrites = groups.writes[a] == 0 && groups.writes[d] != 0 || groups.reads[d] != 0;
                groups.writes[d] = groups.writes[a];
                groups.reads[d] = 0;
                groups.is_touched[d] = groups.is_touched[a];
                if overwrites {
                    self.find(
                        warp.index,
                        mask.trailing_zeros(),
                        pc,
                        FindingKind::EarlyAccumulator,
                    );
                }
                return;
            }
            _ => {}
        }
        let mut is_early = false;
        let Warp {
            groups, registers, ..
        } = warp;
        instruction.reads(|register| {
            if let Register::R32(index) = register {
                let index = usize::from(index);
                groups.is_touched[index] = true;
                if groups.writes[index] != 0 {
                    is_early = true;
                    groups.writes[index] = 0;
                    registers.regs32[index] = [POISON; LANES];
                }
            }
        });
        instruction.writes(|register| {
            if let Register::R32(index) = register {
                let index = usize::from(index);
                groups.is_touched[index] = true;
                is_early |= groups.writes[index] != 0 || groups.reads[index] != 0;
                groups.writes[index] = 0;
                groups.reads[index] = 0;
            }
        });
        if is_early {
            self.find(
                warp.index,
                mask.trailing_zeros(),
                pc,
                FindingKind::EarlyAccumulator,
            );
        }
    }

    pub(super) fn group_fence(&mut self, warp: &mut Warp) {
        warp.groups.has_fenced = true;
        warp.groups.is_touched.fill(false);
        warp.groups.touch_constants(self.context.kernel);
    }

    pub(super) fn group_commit(warp: &mut Warp) {
        warp.groups.committed += 1;
    }

    pub(super) fn group_wait(&mut self, warp: &mut Warp, pending: u32) {
        let end = warp.groups.committed.saturating_sub(pending);
        let groups = &mut warp.groups;
        for tag in groups.writes.iter_mut().chain(&mut groups.reads) {
            if *tag <= end {
                *tag = 0;
            }
        }
        let (done, left) = std::mem::take(&mut groups.unfinished)
            .into_iter()
            .partition(|one| one.group < end);
        groups.unfinished = left;
        let done: Vec<Unfinished> = done;
        for one in done {
            for tile in one.tiles {
                self.end_read_of_tile(warp, tile, &one.known, one.pc);
            }
        }
    }

    pub(super) fn group_multiply(
        &mut self,
        warp: &mut Warp,
        multiply: &GroupMultiply,
        mask: u32,
        pc: u32,
    ) -> Result<(), Stop> {
        let (a, b) = self.check_group(warp, multiply, mask, pc);
        let value = if multiply.is_bf16 { bf16_to_f32 } else { f16_to_f32 };
        let n_columns = multiply.n_columns();
        let mut tiles = Vec::new();
        let mut read = |runner: &mut Self, place: Place, first: usize, n: usize| {
            let tile = match Tile::new(place, first, n) {
                Ok(tile) => tile,
                Err(problem) => {
                    let descriptor = place.descriptor;
                    runner.find(
                        warp.index,
                        0,
                        pc,
                        FindingKind::BadDescriptor { descriptor, problem },
                    );
                    return Err(Stop);
                }
            };
            tiles.push(tile);
            runner.read_tile(warp, tile, value, pc)
        };
        let place = |descriptor, is_transposed| Place {
            descriptor,
            is_transposed,
        };
        let right = read(self, place(b, multiply.transposes[1]), 0, n_columns)?;
        let left = match multiply.a {
            GroupLeft::Shared(_) => {
                let first = (warp.index % GROUP_WARPS) as usize * ROWS;
                read(self, place(a, multiply.transposes[0]), first, ROWS)?
            }
            GroupLeft::Registers(registers) => rows_of(&registers.map(|a| *warp.r32(a)), value),
        };
        let sign = if multiply.negates[0] == multiply.negates[1] {
            1.0
        } else {
            -1.0
        };
        let adds = warp.pred(multiply.adds) & 1 == 1;
        for (index, &d) in multiply.d.iter().enumerate() {
            let before = *warp.r32(d);
            let after = std::array::from_fn(|lane| {
                let row = &left[lane / 4 + 8 * (index / 2 % 2)];
                let column = &right[index / 4 * 8 + lane % 4 * 2 + index % 2];
                let mut sum = if adds { f32::from_bits(before[lane]) } else { 0.0 };
                for k in 0..TILE_K {
                    sum += sign * row[k] * column[k];
                }
                sum.to_bits()
            });
            warp.set32(d, &after, FULL);
        }
        let known = self.known_at_begin(warp);
        let groups = &mut warp.groups;
        let tag = groups.committed + 1;
        for &d in &multiply.d {
            groups.writes[usize::from(d)] = tag;
        }
        if let GroupLeft::Registers(registers) = multiply.a {
            for a in registers {
                groups.reads[usize::from(a)] = tag;
            }
        }
        groups.unfinished.push(Unfinished {
            group: groups.committed,
            tiles,
            known,
            pc,
        });
        Ok(())
    }

    /// Checks the preconditions of the operation and the agreement of the warps. Returns the descriptors, 0 for A in registers.
    fn check_group(&mut self, warp: &mut Warp, multiply: &GroupMultiply, mask: u32, pc: u32) -> (u64, u64) {
        let b = *warp.r64(multiply.b);
        let a = match multiply.a {
            GroupLeft::Shared(a) => *warp.r64(a),
            GroupLeft::Registers(_) => [0; LANES],
        };
        let adds = warp.pred(multiply.adds);
        let shape = Shape {
            pc,
            a: a[0],
            b: b[0],
            adds: adds & 1 == 1,
        };
        let group = (warp.index / GROUP_WARPS) as usize;
        let n = warp.groups.n;
        warp.groups.n += 1;
        let shapes = &mut self.group_shapes[group];
        let is_same = if n == shapes.len() {
            shapes.push(shape);
            true
        } else {
            shapes.get(n) == Some(&shape)
        };
        let n_warps = self.warps.len() as u32;
        let is_whole = (warp.index / GROUP_WARPS + 1) * GROUP_WARPS <= n_warps && mask == FULL;
        let is_uniform = a == [a[0]; LANES] && b == [b[0]; LANES] && (adds == 0 || adds == FULL);
        if !(is_same && is_whole && is_uniform) {
            self.find(warp.index, 0, pc, FindingKind::DivergentGroup);
        }
        let registers = match &multiply.a {
            GroupLeft::Registers(a) => a.as_slice(),
            GroupLeft::Shared(_) => &[],
        };
        let groups = &warp.groups;
        let is_touched = |&register: &u16| groups.is_touched[usize::from(register)];
        if !groups.has_fenced || registers.iter().any(is_touched) || multiply.d.iter().any(is_touched) {
            self.find(warp.index, 0, pc, FindingKind::MissingGroupFence);
        }
        (a[0], b[0])
    }
}

/// Returns the rows of A that a warp holds.
fn rows_of(registers: &[[u32; LANES]; 4], value: fn(u16) -> f32) -> Vec<[f32; TILE_K]> {
    let mut rows = vec![[0.0; TILE_K]; ROWS];
    for (index, register) in registers.iter().enumerate() {
        for (lane, &bits) in register.iter().enumerate() {
            let row = &mut rows[lane / 4 + 8 * (index % 2)];
            let k = 8 * (index / 2) + 2 * (lane % 4);
            row[k] = value(bits as u16);
            row[k + 1] = value((bits >> 16) as u16);
        }
    }
    rows
}

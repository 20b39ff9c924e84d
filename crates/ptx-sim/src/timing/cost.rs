//! [`Cost`]: the share of a scheduler that an instruction occupies, and the latency of its result.
//!
//! It is a table. A GPU does not run PTX: the assembler turns an instruction into one or
//! several of the device's. Copies of registers and generic addresses are taken to cost nothing, 64-bit integer operations two
//! instructions, divisions and exact roots the sequences that the assembler writes for them. Additions, products and left shifts of integers go to the unit of integers or that of floats. These are assumptions, read off
//! disassembled kernels, not documented.

use super::DeviceProfile;
use crate::{
    lanes::{Binary32, Binary64, Narrow, Ternary32, Ternary64, Unary32, Unary64, Widen},
    op::{Class, MatrixKind, Op},
};

/// Selects the unit of a scheduler that is busy for some clocks with an instruction; the units of memory and shuffles belong to the whole
/// multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Only the scheduler's slot.
    None,
    Float,
    Integer,
    /// The unit of the two that is free sooner.
    FloatOrInteger,
    Half,
    Double,
    Special,
    Matrix,
}

impl Unit {
    pub(super) const COUNT: usize = 8;
}

/// The cost of an instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// Instructions that the scheduler issues.
    pub(super) slots: f64,
    pub(super) unit: Unit,
    /// Clocks of the unit.
    pub(super) unit_clocks: f64,
    /// Clocks until the result can be used, if it is not a memory access.
    pub(super) latency: f64,
}

/// The schedulers of a multiprocessor.
pub(super) const N_SCHEDULERS: usize = 4;

impl Cost {
    pub(super) fn of(op: &Op, device: &DeviceProfile) -> Self {
        let lanes = &device.lanes;
        let latency = &device.latency;
        let per_scheduler = |lanes: f64| 32.0 * N_SCHEDULERS as f64 / lanes;
        let plain = |slots: f64, unit, lanes: f64, latency| Self {
            slots,
            unit,
            unit_clocks: slots * per_scheduler(lanes),
            latency,
        };
        let free = Self {
            slots: 0.0,
            unit: Unit::None,
            unit_clocks: 0.0,
            latency: 0.0,
        };
        let issue = |slots, latency| Self {
            slots,
            unit: Unit::None,
            unit_clocks: 0.0,
            latency,
        };
        let integer = |slots: f64| {
            let chain = latency.arithmetic * slots.max(1.0);
            plain(slots, Unit::Integer, lanes.integer, chain)
        };
        match op {
            Op::Move32 { .. }
            | Op::Move64 { .. }
            | Op::MovePred { .. }
            | Op::ToGeneric { .. }
            | Op::FromGeneric { .. }
            | Op::Widen {
                f: Widen::ZeroExtend, ..
            }
            | Op::Narrow {
                f: Narrow::Low | Narrow::High,
                ..
            } => free,
            Op::Binary32 {
                f: Binary32::DivU | Binary32::DivS | Binary32::RemU | Binary32::RemS,
                ..
            } => integer(20.0),
            Op::Binary64 {
                f: Binary64::DivU | Binary64::DivS | Binary64::RemU | Binary64::RemS,
                ..
            } => integer(70.0),
            Op::Binary64 {
                f: Binary64::MulLow, ..
            }
            | Op::Ternary64 {
                f: Ternary64::Mad, ..
            } => integer(3.0),
            Op::Binary32 {
                f: Binary32::FDiv, ..
            } => plain(
                8.0,
                Unit::Float,
                lanes.float32,
                latency.special + 8.0 * latency.arithmetic,
            ),
            Op::Unary32 {
                f: Unary32::FSqrt, ..
            } => plain(
                6.0,
                Unit::Float,
                lanes.float32,
                latency.special + 6.0 * latency.arithmetic,
            ),
            Op::Unary64 {
                f: Unary64::DSqrt | Unary64::DRcp | Unary64::DRsqrt,
                ..
            }
            | Op::Binary64 {
                f: Binary64::DDiv, ..
            } => plain(10.0, Unit::Double, lanes.float64, 20.0 * latency.arithmetic),
            // The assembler writes these as multiplications if the other unit is busy.
            Op::Wide { .. }
            | Op::MadWide { .. }
            | Op::Binary32 {
                f: Binary32::Add | Binary32::Sub | Binary32::Shl | Binary32::MulLow,
                ..
            }
            | Op::Ternary32 {
                f: Ternary32::Mad, ..
            } => plain(1.0, Unit::FloatOrInteger, lanes.integer, latency.arithmetic),
            Op::Matrix { kind, .. } => {
                // In products of f16; s8 has twice their rate, tf32 half of it.
                let products = match kind {
                    MatrixKind::F16F32
                    | MatrixKind::F16F16
                    | MatrixKind::Bf16
                    | MatrixKind::Tf32
                    | MatrixKind::S8 => 2048.0,
                    MatrixKind::F16K8 | MatrixKind::S8K16 => 1024.0,
                };
                Self {
                    slots: 1.0,
                    unit: Unit::Matrix,
                    unit_clocks: products * N_SCHEDULERS as f64 / device.matrix_f16_per_clock,
                    latency: latency.matrix,
                }
            }
            // The simulation handles its tensor core and its wait.
            Op::Async(_) => issue(1.0, latency.arithmetic),
            _ => match op.class() {
                Class::Integer | Class::DotProduct => integer(1.0),
                Class::Integer64 => integer(2.0),
                Class::Float32 => plain(1.0, Unit::Float, lanes.float32, latency.arithmetic),
                Class::Float64 => plain(1.0, Unit::Double, lanes.float64, 2.0 * latency.arithmetic),
                Class::Float16 => plain(1.0, Unit::Half, lanes.float16, latency.arithmetic),
                Class::Special => plain(1.0, Unit::Special, lanes.special, latency.special),
                Class::Convert => plain(1.0, Unit::Integer, lanes.convert, latency.convert),
                Class::WarpExchange => issue(1.0, latency.shuffle),
                _ => issue(1.0, latency.arithmetic),
            },
        }
    }
}

/// Returns whether an instruction goes through the unit that all schedulers share.
pub(super) fn uses_memory_unit(op: &Op) -> bool {
    matches!(
        op,
        Op::Load { .. }
            | Op::Store { .. }
            | Op::Atomic { .. }
            | Op::CopyAsync { .. }
            | Op::LoadMatrix { .. }
            | Op::Shuffle { .. }
    )
}

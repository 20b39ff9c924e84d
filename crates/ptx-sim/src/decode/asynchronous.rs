//! Barriers in shared memory, bulk copies and the matrix operations of warpgroups.

use super::Decoder;
use crate::{
    LoadError,
    op::{AsyncOp, GroupLeft, GroupMultiply, Op},
    parse::Operand,
    types::Space,
};

/// Registers of D at most: 256 columns.
const MAX_ACCUMULATORS: usize = 128;

impl Decoder<'_> {
    /// Decodes `mbarrier`, `elect`, `setmaxnreg`, `wgmma` and the `fence` and `cp` forms that belong to them; `false` for anything else.
    pub(super) fn asynchronous(
        &mut self,
        modifiers: &[&str],
        operands: &[Operand],
    ) -> Result<bool, LoadError> {
        let (target, is_specific) = (self.source.target, self.source.is_specific);
        let op = match (modifiers, operands) {
            (["mbarrier", ..], _) if target >= 80 => return self.counting_barrier(modifiers, operands),
            _ if target < 90 => return Ok(false),
            (["fence", "proxy", "async"] | ["fence", "proxy", "async", "shared::cta"], []) => {
                AsyncOp::ProxyFence
            }
            (["fence", "mbarrier_init", "release", "cluster"], []) => AsyncOp::BarrierFence,
            (["elect", "sync"], [Operand::Pair(d, p), members]) => AsyncOp::Elect {
                d: Some(self.target32(d)?),
                p: self.target_pred(p)?,
                members: self.source32(members)?,
            },
            (
                [
                    "cp",
                    "async",
                    "bulk",
                    "shared::cluster" | "shared::cta",
                    "global",
                    rest @ ..,
                ],
                [to, from, bytes, barrier],
            ) if *rest == ["mbarrier::complete_tx::bytes"] => AsyncOp::BulkCopy {
                to: self.address(to, Space::Shared)?,
                from: self.address(from, Space::Global)?,
                bytes: self.source32(bytes)?,
                barrier: self.address(barrier, Space::Shared)?,
            },
            // The remaining instructions exist on one architecture only.
            _ if !is_specific || target != 90 => return Ok(false),
            (["setmaxnreg", "inc" | "dec", "sync", "aligned", "u32"], [Operand::Integer(n)]) => {
                if !(24..=256).contains(n) || !n.is_multiple_of(8) {
                    return Err(self.operands("24 to 256 registers, a multiple of 8"));
                }
                AsyncOp::SetRegisters
            }
            (["wgmma", "fence", "sync", "aligned"], []) => AsyncOp::GroupFence,
            (["wgmma", "commit_group", "sync", "aligned"], []) => AsyncOp::GroupCommit,
            (["wgmma", "wait_group", "sync", "aligned"], [Operand::Integer(pending)]) => AsyncOp::GroupWait {
                pending: *pending as u32,
            },
            (["wgmma", "mma_async", "sync", "aligned", shape, "f32", types @ ..], _) => {
                return self.group_multiply(shape, types, operands);
            }
            _ => return Ok(false),
        };
        self.emit(Op::Async(op));
        Ok(true)
    }

    fn counting_barrier(&mut self, modifiers: &[&str], operands: &[Operand]) -> Result<bool, LoadError> {
        // Scopes and orders below are the defaults or weaker; the simulated device orders as the defaults do.
        let action: Vec<&str> = modifiers[1..]
            .iter()
            .copied()
            .filter(|modifier| {
                !matches!(
                    *modifier,
                    "release" | "acquire" | "cta" | "shared" | "shared::cta"
                )
            })
            .collect();
        let is_shared = modifiers.iter().any(|m| matches!(*m, "shared" | "shared::cta"));
        if !is_shared || modifiers.last() != Some(&"b64") {
            return Ok(false);
        }
        let is_hopper = self.source.target >= 90;
        let op = match (action.as_slice(), operands) {
            (["init", "b64"], [at, count]) => AsyncOp::BarrierInit {
                at: self.address(at, Space::Shared)?,
                count: self.source32(count)?,
            },
            (["inval", "b64"], [at]) => AsyncOp::BarrierEnd {
                at: self.address(at, Space::Shared)?,
            },
            // Only waits that are not executed use the state.
            (["arrive", "b64"], [Operand::Name(state), at, count @ ..])
                if state == "_" && count.len() <= 1 =>
            {
                AsyncOp::Arrive {
                    at: self.address(at, Space::Shared)?,
                    arrives: true,
                    count: count.first().map(|count| self.source32(count)).transpose()?,
                    expected_bytes: None,
                }
            }
            (["arrive", "expect_tx", "b64"], [Operand::Name(state), at, bytes])
                if is_hopper && state == "_" =>
            {
                AsyncOp::Arrive {
                    at: self.address(at, Space::Shared)?,
                    arrives: true,
                    count: None,
                    expected_bytes: Some(self.source32(bytes)?),
                }
            }
            (["expect_tx", "relaxed", "b64"], [at, bytes]) if is_hopper => AsyncOp::Arrive {
                at: self.address(at, Space::Shared)?,
                arrives: false,
                count: None,
                expected_bytes: Some(self.source32(bytes)?),
            },
            (["try_wait", "parity", "b64"], [d, at, parity] | [d, at, parity, _]) if is_hopper => {
                AsyncOp::TryWait {
                    at: self.address(at, Space::Shared)?,
                    parity: self.source32(parity)?,
                    d: self.target_pred(d)?,
                }
            }
            _ => return Ok(false),
        };
        self.emit(Op::Async(op));
        Ok(true)
    }

    /// `wgmma.mma_async.sync.aligned.m64nNk16.f32.{f16,bf16} D, A, B, adds, factor of A, factor of B[, A is transposed], B is transposed`.
    fn group_multiply(
        &mut self,
        shape: &str,
        types: &[&str],
        operands: &[Operand],
    ) -> Result<bool, LoadError> {
        let is_bf16 = match types {
            ["f16", "f16"] => false,
            ["bf16", "bf16"] => true,
            _ => return Ok(false),
        };
        let n = shape
            .strip_prefix("m64n")
            .and_then(|rest| rest.strip_suffix("k16"))
            .and_then(|n| n.parse::<usize>().ok());
        let Some(n) = n.filter(|n| n.is_multiple_of(8) && (8..=2 * MAX_ACCUMULATORS).contains(n)) else {
            return Ok(false);
        };
        let [d, a, b, adds, factors @ ..] = operands else {
            return Err(self.operands("D, A, B, a predicate, two factors and whether each is transposed"));
        };
        let in_registers = matches!(a, Operand::Vector(_));
        let numbers: Vec<i64> = factors
            .iter()
            .filter_map(|factor| match factor {
                Operand::Integer(value) => Some(*value as i64),
                _ => None,
            })
            .collect();
        let (factor_a, factor_b, transposed) = match (numbers.as_slice(), in_registers) {
            (&[factor_a, factor_b, b], true) => (factor_a, factor_b, [0, b]),
            (&[factor_a, factor_b, a, b], false) => (factor_a, factor_b, [a, b]),
            _ => {
                return Err(
                    self.operands("two factors and whether each matrix in shared memory is transposed")
                );
            }
        };
        if !transposed.iter().all(|flag| matches!(flag, 0 | 1)) {
            return Err(self.operands("0 or 1 for whether a matrix is transposed"));
        }
        if ![factor_a, factor_b].iter().all(|factor| matches!(factor, 1 | -1)) {
            return Err(self.operands("factors of 1 or -1"));
        }
        let d: [u16; MAX_ACCUMULATORS] = self.registers(d, n / 2)?;
        let a = if in_registers {
            GroupLeft::Registers(self.registers(a, 4)?)
        } else {
            GroupLeft::Shared(self.source64(a)?)
        };
        let b = self.source64(b)?;
        let (adds, false) = self.source_pred(adds)? else {
            return Err(self.operands("a predicate that is not negated"));
        };
        self.emit(Op::Async(AsyncOp::GroupMultiply(Box::new(GroupMultiply {
            is_bf16,
            d: d[..n / 2].into(),
            a,
            b,
            adds,
            negates: [factor_a, factor_b].map(|factor| factor < 0),
            transposes: transposed.map(|flag| flag == 1),
        }))));
        Ok(true)
    }
}

//! [`Slots`]: the memory of a program's values.
//!
//! A value needs memory from the operation that writes it to the last one that reads it; values that are never needed at once
//! share a slot. Invariant: a slot is written only where its former value is dead.

use std::ops::Range;

use crate::{ExecutorLimits, NetworkPart};

use super::{Op, OperandRole, Program, Stamped, Value, ValueInfo};

/// Memory that values share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// f32 numbers.
    Floats {
        /// Largest number of rows.
        max_rows: usize,
        /// Number of values per row.
        width: usize,
    },
    /// Routes of experts.
    Routes {
        /// Largest number of rows.
        max_rows: usize,
        /// Number of experts.
        n_experts: usize,
        /// Number of experts per row.
        n_used: usize,
    },
}

/// The slots of a network's programs. One set serves the programs of all variants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    slots: Vec<Slot>,
}

impl Slots {
    /// Returns the slots, by index.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Assigns a slot to each value of a program, which is changed: where an operation takes over a value that is read later,
    /// a copy is made for it. Returns the slots by value; values that no operation writes have none.
    pub fn assign(&mut self, program: &mut Program, limits: &ExecutorLimits) -> Vec<Option<u32>> {
        program.insert_moves();
        let last_uses = program.last_uses();
        let mut dying: Vec<Vec<Value>> = vec![Vec::new(); program.ops.len()];
        for (idx, last) in last_uses.iter().enumerate() {
            if let Some(dying) = last.and_then(|op_idx| dying.get_mut(op_idx)) {
                dying.push(Value(idx as u32));
            }
        }
        let mut slot_of: Vec<Option<u32>> = vec![None; program.values.len()];
        let mut holders: Vec<Option<Value>> = vec![None; self.slots.len()];
        for (op_idx, Stamped { op, .. }) in program.ops.iter().enumerate() {
            let operands = op.operands();
            let taken: Vec<(Value, OperandRole)> = (operands.iter())
                .filter(|(_, role)| matches!(role, OperandRole::Take | OperandRole::MayTake))
                .copied()
                .collect();
            if let Op::AsLogits { x, y } = op {
                // The slot stays with the first name until both are dead.
                slot_of[y.index()] = slot_of[x.index()];
                continue;
            }
            for (idx, value) in op.results().enumerate() {
                let source = taken.get(idx).filter(|(source, role)| {
                    *role == OperandRole::Take || last_uses[source.index()] == Some(op_idx)
                });
                let slot = if let Some((source, _)) = source {
                    slot_of[source.index()].expect("an operand has a slot") as usize
                } else {
                    let wanted = slot_for(program.values[value.index()], limits);
                    let is_free =
                        |(slot, holder): (&Slot, &Option<Value>)| holder.is_none() && *slot == wanted;
                    (self.slots.iter().zip(&holders))
                        .position(is_free)
                        .unwrap_or_else(|| {
                            self.slots.push(wanted);
                            holders.push(None);
                            self.slots.len() - 1
                        })
                };
                holders[slot] = Some(value);
                slot_of[value.index()] = Some(slot as u32);
            }
            for value in &dying[op_idx] {
                if let Some(slot) = slot_of[value.index()]
                    && holders[slot as usize] == Some(*value)
                {
                    holders[slot as usize] = None;
                }
            }
        }
        slot_of
    }
}

fn slot_for(info: ValueInfo, limits: &ExecutorLimits) -> Slot {
    match info {
        ValueInfo::Floats { rows, width } => Slot::Floats {
            max_rows: rows.at_most(limits),
            width,
        },
        ValueInfo::Routes {
            rows,
            n_experts,
            n_used,
        } => Slot::Routes {
            max_rows: rows.at_most(limits),
            n_experts,
            n_used,
        },
    }
}

/// Operations after the route of a layer's experts that may run in either order, so that two devices can compute at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    /// The operations of the experts.
    pub experts: Range<usize>,
    /// The operations of the shared network.
    pub shared: Range<usize>,
}

impl Program {
    /// Returns the experts and the shared network after the route at an index, which may run in either order.
    pub(super) fn beside(&self, route_idx: usize) -> Option<Beside> {
        let Op::Route { y: routes, .. } = self.ops[route_idx].op else {
            return None;
        };
        let NetworkPart::Experts(layer_idx) = self.ops[route_idx].part else {
            return None;
        };
        let own = NetworkPart::Ffn(layer_idx);
        let combine = self.ops.iter().position(
            |stamped| matches!(stamped.op, Op::Combine { routes: combined, .. } if combined == routes),
        )?;
        let shared = (route_idx + 1..combine).find(|&op_idx| self.ops[op_idx].part == own)?;
        let beside = Beside {
            experts: route_idx + 1..shared,
            shared: shared..combine,
        };
        let results = self.operands_in(&beside.experts, |role| role == OperandRole::Result);
        let reads = self.operands_in(&beside.shared, |role| role != OperandRole::Result);
        (!reads.iter().any(|value| results.contains(value))).then_some(beside)
    }

    /// Returns the operands of some operations that are used in some ways.
    fn operands_in(&self, ops: &Range<usize>, is_of: impl Fn(OperandRole) -> bool) -> Vec<Value> {
        let operands = self.ops[ops.clone()]
            .iter()
            .flat_map(|stamped| stamped.op.operands());
        operands
            .filter_map(|(value, role)| is_of(role).then_some(value))
            .collect()
    }

    /// Returns the index of the last operation until which each value is needed; `None` for values that no operation has.
    fn last_uses(&self) -> Vec<Option<usize>> {
        let mut last = vec![None; self.values.len()];
        let mut keep = |value: Value, op_idx: usize| {
            let last = &mut last[value.index()];
            *last = (*last).max(Some(op_idx));
        };
        for (op_idx, Stamped { op, .. }) in self.ops.iter().enumerate() {
            for (value, _) in op.operands() {
                keep(value, op_idx);
            }
            match op {
                Op::Tap { y, .. } => keep(*y, usize::MAX),
                // A device may leave the norm to the product that follows, which then reads the sum.
                Op::LinearAddNorm { sum, .. } => keep(*sum, op_idx + 1),
                _ => {}
            }
            if let Some(Beside { experts, shared }) = self.beside(op_idx) {
                for value in self.operands_in(&experts, |_| true) {
                    keep(value, shared.end);
                }
            }
        }
        self.share_last(&mut last);
        last
    }

    /// Extends the time of values with two names: each is needed as long as the other.
    fn share_last(&self, last: &mut [Option<usize>]) {
        for Stamped { op, .. } in &self.ops {
            if let Op::AsLogits { x, y } = op {
                let both = last[x.index()].max(last[y.index()]);
                (last[x.index()], last[y.index()]) = (both, both);
            }
        }
    }

    fn has_row_long_weight(&self, op: &Op) -> bool {
        let Op::Norm { norm, .. } = op else {
            return false;
        };
        let len = norm.weight.and_then(|weight| self.weights.vector(weight));
        len.is_some_and(|vector| vector.len != norm.width)
    }

    /// Copies each value that an operation takes over or spoils although it is read later, or kept.
    fn insert_moves(&mut self) {
        let mut last_reads = self.last_reads();
        // Each shared network, with the values of experts that may run after it.
        let mut besides: Vec<(Range<usize>, Vec<Value>)> = Vec::new();
        for (op_idx, Stamped { op, .. }) in self.ops.iter().enumerate() {
            if let Op::Tap { y, .. } = op {
                last_reads[y.index()] = Some(usize::MAX);
            }
            if let Some(Beside { experts, shared }) = self.beside(op_idx) {
                besides.push((shared, self.operands_in(&experts, |_| true)));
            }
        }
        self.share_last(&mut last_reads);
        let ops = std::mem::take(&mut self.ops);
        for (op_idx, mut stamped) in ops.into_iter().enumerate() {
            let operands = stamped.op.operands();
            let n_reads = |value: Value| {
                let reads = operands
                    .iter()
                    .filter(|(read, role)| *read == value && *role != OperandRole::Result);
                reads.count()
            };
            // A norm whose weight is as long as a row works in place only.
            let takes = self.has_row_long_weight(&stamped.op);
            let is_spoiled = |role| {
                matches!(role, OperandRole::Take | OperandRole::Scratch)
                    || takes && role == OperandRole::MayTake
            };
            let mut copies = Vec::new();
            stamped.op.visit(&mut |value, role| {
                let is_read_later = last_reads[value.index()] > Some(op_idx)
                    || n_reads(*value) > 1
                    || (besides.iter())
                        .any(|(shared, values)| shared.contains(&op_idx) && values.contains(value));
                if is_spoiled(role) && is_read_later {
                    self.values.push(self.values[value.index()]);
                    let copy = Value(self.values.len() as u32 - 1);
                    copies.push(Op::Move { x: *value, y: copy });
                    *value = copy;
                }
            });
            let part = stamped.part;
            self.ops.extend(copies.into_iter().map(|op| Stamped { op, part }));
            self.ops.push(stamped);
        }
    }
}

//! [`Schedule`]: the operations of a program in order, each with its side, and the copies between the sides.
//!
//! This is the pass "place". An operation runs on the side of its part or, if its weights are only on the other side, there;
//! operations on stores run on the side of the store's layer. A value is copied once to each side that reads it and did not
//! write it. Invariant: when an operation runs, its weights and operands are on its side.

use tokenmill_backend::{
    Attention, BackendError, DeltaNet, NetworkPart, ShortConv, Side, SsmScan,
    program::{
        Beside, MatrixInfo, Op, OperandRole, Prepared, RowCount, StoredHeads, Value, ValueInfo,
        VariantProgram, WeightId, Weights,
    },
};

use crate::{Placement, placement::Sides};

/// The actions of a step, in their order.
pub(crate) type Schedule = Vec<Action>;

/// An operation or a copy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Copies the rows of a slot to a side.
    Copy {
        slot: usize,
        rows: RowCount,
        width: usize,
        to: Side,
    },
    /// Runs an operation, with the side's own indices of stores.
    Run { op: Op, side: Side },
}

/// Places the operations of a variant's program. `goes_to_device` says whether the device computes the parts that both sides have.
///
/// # Errors
/// [`BackendError::Unsupported`] if an operation has its weights, its store or its routes on different sides.
pub(crate) fn schedule(
    prepared: &Prepared,
    program: &VariantProgram,
    placement: &Placement,
    goes_to_device: bool,
) -> Result<Schedule, BackendError> {
    let mut pass = Placing {
        placement,
        weights: prepared.weights(),
        program,
        goes_to_device,
        part: NetworkPart::Input,
        now: placement.side(NetworkPart::Input, true, Side::Device),
        written: vec![Sides::NONE; prepared.slots().len()],
        actions: Schedule::new(),
    };
    let mut op_idx = 0;
    while op_idx < program.ops().len() {
        pass.place(op_idx)?;
        op_idx += 1;
        if let Some(beside) = program.beside(op_idx - 1)
            && pass.begins_shared(beside)?
        {
            (beside.shared.clone().chain(beside.experts.clone()))
                .try_for_each(|op_idx| pass.place(op_idx))?;
            op_idx = beside.shared.end;
        }
    }
    Ok(pass.actions)
}

/// The state of the pass.
struct Placing<'a> {
    placement: &'a Placement,
    weights: &'a Weights,
    program: &'a VariantProgram,
    goes_to_device: bool,
    /// The current part of the network.
    part: NetworkPart,
    /// The side of the current part.
    now: Side,
    /// The sides that have the present values of each slot.
    written: Vec<Sides>,
    actions: Schedule,
}

impl Placing<'_> {
    fn side_of(&self, part: NetworkPart) -> Side {
        self.placement.side(part, self.goes_to_device, self.now)
    }

    /// Returns whether a side has all weights of an operation.
    fn has_all(&self, op: &Op, side: Side) -> bool {
        op.weights().into_iter().all(|id| match id {
            WeightId::Matrix(id) => {
                let MatrixInfo { part, usage, .. } = *self.weights.matrix(id).expect(DECLARED);
                self.placement.usage_on(side, part, usage).is_some()
            }
            WeightId::Vector(id) => {
                let part = self.weights.vector(id).expect(DECLARED).part;
                self.placement.sides(part).has(side)
            }
        })
    }

    /// Places the operation at an index.
    fn place(&mut self, op_idx: usize) -> Result<(), BackendError> {
        let stamped = &self.program.ops()[op_idx];
        self.part = stamped.part;
        self.now = self.side_of(self.part);
        self.place_op(&stamped.op)
    }

    /// Decides whether the device computes a shared network while the host computes the experts. Then its operations come
    /// first, and the experts' input before them, since a copy queued later would wait for them.
    fn begins_shared(&mut self, beside: &Beside) -> Result<bool, BackendError> {
        let ops = self.program.ops();
        let (Op::ExpertsLinear { x, .. } | Op::ExpertsGated { x, .. }) = ops[beside.experts.start].op else {
            return Ok(false);
        };
        let other = self.side_of(ops[beside.shared.start].part);
        let is_next_to = self.now == Side::Host && other == Side::Device;
        if is_next_to {
            self.bring(x, Side::Host)?;
        }
        Ok(is_next_to)
    }

    /// Places an operation. It is divided if its simple operations belong on different sides, or if it may leave something to
    /// the next one, which may be on the other side.
    fn place_op(&mut self, op: &Op) -> Result<(), BackendError> {
        match *op {
            // Both names have the same memory.
            Op::AsLogits { .. } => return Ok(()),
            Op::LinearAddNorm {
                product,
                scale,
                x,
                norm,
                sum,
                normed,
                ..
            } => {
                let simple = simple(op).into_iter();
                let is_of_product = |op: &Op| !matches!(op, Op::Add { .. } | Op::Norm { .. });
                simple.filter(is_of_product).try_for_each(|op| self.run(op))?;
                return self.place_op(&Op::AddNorm {
                    scale,
                    x,
                    delta: product.y,
                    norm,
                    sum,
                    normed,
                });
            }
            Op::LinearGroup { .. } | Op::AddNorm { .. } => {
                let simple = simple(op);
                let side = |op: &Op| self.on_side(op.clone()).1;
                if simple.windows(2).any(|pair| side(&pair[0]) != side(&pair[1])) {
                    return simple.into_iter().try_for_each(|op| self.run(op));
                }
            }
            _ => {}
        }
        self.run(op.clone())
    }

    /// Returns an operation with its side, and with the side's own indices of stores.
    fn on_side(&self, mut op: Op) -> (Op, Side) {
        let side = match &mut op {
            Op::StoreKv { layer_idx, .. }
            | Op::StoreLatent { layer_idx, .. }
            | Op::Attention {
                attention: Attention { layer_idx, .. },
                ..
            }
            | Op::RopeStoreKv {
                heads: StoredHeads { layer_idx, .. },
                ..
            } => self.own_layer(NetworkPart::Kv, layer_idx),
            // It attends to the layer in which it stores.
            Op::RopeAttention { heads, attention, .. } => {
                let side = self.own_layer(NetworkPart::Kv, &mut heads.layer_idx);
                attention.layer_idx = heads.layer_idx;
                side
            }
            Op::ShortConv {
                conv: ShortConv { state_idx, .. },
                ..
            }
            | Op::DeltaNet {
                net: DeltaNet { state_idx, .. },
                ..
            }
            | Op::SsmScan {
                scan: SsmScan { state_idx, .. },
                ..
            } => self.own_layer(NetworkPart::State, state_idx),
            Op::Sample { .. } => Side::Device,
            op => {
                let has_all = |side| self.has_all(op, side);
                if has_all(self.now) || !has_all(self.now.other()) {
                    self.now
                } else {
                    self.now.other()
                }
            }
        };
        (op, side)
    }

    /// Returns the side of a layer of a store, and replaces the layer's index by the one there.
    fn own_layer(&self, part: fn(usize) -> NetworkPart, idx: &mut usize) -> Side {
        let side = self.side_of(part(*idx));
        *idx = self.placement.stored_on(side, part, *idx).len();
        side
    }

    /// Appends copies of the operands that the side of an operation lacks, and the operation.
    fn run(&mut self, op: Op) -> Result<(), BackendError> {
        let (op, side) = self.on_side(op);
        if !self.has_all(&op, side) {
            return Err(unsupported(&format!(
                "{}, where weights and keys are apart; place the layers that share them on one side",
                place_of(self.part)
            )));
        }
        let operands = op.operands();
        for &(value, role) in &operands {
            if role != OperandRole::Result {
                self.bring(value, side)?;
            }
        }
        for (value, role) in operands {
            if matches!(role, OperandRole::Result | OperandRole::Scratch) {
                let slot = self.program.slot(value);
                self.written[slot] = Sides::one(side);
            }
        }
        self.actions.push(Action::Run { op, side });
        Ok(())
    }

    /// Copies a value to a side if it is missing there.
    fn bring(&mut self, value: Value, side: Side) -> Result<(), BackendError> {
        let slot = self.program.slot(value);
        let written = self.written[slot];
        if written.has(side) || written == Sides::NONE {
            return Ok(());
        }
        let ValueInfo::Floats { rows, width } = *self.program.value(value) else {
            return Err(unsupported(&format!(
                "{}, where experts are selected on one side and computed on the other; place the layer's `experts` with its `ffn`",
                place_of(self.part)
            )));
        };
        self.written[slot] = Sides::BOTH;
        self.actions.push(Action::Copy {
            slot,
            rows,
            width,
            to: side,
        });
        Ok(())
    }
}

const DECLARED: &str = "a verified program names declared weights";

/// Returns the simple operations of a fused one, which work in the memory of its operands.
fn simple(fused: &Op) -> Vec<Op> {
    fused
        .expand(&mut |value| value)
        .expect("only fused operations are divided")
}

/// Returns the place of a part in the network, for errors.
fn place_of(part: NetworkPart) -> String {
    match part {
        NetworkPart::Mixer(layer_idx) | NetworkPart::Ffn(layer_idx) | NetworkPart::Experts(layer_idx) => {
            format!("layer {layer_idx}")
        }
        NetworkPart::Input => "the input".to_owned(),
        NetworkPart::Output => "the output".to_owned(),
        NetworkPart::Common | NetworkPart::Kv(_) | NetworkPart::State(_) => "the network".to_owned(),
    }
}

pub(crate) fn unsupported(feature: &str) -> BackendError {
    BackendError::Unsupported {
        feature: feature.to_owned(),
        device: SPLIT_NETWORK,
    }
}

/// The device's name in errors of features that a split network lacks.
const SPLIT_NETWORK: &str = "a split network";

#[cfg(test)]
mod tests;

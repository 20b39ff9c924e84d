//! [`Program`]: a network as a list of operations on named values.
//!
//! A network is written once, in the order of its paper, with all rows and no fusion. Passes then change it for a step's
//! [`StepVariant`]: they keep only the rows that are needed ([`Program::narrowed`]), fuse operations that follow each other
//! ([`Program::fused`]), and assign memory ([`Slots`]). Invariants, checked by [`Program::verify`]: each value is written once,
//! before it is read; operands have the shapes that their operation takes; an operation that ends a step is the last one.

mod bridge;
mod changes;
mod device;
mod expand;
mod fuse;
mod infer;
mod interpreter;
mod narrow;
mod op;
mod operands;
mod over;
mod prepared;
mod print;
mod run;
mod run_op;
mod slots;
mod tables;
mod value;
mod verify;
pub(crate) mod weigh;
mod weights;
mod write;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::{KvLayerShape, NetworkPart};

pub use bridge::Bridge;
pub use device::{AdapterStore, ChangeData, HostRows, ProgramDevice};
pub use interpreter::Interpreter;
pub use narrow::{StepVariant, Wanted};
pub use op::{
    AttentionId, CarriedValue, ExpertInputKind, LinearId, NormId, Op, ProductTo, RopeId, StoredHeads,
    ValueColumns,
};
pub use operands::{OperandRole, WeightId};
pub use over::OverVectors;
pub use prepared::{Fusion, Prepared, VariantProgram};
pub use slots::{Beside, Slot, Slots};
pub use value::{RowCount, RowKind, Value, ValueInfo};
pub use verify::ProgramError;
pub use weights::{MatrixId, MatrixInfo, VectorId, VectorInfo, WeightStore, Weights};

/// An operation with the part of the network that it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct Stamped {
    /// The operation.
    pub op: Op,
    /// The part.
    pub part: NetworkPart,
}

/// A network as a list of operations.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    ops: Vec<Stamped>,
    values: Vec<ValueInfo>,
    weights: Arc<Weights>,
    kv_layers: Vec<KvLayerShape>,
    part: NetworkPart,
}

impl Program {
    /// Creates an empty program over weights and the layers of a KV store.
    pub fn new(weights: Arc<Weights>, kv_layers: Vec<KvLayerShape>) -> Self {
        Self {
            ops: Vec::new(),
            values: Vec::new(),
            weights,
            kv_layers,
            part: NetworkPart::Common,
        }
    }

    /// Sets the part of the network to which the next operations belong.
    pub fn enter(&mut self, part: NetworkPart) {
        self.part = part;
    }

    /// Appends an operation without a result.
    ///
    /// # Panics
    /// If it cannot take its operands: the caller has checked the network's sizes.
    pub fn push_last(&mut self, op: Op) {
        let [] = self.push_results(|[]| op);
    }

    /// Appends an operation with one result, which `op` gets, and returns it.
    ///
    /// # Panics
    /// As [`Self::push_last`].
    pub fn push(&mut self, op: impl FnOnce(Value) -> Op) -> Value {
        let [y] = self.push_results(|[y]| op(y));
        y
    }

    /// Appends an operation with several results, which `op` gets, and returns them.
    ///
    /// # Panics
    /// As [`Self::push_last`].
    pub fn push_results<const N: usize>(&mut self, op: impl FnOnce([Value; N]) -> Op) -> [Value; N] {
        let first = self.values.len() as u32;
        let results = std::array::from_fn(|idx| Value(first + idx as u32));
        let op = op(results);
        match self.shapes_of(&op) {
            Ok(shapes) => {
                assert_eq!(shapes.len(), N, "{op:?} has other results");
                self.values.extend(shapes);
            }
            Err(reason) => panic!("{op:?}: {reason}"),
        }
        self.ops.push(Stamped { op, part: self.part });
        results
    }

    /// Returns the operations, in order.
    pub fn ops(&self) -> &[Stamped] {
        &self.ops
    }

    /// Returns the shape of a value.
    pub fn value(&self, value: Value) -> Option<&ValueInfo> {
        self.values.get(value.index())
    }

    /// Returns the weights.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Adds a value without an operation that writes it yet.
    fn add_value(&mut self, info: ValueInfo) -> Value {
        self.values.push(info);
        Value(self.values.len() as u32 - 1)
    }

    /// Returns the index of the last operation that reads each value.
    fn last_reads(&self) -> Vec<Option<usize>> {
        let mut last = vec![None; self.values.len()];
        for (op_idx, Stamped { op, .. }) in self.ops.iter().enumerate() {
            for value in op.reads() {
                last[value.index()] = Some(op_idx);
            }
        }
        last
    }

    /// Infers all shapes again, after the rows of some values have changed.
    fn infer_all(&mut self) {
        for op_idx in 0..self.ops.len() {
            let op = &self.ops[op_idx].op;
            let shapes = self.shapes_of(op);
            let shapes = shapes.unwrap_or_else(|reason| panic!("{op:?}: {reason}"));
            for (value, info) in op.results().zip(shapes) {
                self.values[value.index()] = info;
            }
        }
    }
}

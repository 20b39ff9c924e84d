//! The operands of an [`Op`], and facts that passes need of it.
//!
//! Invariant: [`Op::visit`] is the only list of an operation's operands.

use super::{CarriedValue, LinearId, MatrixId, Op, OverVectors, StoredHeads, Value, VectorId};

/// The use of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandRole {
    /// It is read.
    Read,
    /// It is read, and the result at the same place among the results may take over its memory.
    MayTake,
    /// It is read, and the result at the same place among the results takes over its memory.
    Take,
    /// It is read, and its memory has no defined contents afterwards.
    Scratch,
    /// It is written.
    Result,
}

/// A weight that an operation names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightId {
    /// A matrix.
    Matrix(MatrixId),
    /// A vector.
    Vector(VectorId),
}

/// Appends the vectors among the arguments of an operation.
fn add_vectors<A: OverVectors<VectorId>>(weights: &mut Vec<WeightId>, arguments: A) {
    arguments.map_vectors(&mut |id: VectorId| weights.push(WeightId::Vector(id)));
}

/// Appends a matrix and its bias.
fn add_linear(weights: &mut Vec<WeightId>, linear: LinearId) {
    weights.push(WeightId::Matrix(linear.matrix));
    add_vectors(weights, linear);
}

fn add_heads(weights: &mut Vec<WeightId>, heads: &StoredHeads) {
    [heads.q_norm, heads.k_norm]
        .into_iter()
        .flatten()
        .for_each(|norm| add_vectors(weights, norm));
    if let Some(rope) = heads.rope {
        add_vectors(weights, rope);
    }
}

impl Op {
    /// Returns the weights that it reads.
    pub fn weights(&self) -> Vec<WeightId> {
        let mut weights = Vec::new();
        let all = &mut weights;
        match self {
            Self::Embed { table, .. } => all.push(WeightId::Matrix(*table)),
            Self::AddRow { row, .. } | Self::MultiplyByRow { row, .. } => all.push(WeightId::Vector(*row)),
            Self::AddPositions { table, .. } => all.push(WeightId::Vector(*table)),
            Self::Norm { norm, .. } | Self::AddNorm { norm, .. } => add_vectors(all, *norm),
            Self::Linear { linear, .. } => add_linear(all, *linear),
            Self::HeadsLinear { heads, .. } => add_linear(all, *heads),
            Self::ExpertsLinear { experts, .. } => add_linear(all, *experts),
            Self::Rope { rope, .. } => add_vectors(all, *rope),
            Self::Attention { attention, .. } => add_vectors(all, *attention),
            Self::Route { router, .. } => add_vectors(all, *router),
            Self::ShortConv { conv, .. } => add_vectors(all, *conv),
            Self::SsmScan { scan, .. } => add_vectors(all, *scan),
            Self::DeltaNet { net, .. } => add_vectors(all, *net),
            Self::LinearGroup { products, .. } => {
                for product in products {
                    add_linear(all, product.linear);
                }
            }
            Self::LinearGated { gate, up, .. } | Self::ExpertsGated { gate, up, .. } => {
                add_linear(all, *gate);
                add_linear(all, up.linear);
            }
            Self::LinearAddNorm { product, norm, .. } => {
                add_linear(all, product.linear);
                add_vectors(all, *norm);
            }
            Self::RopeStoreKv { heads, .. } => add_heads(all, heads),
            Self::RopeAttention { heads, attention, .. } => {
                add_heads(all, heads);
                add_vectors(all, *attention);
            }
            Self::HiddenInputs { .. }
            | Self::AddInputRows { .. }
            | Self::ScaleByPosition { .. }
            | Self::StoreKv { .. }
            | Self::StoreLatent { .. }
            | Self::Activation { .. }
            | Self::Xielu { .. }
            | Self::CutBelow { .. }
            | Self::Add { .. }
            | Self::Scale { .. }
            | Self::TakeColumns { .. }
            | Self::Join { .. }
            | Self::Gather { .. }
            | Self::AsLogits { .. }
            | Self::Move { .. }
            | Self::WeighChoices { .. }
            | Self::Combine { .. }
            | Self::RepeatRows { .. }
            | Self::MatchMagnitudes { .. }
            | Self::PredictStreams { .. }
            | Self::CorrectStreams { .. }
            | Self::AddToOthers { .. }
            | Self::AllReduce { .. }
            | Self::AllGather { .. }
            | Self::MeanOfSequences { .. }
            | Self::Tap { .. }
            | Self::Sample { .. } => {}
        }
        weights
    }

    /// Visits all operands. Operands that a result takes over come in the order of the results.
    #[expect(clippy::too_many_lines, reason = "one arm for each operation")]
    pub fn visit(&mut self, visit: &mut dyn FnMut(&mut Value, OperandRole)) {
        use OperandRole::{MayTake, Read, Result, Scratch, Take};
        match self {
            Self::Embed { y, .. } | Self::HiddenInputs { y, .. } => visit(y, Result),
            Self::AddInputRows { x, y, .. }
            | Self::AddRow { x, y, .. }
            | Self::AddPositions { x, y, .. }
            | Self::ScaleByPosition { x, y, .. }
            | Self::Rope { x, y, .. }
            | Self::Xielu { x, y, .. }
            | Self::CutBelow { x, y, .. }
            | Self::Scale { x, y, .. }
            | Self::MultiplyByRow { x, y, .. }
            | Self::AllReduce { x, y } => {
                visit(x, Take);
                visit(y, Result);
            }
            Self::Norm { x, y, .. } => {
                visit(x, MayTake);
                visit(y, Result);
            }
            Self::Linear { x, y, .. }
            | Self::HeadsLinear { x, y, .. }
            | Self::TakeColumns { x, y, .. }
            | Self::Gather { x, y, .. }
            | Self::AsLogits { x, y }
            | Self::Move { x, y }
            | Self::Route { x, y, .. }
            | Self::ShortConv { x, y, .. }
            | Self::RepeatRows { x, y, .. }
            | Self::MeanOfSequences { x, y }
            | Self::Tap { x, y, .. } => {
                visit(x, Read);
                visit(y, Result);
            }
            Self::StoreKv { k, v, .. } => {
                visit(k, Read);
                visit(v, Read);
            }
            Self::StoreLatent { row, .. } => visit(row, Read),
            Self::Attention { q, y, .. } => {
                visit(q, Read);
                visit(y, Result);
            }
            Self::Activation { x, up, y, .. } => {
                visit(x, Take);
                if let Some(up) = up {
                    visit(up, Read);
                }
                visit(y, Result);
            }
            Self::Add { x, delta, y, .. } => {
                visit(x, Take);
                visit(delta, Read);
                visit(y, Result);
            }
            Self::Join { left, right, y, .. } => {
                visit(left, Read);
                visit(right, Read);
                visit(y, Result);
            }
            Self::ExpertsLinear { routes, x, y, .. } => {
                visit(routes, Read);
                visit(x, Read);
                visit(y, Result);
            }
            Self::WeighChoices { routes, x, y } => {
                visit(routes, Read);
                visit(x, Take);
                visit(y, Result);
            }
            Self::Combine {
                routes,
                x,
                carried,
                y,
            } => {
                visit(routes, Read);
                visit(x, Read);
                match carried {
                    CarriedValue::Nothing => {}
                    CarriedValue::Whole(rows) => visit(rows, Take),
                    CarriedValue::Gated(rows, gates) => {
                        visit(rows, Take);
                        visit(gates, Read);
                    }
                }
                visit(y, Result);
            }
            Self::SsmScan { x, b, c, dt, y, .. } => {
                visit(&mut x.x, Read);
                visit(&mut b.x, Read);
                visit(&mut c.x, Read);
                visit(dt, Scratch);
                visit(y, Result);
            }
            Self::DeltaNet {
                qkv, alpha, beta, y, ..
            } => {
                visit(qkv, Scratch);
                visit(alpha, Scratch);
                visit(beta, Scratch);
                visit(y, Result);
            }
            Self::MatchMagnitudes { first, others, y } => {
                visit(first, Read);
                visit(others, Take);
                visit(y, Result);
            }
            Self::PredictStreams {
                factors,
                first,
                others,
                y_first,
                y_others,
            } => {
                visit(factors, Read);
                visit(first, Take);
                visit(others, Take);
                visit(y_first, Result);
                visit(y_others, Result);
            }
            Self::CorrectStreams {
                factors,
                predicted,
                first,
                others,
                y_first,
                y_others,
            } => {
                visit(factors, Read);
                visit(predicted, Read);
                visit(first, Take);
                visit(others, Take);
                visit(y_first, Result);
                visit(y_others, Result);
            }
            Self::AddToOthers { x, others, y } => {
                visit(x, Read);
                visit(others, Take);
                visit(y, Result);
            }
            Self::AllGather { x, parts, y, .. } => {
                visit(x, Scratch);
                visit(parts, Result);
                visit(y, Result);
            }
            Self::Sample { logits, rows } => {
                if let Some(logits) = logits {
                    visit(logits, Scratch);
                }
                if let Some(rows) = rows {
                    visit(rows, Read);
                }
            }
            Self::LinearGroup { x, products } => {
                visit(x, Read);
                for product in products {
                    visit(&mut product.y, Result);
                }
            }
            Self::LinearGated { x, up, y, .. } => {
                visit(x, Read);
                visit(y, Result);
                visit(&mut up.y, Result);
            }
            Self::ExpertsGated { routes, x, up, y, .. } => {
                visit(routes, Read);
                visit(x, Read);
                visit(y, Result);
                visit(&mut up.y, Result);
            }
            Self::AddNorm {
                x,
                delta,
                sum,
                normed,
                ..
            } => {
                visit(x, Take);
                visit(delta, Read);
                visit(sum, Result);
                visit(normed, Result);
            }
            Self::LinearAddNorm {
                product,
                input,
                x,
                sum,
                normed,
                ..
            } => {
                visit(input, Read);
                visit(x, Take);
                visit(sum, Result);
                visit(normed, Result);
                visit(&mut product.y, Result);
            }
            Self::RopeStoreKv { heads, y_q, y_k } => {
                visit(&mut heads.q, Take);
                visit(&mut heads.k, Take);
                visit(&mut heads.v, Read);
                visit(y_q, Result);
                visit(y_k, Result);
            }
            Self::RopeAttention { heads, y, .. } => {
                visit(&mut heads.q, Scratch);
                visit(&mut heads.k, Scratch);
                visit(&mut heads.v, Read);
                visit(y, Result);
            }
        }
    }

    /// Returns all operands with their uses.
    pub fn operands(&self) -> Vec<(Value, OperandRole)> {
        let mut operands = Vec::new();
        self.clone()
            .visit(&mut |value, role| operands.push((*value, role)));
        operands
    }

    /// Returns the values that it reads.
    pub fn reads(&self) -> impl Iterator<Item = Value> {
        let operands = self.operands().into_iter();
        operands.filter_map(|(value, role)| (role != OperandRole::Result).then_some(value))
    }

    /// Returns the values that it writes.
    pub fn results(&self) -> impl Iterator<Item = Value> {
        let operands = self.operands().into_iter();
        operands.filter_map(|(value, role)| (role == OperandRole::Result).then_some(value))
    }

    /// Returns whether it does something beyond its results: stores, keeps a state, or ends the step.
    pub fn has_effect(&self) -> bool {
        matches!(
            self,
            Self::StoreKv { .. }
                | Self::StoreLatent { .. }
                | Self::ShortConv { .. }
                | Self::SsmScan { .. }
                | Self::DeltaNet { .. }
                | Self::Tap { .. }
                | Self::Sample { .. }
                | Self::RopeStoreKv { .. }
                | Self::RopeAttention { .. }
        )
    }

    /// Returns whether it needs the rows of all tokens: it mixes rows, reads an input by token, or keeps rows of tokens.
    pub fn needs_all_rows(&self) -> bool {
        matches!(
            self,
            Self::Embed { .. }
                | Self::HiddenInputs { .. }
                | Self::AddInputRows { .. }
                | Self::AddPositions { .. }
                | Self::ScaleByPosition { .. }
                | Self::Rope { .. }
                | Self::StoreKv { .. }
                | Self::StoreLatent { .. }
                | Self::Attention { .. }
                | Self::ShortConv { .. }
                | Self::SsmScan { .. }
                | Self::DeltaNet { .. }
                | Self::MeanOfSequences { .. }
                | Self::Tap { .. }
                | Self::RopeStoreKv { .. }
                | Self::RopeAttention { .. }
        )
    }
}

//! [`Net`]: a program under construction, with weights declared where they are used.

use std::sync::Arc;

use crate::{
    Activation, Attention, ExpertScore, KvLayerShape, Linear, MatrixUsage, NetworkPart, Norm, NormKind, Rope,
    RopeAxes, RopeStyle, Router, RowSet,
};

use super::super::{
    AttentionId, CarriedValue, ExpertInputKind, LinearId, MatrixId, MatrixInfo, NormId, Op, Program, RopeId,
    Value, VectorId, VectorInfo, Weights,
};

/// Width of the stream.
pub(super) const N_EMBD: usize = 64;
/// Number of query heads.
pub(super) const N_HEADS: usize = 4;
/// Width of a head.
pub(super) const HEAD_DIM: usize = 16;
/// Width of the keys and of the values of a token.
pub(super) const KV_WIDTH: usize = 32;
/// Width of a feed-forward network.
pub(super) const N_FF: usize = 128;
/// Number of tokens in the vocabulary.
pub(super) const N_VOCAB: usize = 256;
/// Number of experts.
pub(super) const N_EXPERTS: usize = 8;
/// Number of experts per row.
pub(super) const N_USED: usize = 2;

/// A program under construction.
pub(super) struct Net {
    pub(super) program: Program,
}

impl Net {
    pub(super) fn new(kv_layers: &[KvLayerShape]) -> Self {
        Self {
            program: Program::new(Arc::default(), kv_layers.to_vec()),
        }
    }

    /// Creates one with layers of keys and values of [`KV_WIDTH`].
    pub(super) fn with_kv(n_layers: usize) -> Self {
        let layer = KvLayerShape {
            n_kv_heads: KV_WIDTH / HEAD_DIM,
            head_dim_k: HEAD_DIM,
            head_dim_v: HEAD_DIM,
            has_values_in_keys: false,
        };
        Self::new(&vec![layer; n_layers])
    }

    fn weights(&mut self) -> &mut Weights {
        Arc::make_mut(&mut self.program.weights)
    }

    pub(super) fn enter(&mut self, part: NetworkPart) {
        self.program.enter(part);
    }

    pub(super) fn width(&self, value: Value) -> usize {
        self.program.values[value.index()].width()
    }

    pub(super) fn matrix(&mut self, name: &str, n_out: usize, n_in: usize) -> MatrixId {
        let name = format!("{name}.weight");
        let part = self.program.part;
        self.weights().add_matrix(MatrixInfo {
            name,
            n_out,
            n_in,
            part,
            usage: MatrixUsage::Linear,
        })
    }

    pub(super) fn vector(&mut self, name: &str, len: usize) -> VectorId {
        let name = name.to_owned();
        let part = self.program.part;
        self.weights().add_vector(VectorInfo { name, len, part })
    }

    /// Declares `n_each` concatenated matrices.
    pub(super) fn products(&mut self, name: &str, n_each: usize, [n_out, n_in]: [usize; 2]) -> LinearId {
        Linear {
            matrix: self.matrix(name, n_each * n_out, n_in),
            bias: None,
            n_out,
            n_in,
            adapter_place: None,
        }
    }

    pub(super) fn embed(&mut self) -> Value {
        let table = self.matrix("token_embd", N_VOCAB, N_EMBD);
        self.program.push(|y| Op::Embed { table, scale: 1.0, y })
    }

    pub(super) fn linear(&mut self, name: &str, n_out: usize, x: Value) -> Value {
        let linear = self.products(name, 1, [n_out, self.width(x)]);
        self.program.push(|y| Op::Linear { linear, x, y })
    }

    pub(super) fn biased(&mut self, name: &str, n_out: usize, x: Value) -> Value {
        let mut linear = self.products(name, 1, [n_out, self.width(x)]);
        linear.bias = Some(self.vector(&format!("{name}.bias"), n_out));
        self.program.push(|y| Op::Linear { linear, x, y })
    }

    pub(super) fn rms(&mut self, name: &str, width: usize) -> NormId {
        Norm {
            kind: NormKind::Rms,
            width,
            weight: Some(self.vector(&format!("{name}.weight"), width)),
            bias: None,
            eps: 1e-5,
        }
    }

    /// Norms whole rows.
    pub(super) fn norm(&mut self, name: &str, x: Value) -> Value {
        let width = self.width(x);
        self.head_norm(name, width, x)
    }

    /// Norms heads of a width.
    pub(super) fn head_norm(&mut self, name: &str, width: usize, x: Value) -> Value {
        let norm = self.rms(name, width);
        self.program.push(|y| Op::Norm { norm, x, y })
    }

    pub(super) fn add(&mut self, x: Value, delta: Value) -> Value {
        let scale = 1.0;
        self.program.push(|y| Op::Add { scale, x, delta, y })
    }

    pub(super) fn activation(&mut self, activation: Activation, x: Value, up: Option<Value>) -> Value {
        self.program.push(|y| Op::Activation { activation, x, up, y })
    }

    /// Declares a rotation of heads of a width.
    pub(super) fn rotation(&mut self, head_dim: usize) -> RopeId {
        Rope {
            style: RopeStyle::Neox,
            head_dim,
            n_dims: head_dim,
            inv_freqs: self.vector("frequencies", head_dim / 2),
            magnitude: 1.0,
            axes: RopeAxes::One,
        }
    }

    pub(super) fn rope(&mut self, rope: RopeId, x: Value) -> Value {
        self.program.push(|y| Op::Rope { rope, x, y })
    }

    pub(super) fn store(&mut self, layer_idx: usize, k: Value, v: Value) {
        self.program.push_last(Op::StoreKv { layer_idx, k, v });
    }

    pub(super) fn attention(&mut self, attention: AttentionId, q: Value) -> Value {
        self.program.push(|y| Op::Attention { attention, q, y })
    }

    pub(super) fn gather(&mut self, rows: RowSet, x: Value) -> Value {
        self.program.push(|y| Op::Gather { rows, x, y })
    }

    pub(super) fn columns(&mut self, first: usize, width: usize, x: Value) -> Value {
        self.program.push(|y| Op::TakeColumns { first, width, x, y })
    }

    pub(super) fn join(&mut self, n_parts: usize, left: Value, right: Value) -> Value {
        self.program.push(|y| Op::Join {
            n_parts,
            left,
            right,
            y,
        })
    }

    /// Selects experts by logits.
    pub(super) fn route(&mut self, x: Value) -> Value {
        let router = Router {
            n_experts: self.width(x),
            n_used: N_USED,
            score: ExpertScore::Softmax,
            choice_bias: None,
            groups: None,
            is_normalized: true,
            scale: 1.0,
            expert_scales: None,
        };
        self.program.push(|y| Op::Route { router, x, y })
    }

    /// Multiplies by the matrices of [`N_EXPERTS`] experts.
    pub(super) fn experts(
        &mut self,
        name: &str,
        n_out: usize,
        routes: Value,
        rows: ExpertInputKind,
        x: Value,
    ) -> Value {
        let experts = self.products(name, N_EXPERTS, [n_out, self.width(x)]);
        self.program.push(|y| Op::ExpertsLinear {
            experts,
            routes,
            rows,
            x,
            y,
        })
    }

    pub(super) fn combine(&mut self, routes: Value, x: Value, carried: CarriedValue) -> Value {
        self.program.push(|y| Op::Combine {
            routes,
            x,
            carried,
            y,
        })
    }

    pub(super) fn sample(&mut self, logits: Option<Value>, rows: Option<Value>) {
        self.program.push_last(Op::Sample { logits, rows });
    }

    /// Norms the output rows, multiplies the logit rows by the head, and samples.
    pub(super) fn head(mut self, x: Value) -> Program {
        self.enter(NetworkPart::Output);
        let x = self.gather(RowSet::Outputs, x);
        let normed = self.norm("output_norm", x);
        let picked = self.gather(RowSet::LogitsOfOutputs, normed);
        let logits = self.linear("output", N_VOCAB, picked);
        self.sample(Some(logits), Some(normed));
        self.program
    }
}

/// Attention of [`N_HEADS`] heads to a layer of the KV store.
pub(super) fn attention_to(layer_idx: usize) -> AttentionId {
    Attention {
        layer_idx,
        n_heads: N_HEADS,
        scale: 0.25,
        is_causal: true,
        window: None,
        is_chunked: false,
        softcap: None,
        sinks: None,
        slopes: None,
    }
}

//! [`AttentionMixer`]: attention over stored keys and values.
//!
//! ```text
//! q, k, v = W_q x, W_k x, W_v x        norm and rotate q and k, store k and v
//! mixed = attention(q)                 output = W_o mixed
//! mixed = sigmoid(W_g x) * attention(q)   with a gate
//! ```

use tokenmill_backend::{
    Activation, Attention, Norm, Temperature,
    program::{AttentionId, LinearId, NormId, Op, Program, RopeId, Value},
};

use crate::{
    AttentionDescriptor, LoadError, OutputGate, Presence, QkNorm,
    loader::{LayerPlace, Loader, RowsOf, plain_norm},
};

/// The weights of attention.
pub(crate) struct AttentionMixer {
    q: LinearId,
    /// `None` if the layer reads another layer's keys and values.
    k: Option<LinearId>,
    /// `None` if values are the output of `k`, or if there is no `k`.
    v: Option<LinearId>,
    v_norm: Option<NormId>,
    /// `None` if the output is not gated.
    gate: Option<LinearId>,
    q_norm: Option<NormId>,
    k_norm: Option<NormId>,
    rope: Option<usize>,
    is_normed_after_rope: bool,
    temperature: Option<Temperature>,
    attention: AttentionId,
    pub(super) output: LinearId,
}

impl AttentionMixer {
    pub(super) fn load(
        place: LayerPlace,
        attention: &AttentionDescriptor,
        loader: &mut Loader<'_>,
    ) -> Result<Self, LoadError> {
        let n_embd = loader.descriptor.n_embd;
        let name = |part| place.name(part);
        let (q_width, k_width, v_width) = (attention.q_width(), attention.k_width(), attention.v_width());
        let sinks = if attention.has_sinks {
            loader.vector(&name("attn_sinks.weight"), attention.n_heads, Presence::Required)?
        } else {
            None
        };
        let slopes = match attention.alibi_slopes() {
            Some(slopes) => Some(loader.add_vector(&name("alibi"), &slopes)?),
            None => None,
        };
        // Some files join the three matrices in one tensor.
        let is_joined = loader.source.contains(&name("attn_qkv.weight"));
        let mut projection = |part, first, n_rows| {
            if !is_joined {
                return loader.linear(&name(part), n_rows, n_embd, attention.qkv_bias);
            }
            let part = RowsOf::run(first, n_rows, q_width + k_width + v_width);
            loader.linear_part(&name("attn_qkv"), part, n_embd, attention.qkv_bias)
        };
        let stores_kv = attention.shares_kv_of.is_none();
        let k = if stores_kv {
            Some(projection("attn_k", q_width, k_width)?)
        } else {
            None
        };
        let v = if stores_kv && !attention.takes_keys_as_values {
            Some(projection("attn_v", q_width + k_width, v_width)?)
        } else {
            None
        };
        let (q, gate) = if attention.output_gate == Some(OutputGate::InQuery) {
            // The file has the rows of the query and of the gate, head after head.
            let mut half = |which| {
                let rows = RowsOf {
                    first: which * attention.head_dim_k,
                    n_rows: attention.head_dim_k,
                    n_total: 2 * q_width,
                    n_runs: attention.n_heads,
                    stride: 2 * attention.head_dim_k,
                };
                loader.linear_part(&name("attn_q"), rows, n_embd, attention.qkv_bias)
            };
            (half(0)?, Some(half(1)?))
        } else {
            (projection("attn_q", 0, q_width)?, None)
        };
        let output_width = attention.n_heads * attention.head_dim_v;
        let gate = if attention.output_gate == Some(OutputGate::Apart) {
            Some(loader.linear(&name("attn_gate"), output_width, n_embd, Presence::Absent)?)
        } else {
            gate
        };
        Ok(Self {
            q,
            gate,
            k,
            v,
            v_norm: (attention.has_v_norm)
                .then(|| plain_norm(loader.descriptor.rms_norm(), attention.head_dim_v)),
            q_norm: load_head_norm(&name("attn_q_norm"), attention, q_width, loader)?,
            k_norm: if stores_kv {
                load_head_norm(&name("attn_k_norm"), attention, k_width, loader)?
            } else {
                None
            },
            rope: attention.rope,
            is_normed_after_rope: attention.is_normed_after_rope,
            temperature: attention.temperature,
            attention: Attention {
                layer_idx: place.kv_idx,
                n_heads: attention.n_heads,
                scale: attention.scale,
                is_causal: attention.is_causal,
                window: attention.window,
                is_chunked: attention.is_chunked,
                softcap: attention.softcap,
                sinks,
                slopes,
            },
            output: loader.linear(&name("attn_output"), n_embd, output_width, attention.output_bias)?,
        })
    }
}

fn load_head_norm(
    name: &str,
    attention: &AttentionDescriptor,
    row_width: usize,
    loader: &mut Loader<'_>,
) -> Result<Option<NormId>, LoadError> {
    let norm = loader.descriptor.rms_norm();
    let width = match attention.qk_norm {
        None => return Ok(None),
        Some(QkNorm::PlainHead) => return Ok(Some(plain_norm(norm, attention.head_dim_k))),
        Some(QkNorm::Head) => attention.head_dim_k,
        Some(QkNorm::Row) => row_width,
        Some(QkNorm::RowAsLayers) => return loader.norm(name, row_width, loader.descriptor.norm).map(Some),
        Some(QkNorm::EachHead) => {
            let width = attention.head_dim_k;
            let weight = loader.required_vector(&format!("{name}.weight"), &[width, row_width / width])?;
            return Ok(Some(Norm {
                weight: Some(weight),
                ..plain_norm(loader.descriptor.norm, width)
            }));
        }
    };
    loader.norm(name, width, norm).map(Some)
}

impl AttentionMixer {
    /// Writes attention over the rows `x`; returns the rows that the output projection reads.
    pub(super) fn write(&self, program: &mut Program, ropes: &[RopeId], x: Value) -> Value {
        let rope = self.rope.map(|rope_idx| ropes[rope_idx]);
        let mut q = self.write_store(program, rope, x);
        if let Some(temperature) = self.temperature {
            q = program.push(|y| Op::ScaleByPosition { temperature, x: q, y });
        }
        let attention = self.attention;
        let attended = program.push(|y| Op::Attention { attention, q, y });
        let Some(gate) = self.gate else {
            return attended;
        };
        let gate = program.linear(gate, x);
        program.gated(Activation::Sigmoid, gate, attended)
    }

    /// Writes the queries, and the keys and values with their store if the layer has its own. Returns the queries.
    fn write_store(&self, program: &mut Program, rope: Option<RopeId>, x: Value) -> Value {
        let q = program.linear(self.q, x);
        let Some(k_linear) = self.k else {
            return self.turned(program, rope, self.q_norm, q);
        };
        let k = program.linear(k_linear, x);
        let v = match (self.v, self.v_norm) {
            // Values are keys with their own norm, before the keys are normed and rotated.
            (None, Some(norm)) => program.norm(norm, k),
            (v_linear, norm) => {
                let v = program.linear(v_linear.unwrap_or(k_linear), x);
                program.norm_if(norm, v)
            }
        };
        let (q, k) = if self.is_normed_after_rope {
            let q = self.turned(program, rope, self.q_norm, q);
            (q, self.turned(program, rope, self.k_norm, k))
        } else {
            // One operation may do all of it, in this order.
            let (q, k) = (program.norm_if(self.q_norm, q), program.norm_if(self.k_norm, k));
            (program.rope_if(rope, q), program.rope_if(rope, k))
        };
        let layer_idx = self.attention.layer_idx;
        program.push_last(Op::StoreKv { layer_idx, k, v });
        q
    }

    /// Writes the norm and the rotation of heads, in the network's order.
    fn turned(
        &self,
        program: &mut Program,
        rope: Option<RopeId>,
        norm: Option<NormId>,
        heads: Value,
    ) -> Value {
        if self.is_normed_after_rope {
            let heads = program.rope_if(rope, heads);
            program.norm_if(norm, heads)
        } else {
            let heads = program.norm_if(norm, heads);
            program.rope_if(rope, heads)
        }
    }
}

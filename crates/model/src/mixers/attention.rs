//! [`AttentionMixer`]: attention over stored keys and values.
//!
//! ```text
//! q, k, v = W_q x, W_k x, W_v x        norm and rotate q and k, store k and v
//! mixed = attention(q)                 output = W_o mixed
//! mixed = sigmoid(W_g x) * attention(q)   with a gate
//! ```

use tokenmill_backend::{
    Activation, Attention, Backend, BackendError, ExecutorLimits, Linear, LinearJob, Memory, Norm, Rope,
    RopeStoreKv, StepShape, Temperature,
};

use crate::{
    AttentionDescriptor, Descriptor, LoadError, OutputGate, Presence, QkNorm,
    loader::{LayerPlace, Loader, RowsOf, plain_norm},
};

use super::MixerRows;

/// The weights of attention.
pub(crate) struct AttentionMixer<M: Memory> {
    q: Linear<M::Matrix, M::Vector>,
    /// `None` if the layer reads another layer's keys and values.
    k: Option<Linear<M::Matrix, M::Vector>>,
    /// `None` if values are the output of `k`, or if there is no `k`.
    v: Option<Linear<M::Matrix, M::Vector>>,
    v_norm: Option<Norm<M::Vector>>,
    /// `None` if the output is not gated.
    gate: Option<Linear<M::Matrix, M::Vector>>,
    q_norm: Option<Norm<M::Vector>>,
    k_norm: Option<Norm<M::Vector>>,
    rope: Option<usize>,
    is_normed_after_rope: bool,
    temperature: Option<Temperature>,
    attention: Attention<M::Vector>,
    pub(super) output: Linear<M::Matrix, M::Vector>,
}

/// Queries, keys and values of all heads.
pub(super) struct Heads<T> {
    q: T,
    k: T,
    v: T,
    /// Attention's output before its gate.
    attended: Option<T>,
}

impl<M: Memory> AttentionMixer<M> {
    pub(super) fn load(
        place: LayerPlace,
        attention: &AttentionDescriptor,
        loader: &mut Loader<'_, M>,
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
            Some(slopes) => Some(loader.memory.upload_vector(&slopes)?),
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

fn load_head_norm<M: Memory>(
    name: &str,
    attention: &AttentionDescriptor,
    row_width: usize,
    loader: &mut Loader<'_, M>,
) -> Result<Option<Norm<M::Vector>>, LoadError> {
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

impl<B: Backend> AttentionMixer<B> {
    pub(super) fn mix(
        &self,
        backend: &mut B,
        ropes: &[Rope<B::Vector>],
        shape: &StepShape,
        rows: &mut MixerRows<'_, B::Buffer>,
        heads: &mut Heads<B::Buffer>,
        wants_output: bool,
    ) -> Result<(), BackendError> {
        let (n_tokens, q_width) = (shape.n_tokens, self.q.n_out);
        let attends = wants_output && self.temperature.is_none();
        let attended = match (&self.gate, &mut heads.attended) {
            (Some(_), Some(attended)) => attended,
            _ => &mut *rows.mixed,
        };
        let has_attended = self.project_and_store(
            backend,
            ropes,
            rows.input,
            [&mut heads.q, &mut heads.k, &mut heads.v],
            shape,
            attends.then_some(&mut *attended),
        )?;
        if let Some(temperature) = self.temperature {
            backend.scale_by_position(temperature, n_tokens, q_width, &mut heads.q)?;
        }
        if !wants_output {
            return Ok(());
        }
        if !has_attended {
            backend.attention(&self.attention, shape, &heads.q, attended)?;
        }
        let (Some(gate), Some(attended)) = (&self.gate, &heads.attended) else {
            return Ok(());
        };
        backend.linear(gate, rows.input, n_tokens, rows.mixed)?;
        backend.activation(
            Activation::Sigmoid,
            n_tokens,
            gate.n_out,
            rows.mixed,
            Some(attended),
        )
    }

    /// Computes queries, and computes and stores keys and values if the layer has its own. Also attends, if
    /// `attended` is given and nothing stands between. Returns whether it attended.
    fn project_and_store(
        &self,
        backend: &mut B,
        ropes: &[Rope<B::Vector>],
        input: &B::Buffer,
        [q_rows, k_rows, v_rows]: [&mut B::Buffer; 3],
        shape: &StepShape,
        attended: Option<&mut B::Buffer>,
    ) -> Result<bool, BackendError> {
        let n_tokens = shape.n_tokens;
        let rope = self.rope.map(|rope_idx| &ropes[rope_idx]);
        let (layer_idx, q_width) = (self.attention.layer_idx, self.q.n_out);
        let Some(k) = &self.k else {
            backend.linear(&self.q, input, n_tokens, q_rows)?;
            self.turn(backend, rope, self.q_norm.as_ref(), [n_tokens, q_width], q_rows)?;
            return Ok(false);
        };
        let k_width = k.n_out;
        // If values are keys with their own norm, they are computed before the keys are normed and rotated.
        let norms_keys = self.v.is_none() && self.v_norm.is_some();
        let v = self.v.as_ref().unwrap_or(k);
        let mut projections = [(&self.q, &mut *q_rows), (k, &mut *k_rows), (v, &mut *v_rows)]
            .map(|(linear, output)| LinearJob { linear, output });
        let n_projections = if norms_keys { 2 } else { 3 };
        backend.linear_group(input, n_tokens, &mut projections[..n_projections])?;
        if let Some(norm) = &self.v_norm {
            if norms_keys {
                let n_heads = k_width / norm.width;
                backend.norm(norm, k_rows, n_tokens * n_heads, v_rows)?;
            } else {
                backend.norm_in_place(norm, n_tokens, v.n_out, v_rows)?;
            }
        }
        let norms = [&self.q_norm, &self.k_norm].map(Option::as_ref);
        if self.is_normed_after_rope {
            for ((width, rows), norm) in [(q_width, q_rows), (k_width, &mut *k_rows)]
                .into_iter()
                .zip(norms)
            {
                self.turn(backend, rope, norm, [n_tokens, width], rows)?;
            }
            backend.store_kv(layer_idx, n_tokens, k_rows, v_rows)?;
            return Ok(false);
        }
        let [q_norm, k_norm] = norms;
        let job = RopeStoreKv {
            layer_idx,
            q_norm,
            k_norm,
            rope,
            q_width,
            k_width,
            q: q_rows,
            k: k_rows,
            v: v_rows,
        };
        let Some(attended) = attended else {
            backend.rope_store_kv(job, n_tokens)?;
            return Ok(false);
        };
        backend.rope_attention(job, &self.attention, shape, attended)?;
        Ok(true)
    }

    /// Norms and rotates the heads of queries or keys, `[n_tokens, width]`, in the network's order.
    fn turn(
        &self,
        backend: &mut B,
        rope: Option<&Rope<B::Vector>>,
        norm: Option<&Norm<B::Vector>>,
        [n_tokens, width]: [usize; 2],
        rows: &mut B::Buffer,
    ) -> Result<(), BackendError> {
        if let Some(norm) = norm.filter(|_| !self.is_normed_after_rope) {
            backend.norm_in_place(norm, n_tokens, width, rows)?;
        }
        if let Some(rope) = rope {
            backend.rope(rope, n_tokens, width, rows)?;
        }
        if let Some(norm) = norm.filter(|_| self.is_normed_after_rope) {
            backend.norm_in_place(norm, n_tokens, width, rows)?;
        }
        Ok(())
    }
}

impl<T> Heads<T> {
    pub(super) fn alloc<M: Memory<Buffer = T>>(
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        memory: &mut M,
    ) -> Result<Option<Self>, BackendError> {
        let widest = |width: fn(&AttentionDescriptor) -> usize| {
            (descriptor.layers.iter())
                .filter_map(|layer| layer.mixer.attention().map(width))
                .max()
        };
        let Some(q) = widest(AttentionDescriptor::q_width) else {
            return Ok(None);
        };
        let k = widest(AttentionDescriptor::k_width).unwrap_or(0);
        let v = widest(AttentionDescriptor::v_width).unwrap_or(0);
        let gated = (descriptor.attentions())
            .filter(|attention| attention.output_gate.is_some())
            .map(|attention| attention.n_heads * attention.head_dim_v)
            .max();
        let mut of_tokens = |width| memory.alloc(limits.max_batch_tokens, width);
        Ok(Some(Self {
            attended: gated.map(&mut of_tokens).transpose()?,
            q: of_tokens(q)?,
            k: of_tokens(k)?,
            v: of_tokens(v)?,
        }))
    }
}

//! [`KimiDeltaMixer`]: a gated delta net with a decay per channel (KDA).
//!
//! ```text
//! q, k, v = silu(conv(W_q x)), silu(conv(W_k x)), silu(conv(W_v x))
//! alpha, beta, z = W_fb W_fa x, W_beta x, W_gb W_ga x
//! y = delta_net(q, k, v, alpha, beta)    mixed = norm(y) * sigmoid(z)      output = W_o mixed
//! ```
//!
//! Source: "Kimi Linear: An Expressive, Efficient Attention Architecture", 2025, section 3.

use tokenmill_backend::{
    Activation, Backend, BackendError, DeltaDecays, DeltaNet, DeltaNetRows, ExecutorLimits, JoinedRows,
    KeyHeads, Linear, LinearJob, Memory, Norm, ShortConv, StepShape,
};

use crate::{
    Descriptor, KimiDeltaDescriptor, LoadError, MixerDescriptor, Presence,
    loader::{LayerPlace, Loader},
};

use super::MixerRows;

/// The weights of a KDA layer.
pub(crate) struct KimiDeltaMixer<M: Memory> {
    q: Linear<M::Matrix, M::Vector>,
    k: Linear<M::Matrix, M::Vector>,
    v: Linear<M::Matrix, M::Vector>,
    beta: Linear<M::Matrix, M::Vector>,
    /// Projections of the decays and of the output gate.
    decay: LowRank<M>,
    gate: LowRank<M>,
    conv: ShortConv<M::Vector>,
    net: DeltaNet<M::Vector>,
    norm: Norm<M::Vector>,
    pub(super) output: Linear<M::Matrix, M::Vector>,
}

/// A product of two narrow matrices.
struct LowRank<M: Memory> {
    down: Linear<M::Matrix, M::Vector>,
    up: Linear<M::Matrix, M::Vector>,
}

/// Intermediate results of a KDA layer.
pub(super) struct KimiDeltaBuffers<T> {
    /// `[T, width]` each.
    q: T,
    k: T,
    v: T,
    /// `[T, 2 * width]`.
    qk: T,
    /// `[T, 3 * width]`.
    qkv: T,
    convolved: T,
    /// `[T, head_dim]`.
    decay_low: T,
    gate_low: T,
    /// `[T, width]`.
    alpha: T,
    /// `[T, n_heads]`.
    beta: T,
    /// `[T, width]`.
    y: T,
}

impl<M: Memory> KimiDeltaMixer<M> {
    pub(super) fn load(
        place: LayerPlace,
        net: &KimiDeltaDescriptor,
        loader: &mut Loader<'_, M>,
    ) -> Result<Self, LoadError> {
        let (n_embd, width) = (loader.descriptor.n_embd, net.width());
        let KimiDeltaDescriptor {
            n_heads,
            head_dim,
            n_taps,
        } = *net;
        let name = |part: &str| place.name(part);
        let rms = loader.descriptor.rms_norm();
        let mut taps = Vec::new();
        for part in ["ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v"] {
            let weight = name(&format!("{part}.weight"));
            taps.extend(loader.all_values(&weight, &[n_taps, width])?);
        }
        let mut plain = |part: &str, n_out, n_in| loader.linear(&name(part), n_out, n_in, Presence::Absent);
        let mut low_rank = |down, up| {
            Ok::<_, LoadError>(LowRank {
                down: plain(down, head_dim, n_embd)?,
                up: plain(up, width, head_dim)?,
            })
        };
        let (decay, gate) = (low_rank("ssm_f_a", "ssm_f_b")?, low_rank("ssm_g_a", "ssm_g_b")?);
        Ok(Self {
            q: plain("attn_q", width, n_embd)?,
            k: plain("attn_k", width, n_embd)?,
            v: plain("attn_v", width, n_embd)?,
            beta: plain("ssm_beta", n_heads, n_embd)?,
            output: plain("attn_output", n_embd, width)?,
            decay,
            gate,
            conv: ShortConv {
                state_idx: place.state_idx,
                n_channels: 3 * width,
                n_taps,
                weight: loader.memory.upload_vector(&taps)?,
                bias: None,
                has_silu: true,
            },
            net: DeltaNet {
                state_idx: place.state_idx,
                n_k_heads: n_heads,
                n_v_heads: n_heads,
                head_dim_k: head_dim,
                head_dim_v: head_dim,
                key_heads: KeyHeads::Grouped,
                decays: DeltaDecays::OfChannels,
                a: loader.required_vector(&name("ssm_a"), &[n_heads])?,
                dt_bias: loader.required_vector(&name("ssm_dt.bias"), &[width])?,
            },
            norm: loader.norm(&name("ssm_norm"), head_dim, rms)?,
        })
    }
}

impl<B: Backend> KimiDeltaMixer<B> {
    pub(super) fn mix(
        &self,
        backend: &mut B,
        shape: &StepShape,
        rows: &mut MixerRows<'_, B::Buffer>,
        buffers: &mut KimiDeltaBuffers<B::Buffer>,
        wants_output: bool,
    ) -> Result<(), BackendError> {
        let n_tokens = shape.n_tokens;
        let width = self.q.n_out;
        let KimiDeltaBuffers {
            q,
            k,
            v,
            qk,
            qkv,
            convolved,
            decay_low,
            gate_low,
            alpha,
            beta,
            y,
        } = buffers;
        let mut projections = [
            (&self.q, &mut *q),
            (&self.k, &mut *k),
            (&self.v, &mut *v),
            (&self.decay.down, &mut *decay_low),
            (&self.gate.down, &mut *gate_low),
            (&self.beta, &mut *beta),
        ]
        .map(|(linear, output)| LinearJob { linear, output });
        backend.linear_group(rows.input, n_tokens, &mut projections)?;
        backend.linear(&self.decay.up, decay_low, n_tokens, alpha)?;
        let part = |rows, width| JoinedRows { rows, width };
        backend.join(n_tokens, part(&*q, width), part(&*k, width), qk)?;
        backend.join(n_tokens, part(&*qk, 2 * width), part(&*v, width), qkv)?;
        backend.short_conv(&self.conv, shape, qkv, convolved)?;
        let net_rows = DeltaNetRows {
            qkv: convolved,
            alpha,
            beta,
        };
        backend.delta_net(&self.net, shape, net_rows, y)?;
        if wants_output {
            backend.linear(&self.gate.up, gate_low, n_tokens, rows.mixed)?;
            backend.norm_in_place(&self.norm, n_tokens, width, y)?;
            backend.activation(Activation::Sigmoid, n_tokens, width, rows.mixed, Some(y))?;
        }
        Ok(())
    }
}

impl<T> KimiDeltaBuffers<T> {
    pub(super) fn alloc<M: Memory<Buffer = T>>(
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        memory: &mut M,
    ) -> Result<Option<Self>, BackendError> {
        let widest = |width: fn(&KimiDeltaDescriptor) -> usize| {
            (descriptor.layers.iter())
                .filter_map(|layer| match &layer.mixer {
                    MixerDescriptor::KimiDelta(net) => Some(width(net)),
                    _ => None,
                })
                .max()
        };
        let Some(width) = widest(KimiDeltaDescriptor::width) else {
            return Ok(None);
        };
        let head_dim = widest(|net| net.head_dim).unwrap_or(0);
        let n_heads = widest(|net| net.n_heads).unwrap_or(0);
        let mut of_tokens = |width| memory.alloc(limits.max_batch_tokens, width);
        Ok(Some(Self {
            q: of_tokens(width)?,
            k: of_tokens(width)?,
            v: of_tokens(width)?,
            qk: of_tokens(2 * width)?,
            qkv: of_tokens(3 * width)?,
            convolved: of_tokens(3 * width)?,
            decay_low: of_tokens(head_dim)?,
            gate_low: of_tokens(head_dim)?,
            alpha: of_tokens(width)?,
            beta: of_tokens(n_heads)?,
            y: of_tokens(width)?,
        }))
    }
}

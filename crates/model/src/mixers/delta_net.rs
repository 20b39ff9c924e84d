//! [`DeltaNetMixer`]: a gated delta net.
//!
//! ```text
//! q, k, v = silu(conv(W_qkv x))        alpha, beta, z = W_alpha x, W_beta x, W_z x
//! y = delta_net(q, k, v, alpha, beta)  mixed = norm(y) * silu(z)      output = W_out mixed
//! ```

use tokenmill_backend::{
    Activation, Backend, BackendError, DeltaDecays, DeltaNet, DeltaNetRows, ExecutorLimits, Linear,
    LinearJob, Memory, Norm, ShortConv, StepShape,
};

use crate::{
    DeltaGates, DeltaNetDescriptor, Descriptor, LoadError, MixerDescriptor, Presence,
    loader::{LayerPlace, Loader, RowsOf},
};

use super::{MixerRows, load_conv};

/// The weights of a delta net.
pub(crate) struct DeltaNetMixer<M: Memory> {
    qkv: Linear<M::Matrix, M::Vector>,
    z: Linear<M::Matrix, M::Vector>,
    alpha: Linear<M::Matrix, M::Vector>,
    beta: Linear<M::Matrix, M::Vector>,
    conv: ShortConv<M::Vector>,
    net: DeltaNet<M::Vector>,
    norm: Norm<M::Vector>,
    pub(super) output: Linear<M::Matrix, M::Vector>,
}

/// Intermediate results of a delta net.
pub(super) struct DeltaNetBuffers<T> {
    qkv: T,
    convolved: T,
    alpha: T,
    beta: T,
    y: T,
}

impl<M: Memory> DeltaNetMixer<M> {
    pub(super) fn load(
        place: LayerPlace,
        net: &DeltaNetDescriptor,
        loader: &mut Loader<'_, M>,
    ) -> Result<Self, LoadError> {
        let n_embd = loader.descriptor.n_embd;
        let name = |part| place.name(part);
        let (qkv_width, v_width, n_v_heads) = (net.qkv_width(), net.v_width(), net.n_v_heads);
        let joined = name("ssm_in");
        let (qkv, z) = if loader.source.contains(&format!("{joined}.weight")) {
            // Some files store, for each key head, its query, its key, and the values and gates of its value
            // heads.
            let (k, v) = (net.head_dim_k, v_width / net.n_k_heads);
            let stride = 2 * k + 2 * v;
            let rows = |first, n_rows| RowsOf {
                first,
                n_rows,
                n_total: stride * net.n_k_heads,
                n_runs: net.n_k_heads,
                stride,
            };
            let qkv = [rows(0, k), rows(k, k), rows(2 * k, v)];
            let qkv = loader.linear_parts(&joined, &qkv, n_embd, Presence::Absent)?;
            let z = loader.linear_part(&joined, rows(2 * k + v, v), n_embd, Presence::Absent)?;
            (qkv, z)
        } else {
            (
                loader.linear(&name("attn_qkv"), qkv_width, n_embd, Presence::Absent)?,
                loader.linear(&name("attn_gate"), v_width, n_embd, Presence::Absent)?,
            )
        };
        let mut plain = |part, n_out, n_in| loader.linear(&name(part), n_out, n_in, Presence::Absent);
        let output = plain("ssm_out", n_embd, v_width)?;
        let (alpha, beta) = match net.gates {
            DeltaGates::Apart => (
                plain("ssm_alpha", n_v_heads, n_embd)?,
                plain("ssm_beta", n_v_heads, n_embd)?,
            ),
            DeltaGates::ByKeyHead => {
                let n_each = n_v_heads / net.n_k_heads;
                let mut part = |start| {
                    let rows = RowsOf {
                        first: start,
                        n_rows: n_each,
                        n_total: 2 * n_v_heads,
                        n_runs: net.n_k_heads,
                        stride: 2 * n_each,
                    };
                    loader.linear_part(&name("ssm_ba"), rows, n_embd, Presence::Absent)
                };
                let beta = part(0)?;
                (part(n_each)?, beta)
            }
        };
        let norm = loader.descriptor.rms_norm();
        Ok(Self {
            qkv,
            z,
            alpha,
            beta,
            conv: load_conv(
                place,
                "ssm_conv1d",
                [qkv_width, net.n_taps],
                Presence::Absent,
                true,
                loader,
            )?,
            net: DeltaNet {
                state_idx: place.state_idx,
                n_k_heads: net.n_k_heads,
                n_v_heads,
                head_dim_k: net.head_dim_k,
                head_dim_v: net.head_dim_v,
                key_heads: net.key_heads,
                decays: DeltaDecays::OfHeads,
                a: loader.required_vector(&name("ssm_a"), &[n_v_heads])?,
                dt_bias: loader.required_vector(&name("ssm_dt.bias"), &[n_v_heads])?,
            },
            norm: loader.norm(&name("ssm_norm"), net.head_dim_v, norm)?,
            output,
        })
    }
}

impl<B: Backend> DeltaNetMixer<B> {
    pub(super) fn mix(
        &self,
        backend: &mut B,
        shape: &StepShape,
        rows: &mut MixerRows<'_, B::Buffer>,
        buffers: &mut DeltaNetBuffers<B::Buffer>,
        wants_output: bool,
    ) -> Result<(), BackendError> {
        let n_tokens = shape.n_tokens;
        let DeltaNetBuffers {
            qkv,
            convolved,
            alpha,
            beta,
            y,
        } = buffers;
        let mut projections = [
            (&self.qkv, &mut *qkv),
            (&self.z, &mut *rows.mixed),
            (&self.alpha, &mut *alpha),
            (&self.beta, &mut *beta),
        ]
        .map(|(linear, output)| LinearJob { linear, output });
        backend.linear_group(rows.input, n_tokens, &mut projections)?;
        backend.short_conv(&self.conv, shape, qkv, convolved)?;
        let net_rows = DeltaNetRows {
            qkv: convolved,
            alpha,
            beta,
        };
        backend.delta_net(&self.net, shape, net_rows, y)?;
        if wants_output {
            backend.norm_in_place(&self.norm, n_tokens, self.output.n_in, y)?;
            backend.activation(Activation::Silu, n_tokens, self.output.n_in, rows.mixed, Some(y))?;
        }
        Ok(())
    }
}

impl<T> DeltaNetBuffers<T> {
    pub(super) fn alloc<M: Memory<Buffer = T>>(
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        memory: &mut M,
    ) -> Result<Option<Self>, BackendError> {
        let nets = || {
            (descriptor.layers.iter()).filter_map(|layer| match &layer.mixer {
                MixerDescriptor::DeltaNet(net) => Some(net),
                _ => None,
            })
        };
        let widest = |width: fn(&DeltaNetDescriptor) -> usize| nets().map(width).max();
        let Some(qkv) = widest(DeltaNetDescriptor::qkv_width) else {
            return Ok(None);
        };
        let n_heads = widest(|net| net.n_v_heads).unwrap_or(0);
        let y = widest(DeltaNetDescriptor::v_width).unwrap_or(0);
        let mut of_tokens = |width| memory.alloc(limits.max_batch_tokens, width);
        Ok(Some(Self {
            qkv: of_tokens(qkv)?,
            convolved: of_tokens(qkv)?,
            alpha: of_tokens(n_heads)?,
            beta: of_tokens(n_heads)?,
            y: of_tokens(y)?,
        }))
    }
}

//! The forward pass: one for all decoder architectures, in the order of the papers.
//!
//! Separate from everything that moves values or weights. Invariant: it branches on the network and on counts only, so
//! one [`StepShape`] always runs the same operations on the same buffers.

use tokenmill_backend::{Backend, BackendError, LinearJob, Norm, RopeStoreKv, RowSet, StepShape};

use crate::{
    Descriptor, Residual,
    network::{Ffn, Layer, Network},
};

/// The activation buffers of a network. They are allocated once and never move.
pub(crate) struct Activations<B: Backend> {
    hidden: B::Buffer,
    normed: B::Buffer,
    q: B::Buffer,
    k: B::Buffer,
    v: B::Buffer,
    attn: B::Buffer,
    /// Output rows of `hidden`, `normed` and `attn` in the last layer.
    out_hidden: B::Buffer,
    out_normed: B::Buffer,
    out_attn: B::Buffer,
    scratch: Scratch<B>,
    head_input: B::Buffer,
    logits: B::Buffer,
}

struct Scratch<B: Backend> {
    gate: B::Buffer,
    up: B::Buffer,
    /// What a half of a layer adds to the hidden state.
    delta: B::Buffer,
}

/// Rows and widths of the buffers of [`Activations`], in order.
fn buffer_shapes(descriptor: &Descriptor, max_tokens: usize, max_logits: usize) -> [(usize, usize); 14] {
    let widest = |width: &dyn Fn(&crate::LayerDescriptor) -> usize| {
        descriptor.layers.iter().map(width).max().unwrap_or(0)
    };
    let n_embd = descriptor.n_embd;
    let q = widest(&|layer| layer.attention.n_heads * layer.attention.head_dim_k);
    let k = widest(&|layer| layer.attention.n_kv_heads * layer.attention.head_dim_k);
    let v = widest(&|layer| layer.attention.n_kv_heads * layer.attention.head_dim_v);
    let attn = widest(&|layer| layer.attention.n_heads * layer.attention.head_dim_v);
    let n_ff = widest(&|layer| layer.ffn.n_ff);
    [
        (max_tokens, n_embd),
        (max_tokens, n_embd),
        (max_tokens, q),
        (max_tokens, k),
        (max_tokens, v),
        (max_tokens, attn),
        (max_tokens, n_embd),
        (max_tokens, n_embd),
        (max_tokens, attn),
        (max_tokens, n_ff),
        (max_tokens, n_ff),
        (max_tokens, n_embd),
        (max_logits, n_embd),
        (max_logits, descriptor.n_vocab),
    ]
}

/// Bytes of all buffers together; `usize::MAX` where the sum is beyond it.
pub(crate) fn activation_bytes<B: Backend>(
    descriptor: &Descriptor,
    max_tokens: usize,
    max_logits: usize,
    backend: &B,
) -> usize {
    buffer_shapes(descriptor, max_tokens, max_logits)
        .iter()
        .map(|&(rows, width)| backend.buffer_bytes(rows, width))
        .fold(0, usize::saturating_add)
}

impl<B: Backend> Activations<B> {
    pub(crate) fn alloc(
        descriptor: &Descriptor,
        max_tokens: usize,
        max_logits: usize,
        backend: &mut B,
    ) -> Result<Self, BackendError> {
        let mut shapes = buffer_shapes(descriptor, max_tokens, max_logits).into_iter();
        let mut next = || {
            let (rows, width) = shapes.next().expect("as many shapes as buffers");
            backend.alloc(rows, width)
        };
        Ok(Self {
            hidden: next()?,
            normed: next()?,
            q: next()?,
            k: next()?,
            v: next()?,
            attn: next()?,
            out_hidden: next()?,
            out_normed: next()?,
            out_attn: next()?,
            scratch: Scratch {
                gate: next()?,
                up: next()?,
                delta: next()?,
            },
            head_input: next()?,
            logits: next()?,
        })
    }
}

/// Runs one step: embeds the tokens, runs every layer, and samples from the logits of the rows asked for.
///
/// From the attention of the last layer on, only the output rows are computed; without output rows nothing is
/// computed there beyond the keys and values.
pub(crate) fn forward<B: Backend>(
    backend: &mut B,
    network: &Network<B>,
    buffers: &mut Activations<B>,
    shape: &StepShape,
) -> Result<(), BackendError> {
    let Activations {
        hidden,
        normed,
        q,
        k,
        v,
        attn,
        out_hidden,
        out_normed,
        out_attn,
        scratch,
        head_input,
        logits,
    } = buffers;
    let n_tokens = shape.n_tokens;
    let widths = [network.token_embd.n_out, network.token_embd.n_in];
    if n_tokens == 0 {
        return backend.sample(shape, widths, logits, normed);
    }
    let picks_rows = shape.n_outputs < n_tokens;
    backend.embed(
        &network.token_embd.matrix,
        network.embedding_scale,
        n_tokens,
        hidden,
    )?;
    if let Some(norm) = &network.layers[0].attn_norm {
        backend.norm(norm, hidden, n_tokens, normed)?;
    }
    for (layer_idx, layer) in network.layers.iter().enumerate() {
        let input = if layer.attn_norm.is_some() {
            &*normed
        } else {
            &*hidden
        };
        backend.linear_group(
            input,
            n_tokens,
            &mut [
                LinearJob {
                    linear: &layer.attn_q,
                    output: q,
                },
                LinearJob {
                    linear: &layer.attn_k,
                    output: k,
                },
                LinearJob {
                    linear: &layer.attn_v,
                    output: v,
                },
            ],
        )?;
        let job = RopeStoreKv {
            layer_idx,
            q_norm: layer.attn_q_norm.as_ref(),
            k_norm: layer.attn_k_norm.as_ref(),
            rope: layer.rope.map(|rope_idx| &network.ropes[rope_idx]),
            q_width: layer.attn_q.n_out,
            k_width: layer.attn_k.n_out,
        };
        backend.rope_store_kv(job, n_tokens, [q, k], v)?;

        if let Some(next) = network.layers.get(layer_idx + 1) {
            backend.attention(&layer.attention, shape, q, attn)?;
            let next_norm = next.attn_norm.as_ref();
            finish_layer(
                backend,
                network,
                layer,
                next_norm,
                n_tokens,
                [hidden, normed],
                attn,
                scratch,
            )?;
        } else if shape.n_outputs > 0 {
            backend.attention(&layer.attention, shape, q, attn)?;
            let next_norm = Some(&network.output_norm);
            let n_outputs = shape.n_outputs;
            if picks_rows {
                let (n_embd, attn_width) = (layer.attn_q.n_in, layer.attn_output.n_in);
                backend.gather(RowSet::Outputs, shape, n_embd, hidden, out_hidden)?;
                backend.gather(RowSet::Outputs, shape, attn_width, attn, out_attn)?;
                if layer.residual == Residual::Parallel {
                    backend.gather(RowSet::Outputs, shape, n_embd, normed, out_normed)?;
                }
                let streams = [&mut *out_hidden, &mut *out_normed];
                finish_layer(
                    backend, network, layer, next_norm, n_outputs, streams, out_attn, scratch,
                )?;
            } else {
                finish_layer(
                    backend,
                    network,
                    layer,
                    next_norm,
                    n_outputs,
                    [hidden, normed],
                    attn,
                    scratch,
                )?;
            }
        }
    }
    let outputs = if picks_rows { &*out_normed } else { &*normed };
    if shape.n_logits > 0 {
        let head = network.output.as_ref().unwrap_or(&network.token_embd);
        if shape.n_logits < shape.n_outputs {
            backend.gather(RowSet::LogitsOfOutputs, shape, head.n_in, outputs, head_input)?;
            backend.linear(head, head_input, shape.n_logits, logits)?;
        } else {
            backend.linear(head, outputs, shape.n_logits, logits)?;
        }
        if network.logit_scale != 1.0 || network.logit_softcap.is_some() {
            let (scale, cap) = (network.logit_scale, network.logit_softcap);
            backend.scale_logits(scale, cap, shape.n_logits, head.n_out, logits)?;
        }
    }
    backend.sample(shape, widths, logits, outputs)
}

/// What follows attention in a layer: its output projection, the feed-forward network, both residual additions, and
/// the norm that comes next.
fn finish_layer<B: Backend>(
    backend: &mut B,
    network: &Network<B>,
    layer: &Layer<B>,
    next_norm: Option<&Norm<B::Vector>>,
    n_rows: usize,
    [hidden, normed]: [&mut B::Buffer; 2],
    attn: &B::Buffer,
    scratch: &mut Scratch<B>,
) -> Result<(), BackendError> {
    let n_embd = layer.attn_output.n_out;
    let scale = network.residual_scale;
    match layer.residual {
        Residual::Sequential => {
            backend.linear(&layer.attn_output, attn, n_rows, &mut scratch.delta)?;
            if let Some(norm) = &layer.attn_post_norm {
                backend.norm_heads(norm, n_rows, n_embd, &mut scratch.delta)?;
            }
            add_and_norm(
                backend,
                scale,
                layer.ffn_norm.as_ref(),
                n_rows,
                n_embd,
                [&mut *hidden, &mut *normed],
                scratch,
            )?;
            let input = if layer.ffn_norm.is_some() {
                &*normed
            } else {
                &*hidden
            };
            feed_forward(backend, &layer.ffn, input, n_rows, scratch)?;
            if let Some(norm) = &layer.ffn_post_norm {
                backend.norm_heads(norm, n_rows, n_embd, &mut scratch.delta)?;
            }
        }
        Residual::Parallel | Residual::ParallelTwoNorms => {
            // The feed-forward network comes first: it reads `normed`, or the hidden state before anything is added.
            if let Some(norm) = &layer.ffn_norm {
                backend.norm(norm, hidden, n_rows, normed)?;
            }
            feed_forward(backend, &layer.ffn, normed, n_rows, scratch)?;
            backend.add(scale, n_rows, n_embd, hidden, &scratch.delta)?;
            backend.linear(&layer.attn_output, attn, n_rows, &mut scratch.delta)?;
        }
    }
    add_and_norm(
        backend,
        scale,
        next_norm,
        n_rows,
        n_embd,
        [hidden, normed],
        scratch,
    )
}

/// `delta = down(f(gate(input)) * up(input))`, or `down(f(up(input)))` without a gate.
fn feed_forward<B: Backend>(
    backend: &mut B,
    ffn: &Ffn<B>,
    input: &B::Buffer,
    n_rows: usize,
    scratch: &mut Scratch<B>,
) -> Result<(), BackendError> {
    let Scratch { gate, up, delta } = scratch;
    if let Some(gate_linear) = &ffn.gate {
        backend.linear_gated(
            ffn.activation,
            [gate_linear, &ffn.up],
            input,
            n_rows,
            [&mut *gate, up],
        )?;
        backend.linear(&ffn.down, gate, n_rows, delta)
    } else {
        backend.linear(&ffn.up, input, n_rows, up)?;
        backend.activation(ffn.activation, n_rows, ffn.up.n_out, up, None)?;
        backend.linear(&ffn.down, up, n_rows, delta)
    }
}

/// Adds `scratch.delta` to the hidden state and applies the norm that follows, if one does.
fn add_and_norm<B: Backend>(
    backend: &mut B,
    scale: f32,
    norm: Option<&Norm<B::Vector>>,
    n_rows: usize,
    n_embd: usize,
    [hidden, normed]: [&mut B::Buffer; 2],
    scratch: &Scratch<B>,
) -> Result<(), BackendError> {
    match norm {
        Some(norm) => backend.add_norm(scale, &scratch.delta, norm, n_rows, hidden, normed),
        None => backend.add(scale, n_rows, n_embd, hidden, &scratch.delta),
    }
}

//! The forward pass: one for all decoder architectures, in the order of the papers.
//!
//! Separate from everything that moves values or weights. Invariant: it branches on the network and on counts only, so
//! one [`StepShape`] always runs the same operations on the same buffers.
//!
//! A layer adds two halves to the stream `hidden`, attention and a feed-forward network. Each reads the stream through a
//! norm, and the addition of one half computes the norm of the next on the way:
//!
//! ```text
//! normed = norm(hidden)
//! q, k, v = W_q normed, W_k normed, W_v normed      rotate q and k, store k and v
//! hidden += W_o attention(q)                        normed = norm(hidden)
//! hidden += W_down (f(W_gate normed) * W_up normed)
//! ```

use tokenmill_backend::{Backend, BackendError, LinearJob, Norm, RopeStoreKv, RowSet, StepShape};

use crate::{
    Residual,
    activations::{Activations, Heads, Rows, Scratch},
    network::{Ffn, Layer, Network},
};

/// Runs one step: embeds the tokens, runs every layer, and samples from the logits of the rows asked for.
///
/// From the attention of the last layer on, only the output rows are computed; without output rows nothing is
/// computed there beyond the keys and values.
pub(crate) fn forward<B: Backend>(
    backend: &mut B,
    network: &Network<B>,
    buffers: &mut Activations<B::Buffer>,
    shape: &StepShape,
) -> Result<(), BackendError> {
    let Activations {
        tokens,
        outputs,
        heads,
        scratch,
        head_input,
        logits,
    } = buffers;
    let (n_tokens, n_outputs) = (shape.n_tokens, shape.n_outputs);
    let (n_vocab, n_embd) = (network.token_embd.n_out, network.token_embd.n_in);
    if n_tokens == 0 {
        return backend.sample(shape, n_vocab, n_embd, logits, &tokens.normed);
    }
    let embedding = &network.token_embd.matrix;
    backend.embed(embedding, network.embedding_scale, n_tokens, &mut tokens.hidden)?;
    let (last, layers) = network.layers.split_last().expect("a network has a layer");
    if let Some(norm) = &network.layers[0].attn_norm {
        backend.norm(norm, &tokens.hidden, n_tokens, &mut tokens.normed)?;
    }
    for (layer, next) in layers.iter().zip(&network.layers[1..]) {
        project_and_store(backend, network, layer, tokens, heads, n_tokens)?;
        backend.attention(&layer.attention, shape, &heads.q, &mut tokens.attn)?;
        add_halves(
            backend,
            network,
            layer,
            next.attn_norm.as_ref(),
            tokens,
            scratch,
            n_tokens,
        )?;
    }
    project_and_store(backend, network, last, tokens, heads, n_tokens)?;
    let picks_rows = n_outputs < n_tokens;
    if n_outputs > 0 {
        backend.attention(&last.attention, shape, &heads.q, &mut tokens.attn)?;
        if picks_rows {
            pick_outputs(backend, last, tokens, outputs, shape)?;
        }
        let rows = if picks_rows { &mut *outputs } else { &mut *tokens };
        add_halves(
            backend,
            network,
            last,
            Some(&network.output_norm),
            rows,
            scratch,
            n_outputs,
        )?;
    }
    let rows = if picks_rows { outputs } else { tokens };
    if shape.n_logits > 0 {
        compute_logits(backend, network, &rows.normed, head_input, logits, shape)?;
    }
    backend.sample(shape, n_vocab, n_embd, logits, &rows.normed)
}

/// Computes queries, keys and values of each token, rotates the first two, and stores the last two.
fn project_and_store<B: Backend>(
    backend: &mut B,
    network: &Network<B>,
    layer: &Layer<B>,
    tokens: &Rows<B::Buffer>,
    heads: &mut Heads<B::Buffer>,
    n_tokens: usize,
) -> Result<(), BackendError> {
    let mut projections = [
        (&layer.attn_q, &mut heads.q),
        (&layer.attn_k, &mut heads.k),
        (&layer.attn_v, &mut heads.v),
    ]
    .map(|(linear, output)| LinearJob { linear, output });
    backend.linear_group(tokens.input(layer.attn_norm.as_ref()), n_tokens, &mut projections)?;
    let job = RopeStoreKv {
        layer_idx: layer.attention.layer_idx,
        q_norm: layer.attn_q_norm.as_ref(),
        k_norm: layer.attn_k_norm.as_ref(),
        rope: layer.rope.map(|rope_idx| &network.ropes[rope_idx]),
        q_width: layer.attn_q.n_out,
        k_width: layer.attn_k.n_out,
        q: &mut heads.q,
        k: &mut heads.k,
        v: &heads.v,
    };
    backend.rope_store_kv(job, n_tokens)
}

/// Gathers the output rows of what the rest of the last layer reads.
fn pick_outputs<B: Backend>(
    backend: &mut B,
    layer: &Layer<B>,
    tokens: &Rows<B::Buffer>,
    outputs: &mut Rows<B::Buffer>,
    shape: &StepShape,
) -> Result<(), BackendError> {
    let (n_embd, attn_width) = (layer.attn_output.n_out, layer.attn_output.n_in);
    let rows = RowSet::Outputs;
    backend.gather(rows, shape, n_embd, &tokens.hidden, &mut outputs.hidden)?;
    backend.gather(rows, shape, attn_width, &tokens.attn, &mut outputs.attn)?;
    if layer.residual == Residual::Parallel {
        backend.gather(rows, shape, n_embd, &tokens.normed, &mut outputs.normed)?;
    }
    Ok(())
}

/// Adds both halves of a layer to the stream, once attention was computed, and applies the norm that comes next.
fn add_halves<B: Backend>(
    backend: &mut B,
    network: &Network<B>,
    layer: &Layer<B>,
    next_norm: Option<&Norm<B::Vector>>,
    rows: &mut Rows<B::Buffer>,
    scratch: &mut Scratch<B::Buffer>,
    n_rows: usize,
) -> Result<(), BackendError> {
    let ffn_norm = layer.ffn_norm.as_ref();
    match layer.residual {
        Residual::Sequential => {
            project_attention(backend, layer, &rows.attn, n_rows, &mut scratch.delta)?;
            add(backend, network, &scratch.delta, ffn_norm, rows, n_rows)?;
            feed_forward(backend, &layer.ffn, rows.input(ffn_norm), n_rows, scratch)?;
            add(backend, network, &scratch.delta, next_norm, rows, n_rows)
        }
        // Both halves read the layer's input, so the feed-forward network comes before anything is added.
        Residual::Parallel | Residual::ParallelTwoNorms => {
            if let Some(norm) = ffn_norm {
                backend.norm(norm, &rows.hidden, n_rows, &mut rows.normed)?;
            }
            feed_forward(backend, &layer.ffn, &rows.normed, n_rows, scratch)?;
            add(backend, network, &scratch.delta, None, rows, n_rows)?;
            project_attention(backend, layer, &rows.attn, n_rows, &mut scratch.delta)?;
            add(backend, network, &scratch.delta, next_norm, rows, n_rows)
        }
    }
}

/// `delta = norm(W_o attn)`, without the norm where the layer has none there.
fn project_attention<B: Backend>(
    backend: &mut B,
    layer: &Layer<B>,
    attn: &B::Buffer,
    n_rows: usize,
    delta: &mut B::Buffer,
) -> Result<(), BackendError> {
    backend.linear(&layer.attn_output, attn, n_rows, delta)?;
    norm_if_present(backend, layer.attn_post_norm.as_ref(), n_rows, delta)
}

/// `delta = norm(W_down (f(W_gate input) * W_up input))`, without gate or norm where the network has none.
fn feed_forward<B: Backend>(
    backend: &mut B,
    ffn: &Ffn<B>,
    input: &B::Buffer,
    n_rows: usize,
    scratch: &mut Scratch<B::Buffer>,
) -> Result<(), BackendError> {
    let Scratch { gate, up, delta } = scratch;
    if let Some(gate_linear) = &ffn.gate {
        let gate_job = LinearJob {
            linear: gate_linear,
            output: &mut *gate,
        };
        let up_job = LinearJob {
            linear: &ffn.up,
            output: up,
        };
        backend.linear_gated(ffn.activation, input, n_rows, gate_job, up_job)?;
        backend.linear(&ffn.down, gate, n_rows, delta)?;
    } else {
        backend.linear(&ffn.up, input, n_rows, up)?;
        backend.activation(ffn.activation, n_rows, ffn.up.n_out, up, None)?;
        backend.linear(&ffn.down, up, n_rows, delta)?;
    }
    norm_if_present(backend, ffn.post_norm.as_ref(), n_rows, delta)
}

/// `hidden += scale * delta; normed = norm(hidden)`, without the norm where there is none.
fn add<B: Backend>(
    backend: &mut B,
    network: &Network<B>,
    delta: &B::Buffer,
    norm: Option<&Norm<B::Vector>>,
    rows: &mut Rows<B::Buffer>,
    n_rows: usize,
) -> Result<(), BackendError> {
    let (scale, n_embd) = (network.residual_scale, network.token_embd.n_in);
    match norm {
        Some(norm) => backend.add_norm(scale, delta, norm, n_rows, &mut rows.hidden, &mut rows.normed),
        None => backend.add(scale, n_rows, n_embd, &mut rows.hidden, delta),
    }
}

fn norm_if_present<B: Backend>(
    backend: &mut B,
    norm: Option<&Norm<B::Vector>>,
    n_rows: usize,
    rows: &mut B::Buffer,
) -> Result<(), BackendError> {
    match norm {
        Some(norm) => backend.norm_in_place(norm, n_rows, norm.width, rows),
        None => Ok(()),
    }
}

/// The output head: the logits of the rows asked for, scaled and capped.
fn compute_logits<B: Backend>(
    backend: &mut B,
    network: &Network<B>,
    outputs: &B::Buffer,
    head_input: &mut B::Buffer,
    logits: &mut B::Buffer,
    shape: &StepShape,
) -> Result<(), BackendError> {
    let head = network.output.as_ref().unwrap_or(&network.token_embd);
    let input = if shape.n_logits < shape.n_outputs {
        backend.gather(RowSet::LogitsOfOutputs, shape, head.n_in, outputs, head_input)?;
        head_input
    } else {
        outputs
    };
    backend.linear(head, input, shape.n_logits, logits)?;
    if network.logit_scale == 1.0 && network.logit_softcap.is_none() {
        return Ok(());
    }
    let (scale, cap) = (network.logit_scale, network.logit_softcap);
    backend.scale_logits(scale, cap, shape.n_logits, head.n_out, logits)
}

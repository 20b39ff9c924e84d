//! The forward pass: one for all architectures, in the order of the papers.
//!
//! Nothing here moves values or weights. Invariant: it branches on the network and on counts only, so one
//! [`StepShape`] always runs the same operations on the same buffers.
//!
//! A layer adds two halves to the stream `hidden`: a mixer and a feed-forward network. Each reads the stream
//! through a norm, and the addition of one half also computes the norm of the next:
//!
//! ```text
//! normed = norm(hidden)
//! hidden += project(mix(normed))       normed = norm(hidden)
//! hidden += ffn(normed)
//! ```
//!
//! A network that norms the stream after each addition has no norm before its halves; these read the stream
//! itself.
//!
//! Some layers have one half only. If there are several streams, `hidden` is the first, and `alt_up` handles
//! the others before and after a layer.
//!
//! Each kind of mixer is in `mixers`, each kind of feed-forward network in `ffn`, and the pooling of encoders
//! in `pooler`.

use tokenmill_backend::{
    Backend, BackendError, ColumnGather, Columns, LinearAddNorm, NetworkPart, Norm, RowSet, StepShape,
};

use crate::{
    Residual,
    activations::{Activations, HeadParts, Rows},
    alt_up::AltUpBuffers,
    ffn::{Ffn, FfnBuffers},
    layer_embeddings::LayerEmbeddingBuffers,
    mixers::{MixedRows, Mixer, MixerRows},
    network::{Layer, Network},
    pooler::Pooler,
};

/// Runs one step: embeds the tokens, runs every layer, and samples from the logits of the requested rows.
///
/// From the attention of the last layer on, only the output rows are computed. Without output rows, the last
/// layer computes only its keys and values.
pub(crate) fn forward<B: Backend>(
    backend: &mut B,
    network: &Network<B>,
    buffers: &mut Activations<B::Buffer, B::Routes>,
    shape: &StepShape,
) -> Result<(), BackendError> {
    let Activations {
        tokens,
        outputs,
        mixers,
        ffns,
        delta,
        head_input,
        logits,
        head_parts,
        pooled,
        layer_embeddings,
        alt_up: alt_up_buffers,
        nextn,
        taps,
    } = buffers;
    let (n_tokens, n_outputs) = (shape.n_tokens, shape.n_outputs);
    let (n_vocab, n_embd) = (network.token_embd.n_out, network.token_embd.n_in);
    if n_tokens == 0 {
        return backend.sample(shape, n_vocab, n_embd, logits, &tokens.normed);
    }
    backend.enter(NetworkPart::Input);
    let embedding = &network.token_embd.matrix;
    backend.embed(embedding, network.embedding_scale, n_tokens, &mut tokens.hidden)?;
    if let (Some(entry), Some(buffers)) = (&network.nextn, nextn.as_mut()) {
        entry.run(backend, n_tokens, &mut tokens.hidden, buffers)?;
    }
    if let Some(row) = &network.token_type {
        backend.add_row(row, n_tokens, n_embd, &mut tokens.hidden)?;
    }
    if let Some(table) = &network.positions {
        backend.add_positions(table, n_tokens, n_embd, &mut tokens.hidden)?;
    }
    if let Some(norm) = &network.embedding_norm {
        backend.norm_in_place(norm, n_tokens, n_embd, &mut tokens.hidden)?;
    }
    if let (Some(embeddings), Some(buffers)) = (&network.layer_embeddings, layer_embeddings.as_mut()) {
        embeddings.prepare(backend, n_tokens, &tokens.hidden, buffers)?;
    }
    if let (Some(alt_up), Some(streams), Some(buffers)) =
        (&network.alt_up, &mut tokens.streams, alt_up_buffers.as_mut())
    {
        alt_up.begin(backend, n_tokens, &tokens.hidden, streams, buffers)?;
    } else if let Some(norm) = network.layers[0].first_norm() {
        backend.norm(norm, &tokens.hidden, n_tokens, &mut tokens.normed)?;
    }
    let reads_all_rows = network.pooler.as_ref().is_some_and(Pooler::reads_all_rows);
    let picks_rows = n_outputs < n_tokens && !reads_all_rows;
    let n_last_rows = if reads_all_rows { n_tokens } else { n_outputs };
    for (layer_idx, layer) in network.layers.iter().enumerate() {
        let next = network.layers.get(layer_idx + 1);
        let wants_output = next.is_some() || n_outputs > 0;
        backend.enter(NetworkPart::Mixer(layer_idx));
        if let (Some(alt_up), Some(streams), Some(buffers)) =
            (&layer.alt_up, &mut tokens.streams, alt_up_buffers.as_mut())
        {
            let rows = [&mut tokens.hidden, &mut tokens.normed];
            alt_up.predict(backend, n_tokens, rows, streams, buffers)?;
            if let Some(norm) = layer.first_norm() {
                backend.norm(norm, &tokens.hidden, n_tokens, &mut tokens.normed)?;
            }
        }
        if let Some(mixer) = &layer.mixer {
            let mut rows = MixerRows {
                input: match layer.mixer_norm {
                    Some(_) => &tokens.normed,
                    None => &tokens.hidden,
                },
                mixed: &mut tokens.mixed,
                mixed_beside: tokens.mixed_beside.as_mut(),
            };
            mixer.mix(backend, &network.ropes, shape, &mut rows, mixers, wants_output)?;
        }
        if let (Some(embedding), Some(buffers)) = (&layer.embedding, layer_embeddings.as_mut())
            && wants_output
        {
            embedding.take(backend, shape, next.is_none() && picks_rows, buffers)?;
        }
        let next_mixer = next
            .filter(|next| next.alt_up.is_none())
            .and_then(|next| next.mixer.as_ref());
        let mut add_halves = |backend, next_norm, rows, n_rows| {
            let half = Halves {
                network,
                layer,
                layer_idx,
                next_norm,
                next_multiplies: next_mixer.is_some_and(Mixer::begins_with_products),
                n_rows,
            };
            let mut buffers = HalfBuffers {
                ffns: &mut *ffns,
                layer_embeddings: layer_embeddings.as_mut(),
                alt_up: alt_up_buffers.as_mut(),
            };
            half.add(backend, rows, &mut buffers, delta)
        };
        match next {
            Some(next) => add_halves(backend, next.first_norm(), tokens, n_tokens)?,
            None if !wants_output => {}
            None if picks_rows => {
                pick_outputs(backend, network, layer, tokens, outputs, shape)?;
                add_halves(backend, network.output_norm.as_ref(), outputs, n_outputs)?;
            }
            None => add_halves(backend, network.output_norm.as_ref(), tokens, n_last_rows)?,
        }
        for tap in taps.iter_mut().filter(|tap| tap.layer_idx == layer_idx) {
            let columns = Columns {
                rows: &tokens.hidden,
                row_width: n_embd,
                first: 0,
            };
            backend.take_columns(columns, n_tokens, n_embd, &mut tap.hidden)?;
        }
    }
    backend.enter(NetworkPart::Output);
    let rows = if picks_rows { outputs } else { tokens };
    if let (Some(alt_up), Some(streams), Some(buffers)) =
        (&network.alt_up, &rows.streams, alt_up_buffers.as_mut())
        && n_outputs > 0
    {
        let both = [&mut rows.hidden, &mut rows.normed];
        alt_up.end(backend, n_last_rows, both, streams, buffers)?;
        if let Some(norm) = &network.output_norm {
            backend.norm(norm, &rows.hidden, n_last_rows, &mut rows.normed)?;
        }
    }
    let rows = rows.input(network.output_norm.as_ref());
    if shape.n_logits > 0 && network.has_head {
        let buffers = HeadBuffers {
            input: head_input,
            parts: head_parts.as_mut(),
            logits,
        };
        compute_logits(backend, network, rows, buffers, shape)?;
    }
    match (&network.pooler, pooled) {
        (Some(pooler), Some(buffers)) if shape.n_hidden > 0 => {
            let rows = pooler.run(backend, shape, n_embd, rows, buffers)?;
            backend.sample(shape, n_vocab, pooler.output_width(n_embd), logits, rows)
        }
        _ => backend.sample(shape, n_vocab, n_embd, logits, rows),
    }
}

/// Gathers the output rows of the buffers that the rest of the last layer reads.
fn pick_outputs<B: Backend>(
    backend: &mut B,
    network: &Network<B>,
    layer: &Layer<B>,
    tokens: &Rows<B::Buffer>,
    outputs: &mut Rows<B::Buffer>,
    shape: &StepShape,
) -> Result<(), BackendError> {
    let n_embd = network.token_embd.n_in;
    let rows = RowSet::Outputs;
    backend.gather(rows, shape, n_embd, &tokens.hidden, &mut outputs.hidden)?;
    if let Some(mixer) = &layer.mixer {
        let (width, width_beside) = mixer.output_widths();
        backend.gather(rows, shape, width, &tokens.mixed, &mut outputs.mixed)?;
        if let (Some(width), Some(from), Some(to)) =
            (width_beside, &tokens.mixed_beside, &mut outputs.mixed_beside)
        {
            backend.gather(rows, shape, width, from, to)?;
        }
    }
    if let (Some(alt_up), Some(from), Some(to)) = (&network.alt_up, &tokens.streams, &mut outputs.streams) {
        from.pick_outputs(backend, shape, [alt_up.n_others(), n_embd], to)?;
    }
    if layer.mixer.is_none() || layer.residual == Residual::Parallel || layer.alt_up.is_some() {
        backend.gather(rows, shape, n_embd, &tokens.normed, &mut outputs.normed)?;
    }
    Ok(())
}

/// Adds both halves of a layer to the stream after its mixer has run, and applies the next norm.
struct Halves<'a, B: Backend> {
    network: &'a Network<B>,
    layer: &'a Layer<B>,
    layer_idx: usize,
    next_norm: Option<&'a Norm<B::Vector>>,
    /// Whether products are the first operations that read the next norm's output.
    next_multiplies: bool,
    n_rows: usize,
}

/// Buffers of both halves, in addition to the rows.
struct HalfBuffers<'a, T, R> {
    ffns: &'a mut FfnBuffers<T, R>,
    layer_embeddings: Option<&'a mut LayerEmbeddingBuffers<T>>,
    alt_up: Option<&'a mut AltUpBuffers<T>>,
}

impl<B: Backend> Halves<'_, B> {
    fn add(
        &self,
        backend: &mut B,
        rows: &mut Rows<B::Buffer>,
        buffers: &mut HalfBuffers<'_, B::Buffer, B::Routes>,
        delta: &mut B::Buffer,
    ) -> Result<(), BackendError> {
        let ffn_norm = self.layer.ffn_norm.as_ref();
        let has_ffn = self.layer.ffn.is_some();
        let has_end = self.layer.embedding.is_some()
            || self.layer.output_scale.is_some()
            || self.layer.control.is_some()
            || self.layer.input_part.is_some()
            || self.layer.alt_up.is_some();
        let next_norm = if has_end { None } else { self.next_norm };
        match self.layer.residual {
            Residual::Sequential => {
                let layer = self.layer;
                if layer.mixer.is_some() && !self.project_add_norm(backend, rows, delta)? {
                    self.project(backend, rows, delta)?;
                    let next_norm = if has_ffn { ffn_norm } else { next_norm };
                    if let (Some(alt_up), Some(buffers)) = (&layer.alt_up, buffers.alt_up.as_deref_mut()) {
                        self.add_norm(backend, delta, None, None, rows)?;
                        let both = [&mut rows.hidden, &mut *delta];
                        (alt_up.laurel).add(backend, self.n_rows, &rows.normed, both, buffers)?;
                        self.norm_stream(backend, next_norm, rows)?;
                    } else if let (Some(first), Some(second)) =
                        (&layer.mixer_sum_norm, &layer.mixer_second_norm)
                    {
                        self.add_twice(backend, delta, [first, second], rows)?;
                    } else {
                        self.add_norm(backend, delta, layer.mixer_sum_norm.as_ref(), next_norm, rows)?;
                    }
                }
                if has_ffn && !self.feed_forward_add_norm(backend, rows, buffers.ffns, delta, next_norm)? {
                    self.feed_forward(backend, rows, buffers.ffns, delta)?;
                    self.add_norm(backend, delta, layer.ffn_sum_norm.as_ref(), next_norm, rows)?;
                }
                if has_end {
                    self.end(backend, rows, buffers, delta)?;
                }
                Ok(())
            }
            // Both halves read the layer's input, so the feed-forward network runs before anything is added.
            Residual::Parallel | Residual::ParallelTwoNorms => {
                if let Some(norm) = ffn_norm {
                    backend.norm(norm, &rows.hidden, self.n_rows, &mut rows.normed)?;
                }
                self.feed_forward(backend, rows, buffers.ffns, delta)?;
                self.add_norm(backend, delta, None, None, rows)?;
                backend.enter(NetworkPart::Mixer(self.layer_idx));
                self.project(backend, rows, delta)?;
                if self.layer.control.is_some() {
                    self.add_norm(backend, delta, None, None, rows)?;
                    self.add_control(backend, rows)?;
                    return self.norm_stream(backend, self.next_norm, rows);
                }
                self.add_norm(backend, delta, None, self.next_norm, rows)
            }
        }
    }

    /// Applies the end of a layer: corrects the streams, adds the layer's own embedding, scales the stream,
    /// adds a control vector, and norms the stream for the next layer. With several streams, the next layer
    /// does its own norm.
    fn end(
        &self,
        backend: &mut B,
        rows: &mut Rows<B::Buffer>,
        buffers: &mut HalfBuffers<'_, B::Buffer, B::Routes>,
        delta: &mut B::Buffer,
    ) -> Result<(), BackendError> {
        let HalfBuffers {
            layer_embeddings,
            alt_up: alt_up_buffers,
            ..
        } = buffers;
        let embedding = (self.layer.embedding.as_ref()).zip(layer_embeddings.as_deref_mut());
        if let (Some(alt_up), Some(streams), Some(buffers)) = (
            &self.layer.alt_up,
            &mut rows.streams,
            alt_up_buffers.as_deref_mut(),
        ) {
            let both = [&mut rows.hidden, &mut rows.normed];
            alt_up.correct(backend, self.n_rows, both, streams, buffers)?;
            if let Some((embedding, buffers)) = embedding {
                embedding.run(backend, &rows.normed, self.n_rows, buffers, delta)?;
                alt_up.add_embedding(backend, self.n_rows, delta, streams)?;
            }
            return Ok(());
        }
        if let Some((embedding, buffers)) = embedding {
            embedding.run(backend, &rows.hidden, self.n_rows, buffers, delta)?;
            self.add_norm(backend, delta, None, None, rows)?;
        }
        if let Some(scale) = self.layer.output_scale {
            let n_embd = self.network.token_embd.n_in;
            backend.scale_logits(scale, None, self.n_rows, n_embd, &mut rows.hidden)?;
        }
        self.add_control(backend, rows)?;
        if let Some(part) = self.layer.input_part {
            let n_embd = self.network.token_embd.n_in;
            backend.add_input_rows(part, self.n_rows, n_embd, &mut rows.hidden)?;
        }
        self.norm_stream(backend, self.next_norm, rows)
    }

    /// Adds the layer's control vector.
    fn add_control(&self, backend: &mut B, rows: &mut Rows<B::Buffer>) -> Result<(), BackendError> {
        match &self.layer.control {
            Some(row) => backend.add_row(row, self.n_rows, self.network.token_embd.n_in, &mut rows.hidden),
            None => Ok(()),
        }
    }

    /// `normed = norm(hidden)`, if there is a norm.
    fn norm_stream(
        &self,
        backend: &mut B,
        norm: Option<&Norm<B::Vector>>,
        rows: &mut Rows<B::Buffer>,
    ) -> Result<(), BackendError> {
        match norm {
            Some(norm) => backend.norm(norm, &rows.hidden, self.n_rows, &mut rows.normed),
            None => Ok(()),
        }
    }

    /// `delta = norm(project(mixed))`, without the norm if the layer has none there. In a shard, the norm
    /// applies to the sum over all shards.
    fn project(
        &self,
        backend: &mut B,
        rows: &mut Rows<B::Buffer>,
        delta: &mut B::Buffer,
    ) -> Result<(), BackendError> {
        let mixer = self.layer.mixer.as_ref().expect("a layer with a mixer");
        let mut mixed = MixedRows {
            mixed: &rows.mixed,
            mixed_beside: rows.mixed_beside.as_ref(),
            // The mixer has read these rows, and the next norm overwrites them.
            scratch: &mut rows.normed,
        };
        mixer.project(backend, &mut mixed, self.n_rows, delta)?;
        backend.all_reduce(self.n_rows, self.network.token_embd.n_in, delta)?;
        self.norm_if_present(backend, self.layer.mixer_post_norm.as_ref(), delta)
    }

    /// Runs [`Self::project`] and [`Self::add_norm`] as one operation, if nothing stands between them and
    /// products follow. Returns whether it did.
    fn project_add_norm(
        &self,
        backend: &mut B,
        rows: &mut Rows<B::Buffer>,
        delta: &mut B::Buffer,
    ) -> Result<bool, BackendError> {
        let layer = self.layer;
        let is_between =
            layer.mixer_post_norm.is_some() || layer.mixer_sum_norm.is_some() || layer.alt_up.is_some();
        let product = (layer.mixer.as_ref()).and_then(Mixer::last_product);
        let follows = layer.ffn.as_ref().is_some_and(Ffn::is_products);
        let (Some(linear), Some(norm), true, false) = (product, &layer.ffn_norm, follows, is_between) else {
            return Ok(false);
        };
        let job = LinearAddNorm {
            linear,
            input: &rows.mixed,
            scale: self.network.residual_scale,
            delta,
            hidden: &mut rows.hidden,
            norm,
            normed: &mut rows.normed,
        };
        backend.linear_add_norm(job, self.n_rows)?;
        Ok(true)
    }

    /// Does the same as [`Self::project_add_norm`], for [`Self::feed_forward`].
    fn feed_forward_add_norm(
        &self,
        backend: &mut B,
        rows: &mut Rows<B::Buffer>,
        ffns: &mut FfnBuffers<B::Buffer, B::Routes>,
        delta: &mut B::Buffer,
        next_norm: Option<&Norm<B::Vector>>,
    ) -> Result<bool, BackendError> {
        let layer = self.layer;
        let is_between = layer.ffn_post_norm.is_some() || layer.ffn_sum_norm.is_some();
        let ffn = layer.ffn.as_ref().filter(|ffn| ffn.is_products());
        let (Some(ffn), Some(norm), true, false) = (ffn, next_norm, self.next_multiplies, is_between) else {
            return Ok(false);
        };
        backend.enter(NetworkPart::Ffn(self.layer_idx));
        let input = rows.input(layer.ffn_norm.as_ref());
        let Some((linear, inner)) = ffn.run_inner(backend, input, self.n_rows, ffns)? else {
            return Ok(false);
        };
        let job = LinearAddNorm {
            linear,
            input: inner,
            scale: self.network.residual_scale,
            delta,
            hidden: &mut rows.hidden,
            norm,
            normed: &mut rows.normed,
        };
        backend.linear_add_norm(job, self.n_rows)?;
        Ok(true)
    }

    /// `delta = norm(ffn(rows))`, without the norm if the layer has none there.
    fn feed_forward(
        &self,
        backend: &mut B,
        rows: &Rows<B::Buffer>,
        ffns: &mut FfnBuffers<B::Buffer, B::Routes>,
        delta: &mut B::Buffer,
    ) -> Result<(), BackendError> {
        backend.enter(NetworkPart::Ffn(self.layer_idx));
        let input = match self.layer.residual {
            Residual::Sequential => rows.input(self.layer.ffn_norm.as_ref()),
            Residual::Parallel | Residual::ParallelTwoNorms => &rows.normed,
        };
        let ffn = self
            .layer
            .ffn
            .as_ref()
            .expect("a layer with a feed-forward network");
        ffn.run(backend, [&rows.hidden, input], self.n_rows, ffns, delta)?;
        backend.all_reduce(self.n_rows, self.network.token_embd.n_in, delta)?;
        self.norm_if_present(backend, self.layer.ffn_post_norm.as_ref(), delta)
    }

    /// `hidden = sum_norm(hidden + scale * delta); normed = norm(hidden)`, skipping absent norms.
    fn add_norm(
        &self,
        backend: &mut B,
        delta: &B::Buffer,
        sum_norm: Option<&Norm<B::Vector>>,
        norm: Option<&Norm<B::Vector>>,
        rows: &mut Rows<B::Buffer>,
    ) -> Result<(), BackendError> {
        let (scale, n_embd) = (self.network.residual_scale, self.network.token_embd.n_in);
        let (hidden, normed) = (&mut rows.hidden, &mut rows.normed);
        match (sum_norm, norm) {
            (None, Some(norm)) => backend.add_norm(scale, delta, norm, self.n_rows, hidden, normed),
            (None, None) => backend.add(scale, self.n_rows, n_embd, hidden, delta),
            (Some(sum_norm), norm) => {
                backend.add(scale, self.n_rows, n_embd, hidden, delta)?;
                backend.norm_in_place(sum_norm, self.n_rows, n_embd, hidden)?;
                self.norm_stream(backend, norm, rows)
            }
        }
    }

    /// `delta = first(hidden + delta); hidden = second(hidden + delta)`.
    fn add_twice(
        &self,
        backend: &mut B,
        delta: &mut B::Buffer,
        [first, second]: [&Norm<B::Vector>; 2],
        rows: &mut Rows<B::Buffer>,
    ) -> Result<(), BackendError> {
        let n_embd = self.network.token_embd.n_in;
        backend.add(1.0, self.n_rows, n_embd, delta, &rows.hidden)?;
        backend.norm_in_place(first, self.n_rows, n_embd, delta)?;
        self.add_norm(backend, delta, Some(second), None, rows)
    }

    fn norm_if_present(
        &self,
        backend: &mut B,
        norm: Option<&Norm<B::Vector>>,
        rows: &mut B::Buffer,
    ) -> Result<(), BackendError> {
        match norm {
            Some(norm) => backend.norm_in_place(norm, self.n_rows, norm.width, rows),
            None => Ok(()),
        }
    }
}

/// Buffers of the output head.
struct HeadBuffers<'a, T> {
    /// The rows whose logits are requested, if they are not all rows.
    input: &'a mut T,
    /// The logits' parts, if the head is divided among ranks.
    parts: Option<&'a mut HeadParts<T>>,
    logits: &'a mut T,
}

/// Computes the logits of the requested rows, scaled and capped.
fn compute_logits<B: Backend>(
    backend: &mut B,
    network: &Network<B>,
    outputs: &B::Buffer,
    HeadBuffers { input, parts, logits }: HeadBuffers<'_, B::Buffer>,
    shape: &StepShape,
) -> Result<(), BackendError> {
    let head = network.output.as_ref().unwrap_or(&network.token_embd);
    let input = if shape.n_logits < shape.n_outputs {
        backend.gather(RowSet::LogitsOfOutputs, shape, head.n_in, outputs, input)?;
        input
    } else {
        outputs
    };
    match parts {
        None => backend.linear(head, input, shape.n_logits, logits)?,
        Some(parts) => {
            backend.linear(head, input, shape.n_logits, &mut parts.own)?;
            backend.all_gather(ColumnGather {
                n_rows: shape.n_logits,
                width: network.token_embd.n_out,
                part_width: parts.n_each,
                part: &mut parts.own,
                parts: &mut parts.all,
                rows: logits,
            })?;
        }
    }
    if network.logit_scale == 1.0 && network.logit_softcap.is_none() {
        return Ok(());
    }
    let (scale, cap) = (network.logit_scale, network.logit_softcap);
    backend.scale_logits(scale, cap, shape.n_logits, network.token_embd.n_out, logits)
}

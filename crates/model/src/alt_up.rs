//! [`AltUp`]: parallel streams of hidden states, where each layer works on the first; and [`Laurel`], a
//! low-rank path around each layer's mixer.
//!
//! ```text
//! s[0] = hidden    s[i] = P[i] hidden, as large as hidden                     before the layers
//! m = tanh(W_router norm(s[0]) / n_embd)    s[i] += sum_j (W_predict m)[i][j] s[j]    p = s[0]
//! hidden = s[0] + mix(x)    hidden = (hidden + x + norm(R L x)) / sqrt(2)     with x the layer's normed input
//! hidden += ffn(norm(hidden))
//! m = tanh(W_router norm(hidden) / n_embd)    s[i] += (1 + (W_correct m)[i]) (hidden - p)
//! hidden = mean(s[0], U[i] s[i], as large as s[0])                            after the layers
//! ```
//!
//! A layer's own embedding is computed from the corrected `s[0]`, times a row, and added to the other
//! streams.
//!
//! Few networks have these, so they are not part of the forward pass. Invariant: after the last layer's
//! mixer, only requested rows are computed.
//!
//! Source: transformers, `models/gemma3n/modeling_gemma3n.py`.

use std::f32::consts::FRAC_1_SQRT_2;

use tokenmill_backend::{
    Backend, BackendError, Columns, ExecutorLimits, Linear, Memory, Norm, NormKind, RowSet, StepShape,
    StreamsShape,
};

use crate::{
    AltUpDescriptor, Descriptor, LoadError, Presence,
    loader::{LayerPlace, Loader, RowsOf},
};

/// The weights that all layers share.
pub(crate) struct AltUp<M: Memory> {
    /// Projections from the first stream to each other stream.
    projections: Linear<M::Matrix, M::Vector>,
    /// Projections of each other stream back to the output.
    unembeddings: Linear<M::Matrix, M::Vector>,
    n_others: usize,
}

/// The weights of one layer.
pub(crate) struct LayerAltUp<M: Memory> {
    router_norm: Norm<M::Vector>,
    router: Linear<M::Matrix, M::Vector>,
    predict: Linear<M::Matrix, M::Vector>,
    correct: Linear<M::Matrix, M::Vector>,
    /// Multiplies the corrected first stream before the layer's embedding is computed from it.
    output_row: Option<M::Vector>,
    pub(crate) laurel: Laurel<M>,
    n_others: usize,
}

/// A low-rank path around a mixer (LAuReL).
pub(crate) struct Laurel<M: Memory> {
    left: Linear<M::Matrix, M::Vector>,
    right: Linear<M::Matrix, M::Vector>,
    post_norm: Norm<M::Vector>,
}

/// The extra streams of some rows.
pub(crate) struct StreamRows<T> {
    /// All streams except the first, `[T, n_others, n_embd]`.
    others: T,
    /// The prediction of the first stream, `[T, n_embd]`.
    predicted: T,
}

/// Intermediate results.
pub(crate) struct AltUpBuffers<T> {
    /// `[T, n_streams]`.
    modalities: T,
    /// `[T, n_streams, n_streams]`.
    factors: T,
    /// `[T, n_others, n_embd]`.
    projected: T,
    /// `[T, rank]`.
    low: T,
}

impl<M: Memory> AltUp<M> {
    pub(crate) fn load(alt_up: &AltUpDescriptor, loader: &mut Loader<'_, M>) -> Result<Self, LoadError> {
        let n_embd = loader.descriptor.n_embd;
        let n_others = alt_up.n_streams - 1;
        let mut of_each = |name: &str| {
            let rows = RowsOf::all(n_embd);
            loader.experts(name, n_others, rows, n_embd, Presence::Absent)
        };
        Ok(Self {
            projections: of_each("altup_proj")?,
            unembeddings: of_each("altup_unembd_proj")?,
            n_others,
        })
    }
}

impl<M: Memory> LayerAltUp<M> {
    pub(crate) fn load(
        place: LayerPlace,
        alt_up: &AltUpDescriptor,
        loader: &mut Loader<'_, M>,
    ) -> Result<Self, LoadError> {
        let (n_embd, n) = (loader.descriptor.n_embd, alt_up.n_streams);
        let rms = loader.descriptor.rms_norm();
        let name = |part: &str| place.name(part);
        // The router's input is divided by the width after the norm.
        let mut norm_weight = loader.all_values(&name("altup_router_norm.weight"), &[n_embd])?;
        for weight in &mut norm_weight {
            *weight /= n_embd as f32;
        }
        let mut plain = |part: &str, n_out, n_in| loader.linear(&name(part), n_out, n_in, Presence::Absent);
        let laurel = (
            plain("laurel_l", alt_up.laurel_rank, n_embd)?,
            plain("laurel_r", n_embd, alt_up.laurel_rank)?,
        );
        Ok(Self {
            router: plain("altup_router", n, n_embd)?,
            predict: plain("altup_predict_coef", n * n, n)?,
            correct: plain("altup_correct_coef", n, n)?,
            router_norm: Norm {
                kind: NormKind::Rms,
                width: n_embd,
                weight: Some(loader.memory.upload_vector(&norm_weight)?),
                bias: None,
                eps: rms.eps,
            },
            output_row: loader.vector(&name("altup_correct_scale.weight"), n_embd, alt_up.output_row)?,
            laurel: Laurel {
                left: laurel.0,
                right: laurel.1,
                post_norm: loader.norm(&name("laurel_post_norm"), n_embd, rms)?,
            },
            n_others: n - 1,
        })
    }
}

impl<B: Backend> AltUp<B> {
    /// Returns the number of streams besides the first.
    pub(crate) fn n_others(&self) -> usize {
        self.n_others
    }

    fn shape(&self, n_rows: usize) -> StreamsShape {
        StreamsShape {
            n_rows,
            n_others: self.n_others,
            width: self.projections.n_in,
        }
    }

    /// Initializes the other streams from the first.
    pub(crate) fn begin(
        &self,
        backend: &mut B,
        n_tokens: usize,
        first: &B::Buffer,
        streams: &mut StreamRows<B::Buffer>,
        buffers: &mut AltUpBuffers<B::Buffer>,
    ) -> Result<(), BackendError> {
        let shape = self.shape(n_tokens);
        let repeated = &mut buffers.projected;
        backend.repeat_rows(shape, first, repeated)?;
        backend.heads_linear(
            &self.projections,
            self.n_others,
            n_tokens,
            repeated,
            &mut streams.others,
        )?;
        backend.match_magnitudes(shape, first, &mut streams.others)
    }

    /// Combines all streams into the first. `scratch` has the width of the stream.
    pub(crate) fn end(
        &self,
        backend: &mut B,
        n_rows: usize,
        [first, scratch]: [&mut B::Buffer; 2],
        streams: &StreamRows<B::Buffer>,
        buffers: &mut AltUpBuffers<B::Buffer>,
    ) -> Result<(), BackendError> {
        let shape = self.shape(n_rows);
        let projected = &mut buffers.projected;
        backend.heads_linear(
            &self.unembeddings,
            self.n_others,
            n_rows,
            &streams.others,
            projected,
        )?;
        backend.match_magnitudes(shape, first, projected)?;
        for stream_idx in 0..self.n_others {
            let columns = Columns {
                rows: &*projected,
                row_width: self.n_others * shape.width,
                first: stream_idx * shape.width,
            };
            backend.take_columns(columns, n_rows, shape.width, scratch)?;
            backend.add(1.0, n_rows, shape.width, first, scratch)?;
        }
        let share = 1.0 / (1 + self.n_others) as f32;
        backend.scale_logits(share, None, n_rows, shape.width, first)
    }
}

impl<B: Backend> LayerAltUp<B> {
    fn shape(&self, n_rows: usize) -> StreamsShape {
        StreamsShape {
            n_rows,
            n_others: self.n_others,
            width: self.router.n_in,
        }
    }

    /// Computes the router's modalities of each row into `buffers.modalities`. `scratch` has the width of the
    /// stream.
    fn route(
        &self,
        backend: &mut B,
        n_rows: usize,
        row: &B::Buffer,
        scratch: &mut B::Buffer,
        modalities: &mut B::Buffer,
    ) -> Result<(), BackendError> {
        backend.norm(&self.router_norm, row, n_rows, scratch)?;
        backend.linear(&self.router, scratch, n_rows, modalities)?;
        // A softcap of 1 is the hyperbolic tangent.
        backend.scale_logits(1.0, Some(1.0), n_rows, self.router.n_out, modalities)
    }

    /// Predicts the streams before the layer.
    pub(crate) fn predict(
        &self,
        backend: &mut B,
        n_tokens: usize,
        [first, scratch]: [&mut B::Buffer; 2],
        streams: &mut StreamRows<B::Buffer>,
        buffers: &mut AltUpBuffers<B::Buffer>,
    ) -> Result<(), BackendError> {
        let shape = self.shape(n_tokens);
        let AltUpBuffers {
            modalities, factors, ..
        } = buffers;
        self.route(backend, n_tokens, first, scratch, modalities)?;
        backend.linear(&self.predict, modalities, n_tokens, factors)?;
        backend.predict_streams(shape, factors, first, &mut streams.others)?;
        let columns = Columns::all(&*first, shape.width);
        backend.take_columns(columns, n_tokens, shape.width, &mut streams.predicted)
    }

    /// Corrects the streams by the layer's result, which is in the first stream, and writes to `scratch` the
    /// row from which the layer's embedding is computed.
    pub(crate) fn correct(
        &self,
        backend: &mut B,
        n_rows: usize,
        [first, scratch]: [&mut B::Buffer; 2],
        streams: &mut StreamRows<B::Buffer>,
        buffers: &mut AltUpBuffers<B::Buffer>,
    ) -> Result<(), BackendError> {
        let shape = self.shape(n_rows);
        let AltUpBuffers {
            modalities, factors, ..
        } = buffers;
        let StreamRows { others, predicted } = streams;
        self.route(backend, n_rows, first, scratch, modalities)?;
        backend.linear(&self.correct, modalities, n_rows, factors)?;
        backend.correct_streams(shape, factors, predicted, first, others)?;
        backend.take_columns(Columns::all(&*first, shape.width), n_rows, shape.width, scratch)?;
        match &self.output_row {
            Some(row) => backend.multiply_by_row(shape, row, scratch),
            None => Ok(()),
        }
    }

    /// Adds the contribution of the layer's own embedding to all streams but the first.
    pub(crate) fn add_embedding(
        &self,
        backend: &mut B,
        n_rows: usize,
        delta: &B::Buffer,
        streams: &mut StreamRows<B::Buffer>,
    ) -> Result<(), BackendError> {
        backend.add_to_others(self.shape(n_rows), delta, &mut streams.others)
    }
}

impl<B: Backend> Laurel<B> {
    /// Adds the low-rank path's result to the stream, which already includes the mixer's result, and divides
    /// the sum by the root of 2.
    pub(crate) fn add(
        &self,
        backend: &mut B,
        n_rows: usize,
        input: &B::Buffer,
        [hidden, delta]: [&mut B::Buffer; 2],
        buffers: &mut AltUpBuffers<B::Buffer>,
    ) -> Result<(), BackendError> {
        let n_embd = self.right.n_out;
        backend.linear(&self.left, input, n_rows, &mut buffers.low)?;
        backend.linear(&self.right, &buffers.low, n_rows, delta)?;
        backend.norm_in_place(&self.post_norm, n_rows, n_embd, delta)?;
        backend.add(1.0, n_rows, n_embd, hidden, delta)?;
        backend.add(1.0, n_rows, n_embd, hidden, input)?;
        backend.scale_logits(FRAC_1_SQRT_2, None, n_rows, n_embd, hidden)
    }
}

impl<T> StreamRows<T> {
    pub(crate) fn alloc<M: Memory<Buffer = T>>(
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        memory: &mut M,
    ) -> Result<Option<Self>, BackendError> {
        let Some(alt_up) = &descriptor.alt_up else {
            return Ok(None);
        };
        let (max_rows, n_embd) = (limits.max_batch_tokens, descriptor.n_embd);
        Ok(Some(Self {
            others: memory.alloc(max_rows, (alt_up.n_streams - 1) * n_embd)?,
            predicted: memory.alloc(max_rows, n_embd)?,
        }))
    }

    /// Gathers the output rows of the streams.
    pub(crate) fn pick_outputs<B: Backend<Buffer = T>>(
        &self,
        backend: &mut B,
        shape: &StepShape,
        [n_others, width]: [usize; 2],
        picked: &mut Self,
    ) -> Result<(), BackendError> {
        let rows = RowSet::Outputs;
        backend.gather(rows, shape, n_others * width, &self.others, &mut picked.others)?;
        backend.gather(rows, shape, width, &self.predicted, &mut picked.predicted)
    }
}

impl<T> AltUpBuffers<T> {
    pub(crate) fn alloc<M: Memory<Buffer = T>>(
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        memory: &mut M,
    ) -> Result<Option<Self>, BackendError> {
        let Some(alt_up) = &descriptor.alt_up else {
            return Ok(None);
        };
        let n = alt_up.n_streams;
        let mut of_tokens = |width| memory.alloc(limits.max_batch_tokens, width);
        Ok(Some(Self {
            modalities: of_tokens(n)?,
            factors: of_tokens(n * n)?,
            projected: of_tokens((n - 1) * descriptor.n_embd)?,
            low: of_tokens(alt_up.laurel_rank)?,
        }))
    }
}

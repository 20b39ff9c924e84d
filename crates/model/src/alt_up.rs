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
//! Few networks have these, so each part writes its own operations.
//!
//! Source: transformers, `models/gemma3n/modeling_gemma3n.py`.

use std::f32::consts::FRAC_1_SQRT_2;

use tokenmill_backend::{
    Norm, NormKind,
    program::{LinearId, NormId, Op, Program, Value, VectorId},
};

use crate::{
    AltUpDescriptor, LoadError, Presence,
    loader::{LayerPlace, Loader, RowsOf},
};

/// The weights that all layers share.
pub(crate) struct AltUp {
    /// Projections from the first stream to each other stream.
    projections: LinearId,
    /// Projections of each other stream back to the output.
    unembeddings: LinearId,
    n_others: usize,
}

/// The weights of one layer.
pub(crate) struct LayerAltUp {
    router_norm: NormId,
    router: LinearId,
    predict: LinearId,
    correct: LinearId,
    /// Multiplies the corrected first stream before the layer's embedding is computed from it.
    output_row: Option<VectorId>,
    pub(crate) laurel: Laurel,
}

/// A low-rank path around a mixer (LAuReL).
pub(crate) struct Laurel {
    left: LinearId,
    right: LinearId,
    post_norm: NormId,
}

impl AltUp {
    pub(crate) fn load(alt_up: &AltUpDescriptor, loader: &mut Loader<'_>) -> Result<Self, LoadError> {
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

impl LayerAltUp {
    pub(crate) fn load(
        place: LayerPlace,
        alt_up: &AltUpDescriptor,
        loader: &mut Loader<'_>,
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
                weight: Some(loader.add_vector(&name("altup_router_norm"), &norm_weight)?),
                bias: None,
                eps: rms.eps,
            },
            output_row: loader.vector(&name("altup_correct_scale.weight"), n_embd, alt_up.output_row)?,
            laurel: Laurel {
                left: laurel.0,
                right: laurel.1,
                post_norm: loader.norm(&name("laurel_post_norm"), n_embd, rms)?,
            },
        })
    }
}

/// The streams of hidden states.
#[derive(Clone, Copy)]
pub(crate) struct Streams {
    /// The first, on which the layers work, `[R, n_embd]`.
    pub(crate) first: Value,
    /// All others, `[R, n_others, n_embd]`.
    pub(crate) others: Value,
}

impl AltUp {
    /// Writes the other streams, from the first.
    pub(crate) fn write_begin(&self, program: &mut Program, first: Value) -> Streams {
        let n = self.n_others;
        let repeated = program.push(|y| Op::RepeatRows { n, x: first, y });
        let others = program.heads_linear(self.projections, n, repeated);
        let others = program.push(|y| Op::MatchMagnitudes { first, others, y });
        Streams { first, others }
    }

    /// Writes the combination of all streams.
    pub(crate) fn write_end(&self, program: &mut Program, Streams { first, others }: Streams) -> Value {
        let (n, width) = (self.n_others, self.unembeddings.n_out);
        let others = program.heads_linear(self.unembeddings, n, others);
        let others = program.push(|y| Op::MatchMagnitudes { first, others, y });
        let mut sum = first;
        for stream_idx in 0..n {
            let stream = program.take_columns(others, stream_idx * width, width);
            sum = program.add(1.0, sum, stream);
        }
        program.scale(1.0 / (1 + n) as f32, sum)
    }
}

impl LayerAltUp {
    /// Writes the router's modalities of each row.
    fn write_route(&self, program: &mut Program, first: Value) -> Value {
        let x = program.norm(self.router_norm, first);
        let modalities = program.linear(self.router, x);
        program.tanh(modalities)
    }

    /// Writes the prediction of the streams before the layer.
    pub(crate) fn write_predict(&self, program: &mut Program, Streams { first, others }: Streams) -> Streams {
        let modalities = self.write_route(program, first);
        let factors = program.linear(self.predict, modalities);
        let [first, others] = program.push_results(|[y_first, y_others]| Op::PredictStreams {
            factors,
            first,
            others,
            y_first,
            y_others,
        });
        Streams { first, others }
    }

    /// Writes the correction of the streams by the layer's result, which is the first, where `predicted` was expected. Returns
    /// them with the row from which the layer's embedding is computed.
    pub(crate) fn write_correct(
        &self,
        program: &mut Program,
        Streams { first, others }: Streams,
        predicted: Value,
    ) -> (Streams, Value) {
        let modalities = self.write_route(program, first);
        let factors = program.linear(self.correct, modalities);
        let [first, others] = program.push_results(|[y_first, y_others]| Op::CorrectStreams {
            factors,
            predicted,
            first,
            others,
            y_first,
            y_others,
        });
        let row = match self.output_row {
            Some(row) => program.push(|y| Op::MultiplyByRow { row, x: first, y }),
            None => first,
        };
        (Streams { first, others }, row)
    }
}

impl Laurel {
    /// Writes the sum of the stream, which already includes the mixer's result, the low-rank path's result and its input,
    /// divided by the root of 2.
    pub(crate) fn write(&self, program: &mut Program, hidden: Value, x: Value) -> Value {
        let low = program.linear(self.left, x);
        let delta = program.linear(self.right, low);
        let delta = program.norm(self.post_norm, delta);
        let sum = program.add(1.0, hidden, delta);
        let sum = program.add(1.0, sum, x);
        program.scale(FRAC_1_SQRT_2, sum)
    }
}

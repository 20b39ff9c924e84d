//! [`Mixer`]: the half of a layer that moves information between positions, one file for each kind.
//!
//! Separate from the forward pass, which asks a mixer for two things: to mix the tokens' rows (and remember what later
//! tokens need), and to project what it mixed to the width of the stream. Between the two, the forward pass drops rows of
//! the last layer that no output needs.

mod attention;

use tokenmill_backend::{Backend, BackendError, ExecutorLimits, Memory, StepShape};

use crate::{
    Descriptor, LoadError, MixerDescriptor,
    network::{LayerPlace, Loader, Network},
};

use attention::{AttentionMixer, Heads};

/// A mixer's weights.
pub(crate) enum Mixer<M: Memory> {
    Attention(AttentionMixer<M>),
}

/// The buffers in which mixers of each kind work, where the network has a layer of that kind.
pub(crate) struct MixerBuffers<T> {
    heads: Option<Heads<T>>,
}

/// Of the tokens' rows, what a mixer reads and writes.
pub(crate) struct MixerRows<'a, T> {
    /// The layer's input, `[T, n_embd]`.
    pub(crate) input: &'a T,
    /// What the mixer gives to its projection, `[T, output_width]`.
    pub(crate) mixed: &'a mut T,
}

impl<M: Memory> Mixer<M> {
    pub(crate) fn load(
        place: LayerPlace,
        mixer: &MixerDescriptor,
        loader: &mut Loader<'_, M>,
    ) -> Result<Self, LoadError> {
        match mixer {
            MixerDescriptor::Attention(attention) => {
                AttentionMixer::load(place, attention, loader).map(Self::Attention)
            }
        }
    }

    /// Width of a row that [`Mixer::project`] reads.
    pub(crate) fn output_width(&self) -> usize {
        match self {
            Self::Attention(attention) => attention.output.n_in,
        }
    }
}

impl<B: Backend> Mixer<B> {
    /// Mixes all tokens of a step. Without `wants_output` only what later tokens need is computed and stored.
    pub(crate) fn mix(
        &self,
        backend: &mut B,
        network: &Network<B>,
        shape: &StepShape,
        rows: &mut MixerRows<'_, B::Buffer>,
        buffers: &mut MixerBuffers<B::Buffer>,
        wants_output: bool,
    ) -> Result<(), BackendError> {
        match self {
            Self::Attention(attention) => {
                let heads = buffers.heads.as_mut().expect("allocated for attention");
                attention.mix(backend, network, shape, rows, heads, wants_output)
            }
        }
    }

    /// Projects `n_rows` mixed rows to the width of the stream.
    pub(crate) fn project(
        &self,
        backend: &mut B,
        mixed: &B::Buffer,
        n_rows: usize,
        output: &mut B::Buffer,
    ) -> Result<(), BackendError> {
        match self {
            Self::Attention(attention) => backend.linear(&attention.output, mixed, n_rows, output),
        }
    }
}

impl<T> MixerBuffers<T> {
    /// Allocates for the largest step of each kind of mixer that the network has.
    pub(crate) fn alloc<M: Memory<Buffer = T>>(
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        memory: &mut M,
    ) -> Result<Self, BackendError> {
        Ok(Self {
            heads: Heads::alloc(descriptor, limits, memory)?,
        })
    }
}

//! [`Mixer`]: the half of a layer that moves information between positions, one file per kind.
//!
//! The forward pass calls a mixer twice: to mix the tokens' rows (and store what later tokens need), and to
//! project the result to the width of the stream. Between the two calls, the forward pass drops rows of the
//! last layer that no output needs.

mod attention;
mod delta_net;
mod kimi_delta;
mod mla;
mod short_conv;
mod ssm;

use tokenmill_backend::{Backend, BackendError, ExecutorLimits, Linear, Memory, Rope, ShortConv, StepShape};

use crate::{
    Descriptor, LoadError, MixerDescriptor, Presence,
    loader::{LayerPlace, Loader},
};

use attention::{AttentionMixer, Heads};
use delta_net::{DeltaNetBuffers, DeltaNetMixer};
use kimi_delta::{KimiDeltaBuffers, KimiDeltaMixer};
use mla::{LatentBuffers, LatentMixer};
use short_conv::{ShortConvBuffers, ShortConvMixer};
use ssm::{SsmBuffers, SsmMixer};

/// The weights of a mixer.
#[expect(clippy::large_enum_variant, reason = "there is one for each layer")]
pub(crate) enum Mixer<M: Memory> {
    Attention(AttentionMixer<M>),
    Latent(LatentMixer<M>),
    DeltaNet(DeltaNetMixer<M>),
    KimiDelta(KimiDeltaMixer<M>),
    Ssm(SsmMixer<M>),
    ShortConv(ShortConvMixer<M>),
    /// Attention and a state space model in parallel.
    Both(AttentionMixer<M>, SsmMixer<M>),
}

/// The buffers of each kind of mixer, if a layer has that kind.
pub(crate) struct MixerBuffers<T> {
    heads: Option<Heads<T>>,
    latent: Option<LatentBuffers<T>>,
    delta_net: Option<DeltaNetBuffers<T>>,
    kimi_delta: Option<KimiDeltaBuffers<T>>,
    ssm: Option<SsmBuffers<T>>,
    short_conv: Option<ShortConvBuffers<T>>,
}

/// Input and output rows of a mixer.
pub(crate) struct MixerRows<'a, T> {
    /// The layer's input, `[T, n_embd]`.
    pub(crate) input: &'a T,
    /// The mixer's output, which its projection reads: `[T, output_width]`.
    pub(crate) mixed: &'a mut T,
    /// The output of the second of two parallel mixers.
    pub(crate) mixed_beside: Option<&'a mut T>,
}

/// The rows that a mixer's projection reads.
pub(crate) struct MixedRows<'a, T> {
    pub(crate) mixed: &'a T,
    pub(crate) mixed_beside: Option<&'a T>,
    /// Rows as wide as the stream, for the second of two projections until it is added.
    pub(crate) scratch: &'a mut T,
}

impl<M: Memory> Mixer<M> {
    pub(crate) fn load(
        place: LayerPlace,
        mixer: &MixerDescriptor,
        loader: &mut Loader<'_, M>,
    ) -> Result<Option<Self>, LoadError> {
        let mixer = match mixer {
            MixerDescriptor::None => return Ok(None),
            MixerDescriptor::Attention(attention) => {
                AttentionMixer::load(place, attention, loader).map(Self::Attention)
            }
            MixerDescriptor::Latent(latent) => LatentMixer::load(place, latent, loader).map(Self::Latent),
            MixerDescriptor::DeltaNet(net) => DeltaNetMixer::load(place, net, loader).map(Self::DeltaNet),
            MixerDescriptor::KimiDelta(net) => KimiDeltaMixer::load(place, net, loader).map(Self::KimiDelta),
            MixerDescriptor::Ssm(ssm) => SsmMixer::load(place, ssm, loader).map(Self::Ssm),
            MixerDescriptor::ShortConv(conv) => {
                ShortConvMixer::load(place, conv, loader).map(Self::ShortConv)
            }
            MixerDescriptor::Both { attention, ssm } => {
                let attention = AttentionMixer::load(place, attention, loader)?;
                SsmMixer::load(place, ssm, loader).map(|ssm| Self::Both(attention, ssm))
            }
        };
        mixer.map(Some)
    }

    /// Returns the widths of the rows that [`Mixer::project`] reads.
    pub(crate) fn output_widths(&self) -> (usize, Option<usize>) {
        (self.output().n_in, self.output_beside().map(|output| output.n_in))
    }

    /// Returns the output projection of the second of two mixers.
    fn output_beside(&self) -> Option<&Linear<M::Matrix, M::Vector>> {
        match self {
            Self::Both(_, ssm) => Some(&ssm.output),
            _ => None,
        }
    }

    /// Returns the product that the mixer ends with, if it is a single one.
    pub(crate) fn last_product(&self) -> Option<&Linear<M::Matrix, M::Vector>> {
        match self {
            Self::Both(..) => None,
            _ => Some(self.output()),
        }
    }

    /// Returns whether the mixer begins with products of its input.
    pub(crate) fn begins_with_products(&self) -> bool {
        matches!(self, Self::Attention(_))
    }

    fn output(&self) -> &Linear<M::Matrix, M::Vector> {
        match self {
            Self::Attention(attention) | Self::Both(attention, _) => &attention.output,
            Self::Latent(latent) => &latent.output,
            Self::DeltaNet(net) => &net.output,
            Self::KimiDelta(net) => &net.output,
            Self::Ssm(ssm) => &ssm.output,
            Self::ShortConv(conv) => &conv.output,
        }
    }
}

/// Loads a convolution `name` over `n_channels` channels with `n_taps` taps.
fn load_conv<M: Memory>(
    place: LayerPlace,
    name: &str,
    [n_channels, n_taps]: [usize; 2],
    bias: Presence,
    has_silu: bool,
    loader: &mut Loader<'_, M>,
) -> Result<ShortConv<M::Vector>, LoadError> {
    let weight = place.name(&format!("{name}.weight"));
    Ok(ShortConv {
        state_idx: place.state_idx,
        n_channels,
        n_taps,
        weight: loader.required_vector(&weight, &[n_taps, n_channels])?,
        bias: loader.vector(&place.name(&format!("{name}.bias")), n_channels, bias)?,
        has_silu,
    })
}

impl<B: Backend> Mixer<B> {
    /// Mixes all tokens of a step. Without `wants_output`, only what later tokens need is computed and
    /// stored.
    pub(crate) fn mix(
        &self,
        backend: &mut B,
        ropes: &[Rope<B::Vector>],
        shape: &StepShape,
        rows: &mut MixerRows<'_, B::Buffer>,
        buffers: &mut MixerBuffers<B::Buffer>,
        wants_output: bool,
    ) -> Result<(), BackendError> {
        match self {
            Self::Attention(attention) => {
                let heads = buffers.heads.as_mut().expect("allocated for attention");
                attention.mix(backend, ropes, shape, rows, heads, wants_output)
            }
            Self::Latent(latent) => {
                let buffers = buffers.latent.as_mut().expect("allocated for latent attention");
                latent.mix(backend, ropes, shape, rows, buffers, wants_output)
            }
            Self::DeltaNet(net) => {
                let buffers = buffers.delta_net.as_mut().expect("allocated for delta nets");
                net.mix(backend, shape, rows, buffers, wants_output)
            }
            Self::KimiDelta(net) => {
                let buffers = buffers
                    .kimi_delta
                    .as_mut()
                    .expect("allocated for Kimi delta nets");
                net.mix(backend, shape, rows, buffers, wants_output)
            }
            Self::Ssm(ssm) => {
                let buffers = buffers.ssm.as_mut().expect("allocated for state space models");
                ssm.mix(backend, shape, rows, buffers, wants_output)
            }
            Self::ShortConv(conv) => {
                let buffers = buffers.short_conv.as_mut().expect("allocated for convolutions");
                conv.mix(backend, shape, rows, buffers, wants_output)
            }
            Self::Both(attention, ssm) => {
                let heads = buffers.heads.as_mut().expect("allocated for attention");
                attention.mix(backend, ropes, shape, rows, heads, wants_output)?;
                let mut rows = MixerRows {
                    input: rows.input,
                    mixed: rows.mixed_beside.as_mut().expect("allocated for two mixers"),
                    mixed_beside: None,
                };
                let buffers = buffers.ssm.as_mut().expect("allocated for state space models");
                ssm.mix(backend, shape, &mut rows, buffers, wants_output)
            }
        }
    }

    /// Projects `n_rows` mixed rows to the width of the stream.
    pub(crate) fn project(
        &self,
        backend: &mut B,
        rows: &mut MixedRows<'_, B::Buffer>,
        n_rows: usize,
        output: &mut B::Buffer,
    ) -> Result<(), BackendError> {
        backend.linear(self.output(), rows.mixed, n_rows, output)?;
        let (Some(beside), Some(mixed)) = (self.output_beside(), rows.mixed_beside) else {
            return Ok(());
        };
        backend.linear(beside, mixed, n_rows, rows.scratch)?;
        backend.add(1.0, n_rows, beside.n_out, output, rows.scratch)
    }
}

impl<T> MixerBuffers<T> {
    /// Allocates the buffers for the largest step, for each kind of mixer in the network.
    pub(crate) fn alloc<M: Memory<Buffer = T>>(
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        memory: &mut M,
    ) -> Result<Self, BackendError> {
        Ok(Self {
            heads: Heads::alloc(descriptor, limits, memory)?,
            latent: LatentBuffers::alloc(descriptor, limits, memory)?,
            delta_net: DeltaNetBuffers::alloc(descriptor, limits, memory)?,
            kimi_delta: KimiDeltaBuffers::alloc(descriptor, limits, memory)?,
            ssm: SsmBuffers::alloc(descriptor, limits, memory)?,
            short_conv: ShortConvBuffers::alloc(descriptor, limits, memory)?,
        })
    }
}

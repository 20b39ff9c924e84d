//! [`Mixer`]: the half of a layer that moves information between positions, one file per kind.
//!
//! A mixer writes the operations that mix the tokens' rows, then those that project the result to the width of the stream.

mod attention;
mod delta_net;
mod kimi_delta;
mod mla;
mod short_conv;
mod ssm;

use tokenmill_backend::{
    ShortConv,
    program::{LinearId, Program, RopeId, Value, VectorId},
};

use crate::{
    LoadError, MixerDescriptor, Presence,
    loader::{LayerPlace, Loader},
};

use attention::AttentionMixer;
use delta_net::DeltaNetMixer;
use kimi_delta::KimiDeltaMixer;
use mla::LatentMixer;
use short_conv::ShortConvMixer;
use ssm::SsmMixer;

/// The weights of a mixer.
#[expect(clippy::large_enum_variant, reason = "there is one for each layer")]
pub(crate) enum Mixer {
    Attention(AttentionMixer),
    Latent(LatentMixer),
    DeltaNet(DeltaNetMixer),
    KimiDelta(KimiDeltaMixer),
    Ssm(SsmMixer),
    ShortConv(ShortConvMixer),
    /// Attention and a state space model in parallel.
    Both(AttentionMixer, SsmMixer),
}

impl Mixer {
    pub(crate) fn load(
        place: LayerPlace,
        mixer: &MixerDescriptor,
        loader: &mut Loader<'_>,
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

    /// Writes the mixing of the rows `x`; returns the rows of each mixer that its projection reads.
    pub(crate) fn write(&self, program: &mut Program, ropes: &[RopeId], x: Value) -> Mixed {
        let mixed = |mixed| Mixed { mixed, beside: None };
        match self {
            Self::Attention(attention) => mixed(attention.write(program, ropes, x)),
            Self::Latent(latent) => mixed(latent.write(program, ropes, x)),
            Self::DeltaNet(net) => mixed(net.write(program, x)),
            Self::KimiDelta(net) => mixed(net.write(program, x)),
            Self::Ssm(ssm) => mixed(ssm.write(program, x)),
            Self::ShortConv(conv) => mixed(conv.write(program, x)),
            Self::Both(attention, ssm) => Mixed {
                mixed: attention.write(program, ropes, x),
                beside: Some((ssm.output, ssm.write(program, x))),
            },
        }
    }

    /// Writes the projection of mixed rows to the width of the stream.
    pub(crate) fn write_projection(&self, program: &mut Program, Mixed { mixed, beside }: Mixed) -> Value {
        let projected = program.linear(*self.output(), mixed);
        let Some((linear, mixed)) = beside else {
            return projected;
        };
        let beside = program.linear(linear, mixed);
        program.add(1.0, projected, beside)
    }

    fn output(&self) -> &LinearId {
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

/// The rows that a mixer's projection reads.
pub(crate) struct Mixed {
    mixed: Value,
    /// The rows of the second of two parallel mixers, with its projection.
    beside: Option<(LinearId, Value)>,
}

/// Loads a convolution `name` over `n_channels` channels with `n_taps` taps.
fn load_conv(
    place: LayerPlace,
    name: &str,
    [n_channels, n_taps]: [usize; 2],
    bias: Presence,
    has_silu: bool,
    loader: &mut Loader<'_>,
) -> Result<ShortConv<VectorId>, LoadError> {
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

//! [`Ffn`]: the half of a layer that works on each position by itself, one file per kind.
//!
//! Each kind appends its operations to a program.

mod beside;
mod dense;
mod moe;

use tokenmill_backend::program::{Program, Value};

use crate::{
    FfnDescriptor, LoadError,
    loader::{LayerPlace, Loader},
};

use beside::BesideFfn;
use dense::DenseFfn;
use moe::MoeFfn;

/// The weights of a feed-forward network.
#[expect(clippy::large_enum_variant, reason = "there is one for each layer")]
pub(crate) enum Ffn {
    Dense(DenseFfn),
    Moe(MoeFfn),
    Beside(BesideFfn),
}

impl Ffn {
    pub(crate) fn load(
        place: LayerPlace,
        ffn: &FfnDescriptor,
        loader: &mut Loader<'_>,
    ) -> Result<Option<Self>, LoadError> {
        match ffn {
            FfnDescriptor::None => Ok(None),
            FfnDescriptor::Dense(dense) => {
                DenseFfn::load(place, "", dense, loader).map(|dense| Some(Self::Dense(dense)))
            }
            FfnDescriptor::Moe(moe) => MoeFfn::load(place, moe, loader).map(|moe| Some(Self::Moe(moe))),
            FfnDescriptor::Beside(beside) => {
                BesideFfn::load(place, beside, loader).map(|beside| Some(Self::Beside(beside)))
            }
        }
    }
}

impl Ffn {
    /// Writes the network, from the stream's rows and from the output of the layer's norm; returns rows of the stream's width.
    pub(crate) fn write(&self, program: &mut Program, stream: Value, x: Value) -> Value {
        match self {
            Self::Dense(dense) => dense.write(program, x),
            Self::Moe(moe) => moe.write(program, x, x),
            Self::Beside(both) => both.write(program, stream, x),
        }
    }
}

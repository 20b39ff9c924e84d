//! [`ShortConvMixer`]: a short convolution between two gates.
//!
//! ```text
//! b, c, x = W_b x0, W_c x0, W_x x0        mixed = c * conv(b * x)        output = W_out mixed
//! ```

use tokenmill_backend::{
    Activation, ShortConv,
    program::{LinearId, Op, Program, Value, VectorId},
};

use crate::{
    LoadError, ShortConvDescriptor,
    loader::{LayerPlace, Loader, RowsOf},
};

use super::load_conv;

/// The weights of a gated convolution.
pub(crate) struct ShortConvMixer {
    b: LinearId,
    c: LinearId,
    x: LinearId,
    conv: ShortConv<VectorId>,
    pub(super) output: LinearId,
}

impl ShortConvMixer {
    pub(super) fn load(
        place: LayerPlace,
        conv: &ShortConvDescriptor,
        loader: &mut Loader<'_>,
    ) -> Result<Self, LoadError> {
        let (n_embd, width) = (loader.descriptor.n_embd, conv.n_channels);
        let name = place.name("shortconv.in_proj");
        let mut third = |which| {
            let rows = RowsOf::run(which * width, width, 3 * width);
            loader.linear_part(&name, rows, n_embd, conv.bias)
        };
        Ok(Self {
            b: third(0)?,
            c: third(1)?,
            x: third(2)?,
            conv: load_conv(
                place,
                "shortconv.conv",
                [width, conv.n_taps],
                conv.bias,
                false,
                loader,
            )?,
            output: loader.linear(&place.name("shortconv.out_proj"), n_embd, width, conv.bias)?,
        })
    }
}

impl ShortConvMixer {
    /// Writes the convolution of the rows `x`; returns the rows that the output projection reads.
    pub(super) fn write(&self, program: &mut Program, x: Value) -> Value {
        let [b, c, x] = [self.b, self.c, self.x].map(|linear| program.linear(linear, x));
        let conv = self.conv;
        let gated = program.gated(Activation::Identity, b, x);
        let convolved = program.push(|y| Op::ShortConv { conv, x: gated, y });
        program.gated(Activation::Identity, c, convolved)
    }
}

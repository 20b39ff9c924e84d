//! [`ShortConvMixer`]: a short convolution between two gates.
//!
//! ```text
//! b, c, x = W_b x0, W_c x0, W_x x0        mixed = c * conv(b * x)        output = W_out mixed
//! ```

use tokenmill_backend::{
    Activation, Backend, BackendError, ExecutorLimits, Linear, LinearJob, Memory, ShortConv, StepShape,
};

use crate::{
    Descriptor, LoadError, MixerDescriptor, ShortConvDescriptor,
    loader::{LayerPlace, Loader, RowsOf},
};

use super::{MixerRows, load_conv};

/// The weights of a gated convolution.
pub(crate) struct ShortConvMixer<M: Memory> {
    b: Linear<M::Matrix, M::Vector>,
    c: Linear<M::Matrix, M::Vector>,
    x: Linear<M::Matrix, M::Vector>,
    conv: ShortConv<M::Vector>,
    pub(super) output: Linear<M::Matrix, M::Vector>,
}

/// Intermediate results of a gated convolution.
pub(super) struct ShortConvBuffers<T> {
    b: T,
    x: T,
}

impl<M: Memory> ShortConvMixer<M> {
    pub(super) fn load(
        place: LayerPlace,
        conv: &ShortConvDescriptor,
        loader: &mut Loader<'_, M>,
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

impl<B: Backend> ShortConvMixer<B> {
    pub(super) fn mix(
        &self,
        backend: &mut B,
        shape: &StepShape,
        rows: &mut MixerRows<'_, B::Buffer>,
        buffers: &mut ShortConvBuffers<B::Buffer>,
        wants_output: bool,
    ) -> Result<(), BackendError> {
        let (n_tokens, width) = (shape.n_tokens, self.conv.n_channels);
        let ShortConvBuffers { b, x } = buffers;
        let mut projections = [
            (&self.b, &mut *b),
            (&self.c, &mut *rows.mixed),
            (&self.x, &mut *x),
        ]
        .map(|(linear, output)| LinearJob { linear, output });
        backend.linear_group(rows.input, n_tokens, &mut projections)?;
        backend.activation(Activation::Identity, n_tokens, width, b, Some(x))?;
        backend.short_conv(&self.conv, shape, b, x)?;
        if wants_output {
            backend.activation(Activation::Identity, n_tokens, width, rows.mixed, Some(x))?;
        }
        Ok(())
    }
}

impl<T> ShortConvBuffers<T> {
    pub(super) fn alloc<M: Memory<Buffer = T>>(
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        memory: &mut M,
    ) -> Result<Option<Self>, BackendError> {
        let widths = (descriptor.layers.iter()).filter_map(|layer| match &layer.mixer {
            MixerDescriptor::ShortConv(conv) => Some(conv.n_channels),
            _ => None,
        });
        let Some(width) = widths.max() else {
            return Ok(None);
        };
        Ok(Some(Self {
            b: memory.alloc(limits.max_batch_tokens, width)?,
            x: memory.alloc(limits.max_batch_tokens, width)?,
        }))
    }
}

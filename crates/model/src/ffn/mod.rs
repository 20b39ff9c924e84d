//! [`Ffn`]: the half of a layer that works on each position by itself, one file for each kind.
//!
//! Separate from the forward pass, which gives it rows and gets rows back.

mod dense;

use tokenmill_backend::{Backend, BackendError, ExecutorLimits, Memory};

use crate::{
    Descriptor, FfnDescriptor, LoadError,
    network::{LayerPlace, Loader},
};

use dense::{DenseBuffers, DenseFfn};

/// A feed-forward network's weights.
pub(crate) enum Ffn<M: Memory> {
    Dense(DenseFfn<M>),
}

/// The buffers in which feed-forward networks of each kind work, where the network has a layer of that kind.
pub(crate) struct FfnBuffers<T> {
    dense: Option<DenseBuffers<T>>,
}

impl<M: Memory> Ffn<M> {
    pub(crate) fn load(
        place: LayerPlace,
        ffn: &FfnDescriptor,
        loader: &mut Loader<'_, M>,
    ) -> Result<Option<Self>, LoadError> {
        match ffn {
            FfnDescriptor::None => Ok(None),
            FfnDescriptor::Dense(dense) => {
                DenseFfn::load(place, dense, loader).map(|dense| Some(Self::Dense(dense)))
            }
        }
    }
}

impl<B: Backend> Ffn<B> {
    /// Computes `n_rows` rows of the width of the stream from as many.
    pub(crate) fn run(
        &self,
        backend: &mut B,
        input: &B::Buffer,
        n_rows: usize,
        buffers: &mut FfnBuffers<B::Buffer>,
        output: &mut B::Buffer,
    ) -> Result<(), BackendError> {
        match self {
            Self::Dense(dense) => {
                let buffers = buffers.dense.as_mut().expect("allocated for a dense network");
                dense.run(backend, input, n_rows, buffers, output)
            }
        }
    }
}

impl<T> FfnBuffers<T> {
    /// Allocates for the largest step of each kind of network there is.
    pub(crate) fn alloc<M: Memory<Buffer = T>>(
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        memory: &mut M,
    ) -> Result<Self, BackendError> {
        Ok(Self {
            dense: DenseBuffers::alloc(descriptor, limits, memory)?,
        })
    }
}

//! [`Ffn`]: the half of a layer that works on each position by itself, one file per kind.
//!
//! The forward pass gives it rows and gets rows back.

mod beside;
mod dense;
mod moe;

use tokenmill_backend::{Backend, BackendError, ExecutorLimits, Linear, Memory};

use crate::{
    Descriptor, FfnDescriptor, LoadError,
    loader::{LayerPlace, Loader},
};

use beside::{BesideBuffers, BesideFfn};
use dense::{DenseBuffers, DenseFfn};
use moe::{MoeBuffers, MoeFfn};

/// The weights of a feed-forward network.
pub(crate) enum Ffn<M: Memory> {
    Dense(DenseFfn<M>),
    Moe(MoeFfn<M>),
    Beside(BesideFfn<M>),
}

/// The buffers of each kind of feed-forward network, if a layer has that kind.
pub(crate) struct FfnBuffers<T, R> {
    dense: Option<DenseBuffers<T>>,
    moe: Option<MoeBuffers<T, R>>,
    beside: Option<BesideBuffers<T>>,
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
                DenseFfn::load(place, "", dense, loader).map(|dense| Some(Self::Dense(dense)))
            }
            FfnDescriptor::Moe(moe) => MoeFfn::load(place, moe, loader).map(|moe| Some(Self::Moe(moe))),
            FfnDescriptor::Beside(beside) => {
                BesideFfn::load(place, beside, loader).map(|beside| Some(Self::Beside(beside)))
            }
        }
    }
}

impl<B: Backend> Ffn<B> {
    /// Computes `n_rows` rows of the width of the stream, from the stream's rows and from the output of the
    /// layer's norm.
    pub(crate) fn run(
        &self,
        backend: &mut B,
        [stream, input]: [&B::Buffer; 2],
        n_rows: usize,
        buffers: &mut FfnBuffers<B::Buffer, B::Routes>,
        output: &mut B::Buffer,
    ) -> Result<(), BackendError> {
        match self {
            Self::Dense(dense) => {
                let buffers = buffers.dense.as_mut().expect("allocated for a dense network");
                dense.run(backend, input, n_rows, buffers, output)
            }
            Self::Moe(moe) => {
                let FfnBuffers { dense, moe: own, .. } = buffers;
                let own = own.as_mut().expect("allocated for experts");
                moe.run(backend, [input; 2], n_rows, own, dense.as_mut(), output)
            }
            Self::Beside(both) => both.run(backend, [stream, input], n_rows, buffers, output),
        }
    }

    /// Returns whether the network begins with products of the normed rows and ends with one product.
    pub(crate) fn is_products(&self) -> bool {
        matches!(self, Self::Dense(_))
    }

    /// Computes everything but the last product of a dense network, beginning with products of `input`.
    /// Returns that product and its input; `None` for other networks, for which nothing is computed.
    pub(crate) fn run_inner<'a>(
        &'a self,
        backend: &mut B,
        input: &B::Buffer,
        n_rows: usize,
        buffers: &'a mut FfnBuffers<B::Buffer, B::Routes>,
    ) -> Result<Option<LastProduct<'a, B>>, BackendError> {
        let Self::Dense(dense) = self else {
            return Ok(None);
        };
        let buffers = buffers.dense.as_mut().expect("allocated for a dense network");
        let inner = dense.run_inner(backend, input, n_rows, buffers)?;
        Ok(Some((dense.down(), inner)))
    }
}

/// The last product of a network, and its input.
type LastProduct<'a, B> = (
    &'a Linear<<B as Memory>::Matrix, <B as Memory>::Vector>,
    &'a <B as Memory>::Buffer,
);

impl<T, R> FfnBuffers<T, R> {
    /// Allocates the buffers for the largest step, for each kind of network that exists.
    pub(crate) fn alloc<M: Memory<Buffer = T, Routes = R>>(
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        memory: &mut M,
    ) -> Result<Self, BackendError> {
        Ok(Self {
            dense: DenseBuffers::alloc(descriptor, limits, memory)?,
            moe: MoeBuffers::alloc(descriptor, limits, memory)?,
            beside: BesideBuffers::alloc(descriptor, limits, memory)?,
        })
    }
}

//! [`BesideFfn`]: a dense network and experts next to each other.
//!
//! ```text
//! y = norm(dense(input)) + norm(experts(norm(stream), routed by W_router (scale * norm(stream) / sqrt(n_embd))))
//! ```
//!
//! `input` is the stream after the layer's norm. Experts with a shared network, in contrast, have one input
//! and no norms.
//!
//! Source: transformers, `models/gemma4/modeling_gemma4.py`.

use tokenmill_backend::{Backend, BackendError, ExecutorLimits, Memory, Norm, NormKind};

use crate::{
    BesideDescriptor, Descriptor, FfnDescriptor, LoadError,
    loader::{LayerPlace, Loader},
};

use super::{DenseFfn, FfnBuffers, MoeFfn};

/// The weights of both.
pub(crate) struct BesideFfn<M: Memory> {
    dense: DenseFfn<M>,
    /// Norm of the dense network's output.
    dense_norm: Norm<M::Vector>,
    moe: MoeFfn<M>,
    /// Norm of the router's input.
    router_norm: Norm<M::Vector>,
    /// Norm of the experts' input.
    experts_norm: Norm<M::Vector>,
    /// Norm of the experts' output.
    moe_norm: Norm<M::Vector>,
}

/// Input and output of the experts, `[T, n_embd]`.
pub(super) struct BesideBuffers<T> {
    router_input: T,
    input: T,
    output: T,
}

impl<M: Memory> BesideFfn<M> {
    pub(super) fn load(
        place: LayerPlace,
        beside: &BesideDescriptor,
        loader: &mut Loader<'_, M>,
    ) -> Result<Self, LoadError> {
        let n_embd = loader.descriptor.n_embd;
        let rms = loader.descriptor.rms_norm();
        let mut router_scale = loader.all_values(&place.name("ffn_gate_inp.scale"), &[n_embd])?;
        let factor = 1.0 / (n_embd as f32).sqrt();
        for scale in &mut router_scale {
            *scale *= factor;
        }
        Ok(Self {
            dense: DenseFfn::load(place, "", &beside.dense, loader)?,
            dense_norm: loader.norm(&place.name("post_ffw_norm_1"), n_embd, rms)?,
            moe: MoeFfn::load(place, &beside.moe, loader)?,
            router_norm: Norm {
                kind: NormKind::Rms,
                width: n_embd,
                weight: Some(loader.memory.upload_vector(&router_scale)?),
                bias: None,
                eps: rms.eps,
            },
            experts_norm: loader.norm(&place.name("pre_ffw_norm_2"), n_embd, rms)?,
            moe_norm: loader.norm(&place.name("post_ffw_norm_2"), n_embd, rms)?,
        })
    }
}

impl<B: Backend> BesideFfn<B> {
    pub(super) fn run(
        &self,
        backend: &mut B,
        [stream, input]: [&B::Buffer; 2],
        n_rows: usize,
        buffers: &mut FfnBuffers<B::Buffer, B::Routes>,
        output: &mut B::Buffer,
    ) -> Result<(), BackendError> {
        let FfnBuffers { dense, moe, beside } = buffers;
        let dense = dense.as_mut().expect("allocated for a dense network");
        let moe = moe.as_mut().expect("allocated for experts");
        let own = beside.as_mut().expect("allocated for both at once");
        let n_embd = self.moe_norm.width;
        self.dense.run(backend, input, n_rows, dense, output)?;
        backend.norm_in_place(&self.dense_norm, n_rows, n_embd, output)?;
        backend.norm(&self.router_norm, stream, n_rows, &mut own.router_input)?;
        backend.norm(&self.experts_norm, stream, n_rows, &mut own.input)?;
        let inputs = [&own.router_input, &own.input];
        (self.moe).run(backend, inputs, n_rows, moe, None, &mut own.output)?;
        backend.norm_in_place(&self.moe_norm, n_rows, n_embd, &mut own.output)?;
        backend.add(1.0, n_rows, n_embd, output, &own.output)
    }
}

impl<T> BesideBuffers<T> {
    pub(super) fn alloc<M: Memory<Buffer = T>>(
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        memory: &mut M,
    ) -> Result<Option<Self>, BackendError> {
        let mut layers = descriptor.layers.iter();
        if !layers.any(|layer| matches!(layer.ffn, FfnDescriptor::Beside(_))) {
            return Ok(None);
        }
        let mut rows = || memory.alloc(limits.max_batch_tokens, descriptor.n_embd);
        Ok(Some(Self {
            router_input: rows()?,
            input: rows()?,
            output: rows()?,
        }))
    }
}

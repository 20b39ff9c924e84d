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

use tokenmill_backend::{
    Norm, NormKind,
    program::{NormId, Program, Value},
};

use crate::{
    BesideDescriptor, LoadError,
    loader::{LayerPlace, Loader},
};

use super::{DenseFfn, MoeFfn};

/// The weights of both.
pub(crate) struct BesideFfn {
    dense: DenseFfn,
    /// Norm of the dense network's output.
    dense_norm: NormId,
    moe: MoeFfn,
    /// Norm of the router's input.
    router_norm: NormId,
    /// Norm of the experts' input.
    experts_norm: NormId,
    /// Norm of the experts' output.
    moe_norm: NormId,
}

impl BesideFfn {
    pub(super) fn load(
        place: LayerPlace,
        beside: &BesideDescriptor,
        loader: &mut Loader<'_>,
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
                weight: Some(loader.add_vector(&place.name("ffn_gate_inp.scale"), &router_scale)?),
                bias: None,
                eps: rms.eps,
            },
            experts_norm: loader.norm(&place.name("pre_ffw_norm_2"), n_embd, rms)?,
            moe_norm: loader.norm(&place.name("post_ffw_norm_2"), n_embd, rms)?,
        })
    }
}

impl BesideFfn {
    /// Writes both networks, over the stream's rows and the output of the layer's norm.
    pub(super) fn write(&self, program: &mut Program, stream: Value, x: Value) -> Value {
        let dense = self.dense.write(program, x);
        let dense = program.norm(self.dense_norm, dense);
        let router_x = program.norm(self.router_norm, stream);
        let experts_x = program.norm(self.experts_norm, stream);
        let experts = self.moe.write(program, router_x, experts_x);
        let experts = program.norm(self.moe_norm, experts);
        program.add(1.0, dense, experts)
    }
}

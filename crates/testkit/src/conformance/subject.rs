//! [`Subject`]: a backend under test, and which networks it is tried with.
//!
//! Separate because decoders and encoders are tried on the same subjects. Invariant: a network is left out only for an
//! operation that the subject says it lacks.

use tokenmill_backend::{KvType, LayerOperation};
use tokenmill_model::Descriptor;

use crate::{
    expert_variants::EXPERT_LAYER_VARIANTS,
    latent_variants::LATENT_VARIANTS,
    tiny_model::tiny_llama,
    variants::{LAYER_VARIANTS, STATE_VARIANTS, Variant},
};

/// A backend under test.
pub struct Subject<B> {
    /// Makes the backend with a number of threads, where it has any.
    pub make: fn(n_threads: usize) -> B,
    /// What a row may differ by, depending on the other rows of its step.
    pub company: Company,
    /// Whether it stores keys and values in these types; what it does not is left out.
    pub stores: fn([KvType; 2]) -> bool,
    /// Operations that it lacks; networks with one of them are left out.
    pub lacks: &'static [LayerOperation],
}

impl<B> Subject<B> {
    /// Networks beyond those of attention and dense layers: with states, latent rows, or operations that few need.
    pub(super) fn more_variants(&self) -> Vec<Variant> {
        let all = [
            STATE_VARIANTS,
            LATENT_VARIANTS,
            LAYER_VARIANTS,
            EXPERT_LAYER_VARIANTS,
        ]
        .concat();
        let runs = |(_, change): &Variant| {
            let mut descriptor = tiny_llama();
            change(&mut descriptor);
            self.runs(&descriptor)
        };
        all.into_iter().filter(runs).collect()
    }

    fn runs(&self, descriptor: &Descriptor) -> bool {
        (descriptor.shape().needs.iter()).all(|need| !self.lacks.contains(need))
    }
}

/// What a row may differ by, depending on the other rows of its step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Company {
    /// Nothing.
    Bits,
    /// This much in a logit.
    Within(f32),
}

//! [`DecisionHead`]: the weights around the layers that score the options of questions.
//!
//! The layers themselves are those of the network. Invariant: the scores of a row stand in the order of the question types.

use tokenmill_backend::{
    Activation, NetworkPart,
    program::{LinearId, NormId, Program, Value, VectorId},
};

use crate::{DecisionDescriptor, LoadError, N_QUESTION_TYPES, Presence, loader::Loader};

/// The weights of a decision head, except its layers.
pub(crate) struct DecisionHead {
    pub(crate) n_layers: usize,
    /// The embedding of each question type.
    pub(crate) types: [VectorId; N_QUESTION_TYPES],
    /// The norm after the last layer.
    pub(crate) norm: NormId,
    inner: LinearId,
    score: LinearId,
}

impl DecisionHead {
    pub(crate) fn load(decision: DecisionDescriptor, loader: &mut Loader<'_>) -> Result<Self, LoadError> {
        let (n_embd, norm) = (loader.descriptor.n_embd, loader.descriptor.norm);
        let first = loader.descriptor.layers.len() - decision.n_layers;
        loader.enter(NetworkPart::Mixer(first));
        let types = loader.rows("token_types.weight", n_embd)?;
        loader.enter(NetworkPart::Output);
        Ok(Self {
            n_layers: decision.n_layers,
            types,
            norm: loader.norm("cls.norm", n_embd, norm)?,
            inner: loader.linear("cls", n_embd, n_embd, Presence::Required)?,
            score: loader.linear("cls.output", 1, n_embd, Presence::Required)?,
        })
    }

    /// Writes the scores of normed rows, one number each.
    pub(crate) fn write_scores(&self, program: &mut Program, rows: Value) -> Value {
        let inner = program.linear(self.inner, rows);
        let inner = program.activation(Activation::GeluErf, inner);
        program.linear(self.score, inner)
    }
}

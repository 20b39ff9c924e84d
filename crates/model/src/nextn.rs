//! [`NextnEntry`]: the entry of an MTP layer, which follows a network's last layer and predicts the token
//! after the next.
//!
//! ```text
//! x[p] = W [norm_e(embedding[p]), norm_h(hidden[p - 1])]        hidden: after the last norm of the network, zeros before the first token
//! g[p] = norm(layer(x)[p])                                      logits[p] = head g[p]
//! ```
//!
//! `logits[p]` predict the token after `p`; the network itself gives it only after it has computed `p`. To
//! predict further tokens, `g[p]` replaces the network's own `hidden[p]`. Embedding, head and last norm are
//! the network's unless the layer has its own.
//!
//! A network also computes without an MTP layer. `nextn_layer.rs` loads it.
//!
//! Source: "DeepSeek-V3 Technical Report", 2024, section 2.2; llama.cpp, `src/models/qwen35.cpp`, for the names and the norms.

use tokenmill_backend::{
    NetworkPart,
    program::{LinearId, NormId, Op, Program, Value},
};

use crate::{LoadError, Presence, loader::Loader};

/// The matrices that a network uses of another one.
#[derive(Clone, Copy)]
pub(crate) struct SharedWeights {
    /// Whether the head is one of its own, not tied to the embedding.
    pub(crate) has_output: bool,
}

/// The weights that compute the layer's input.
pub(crate) struct NextnEntry {
    embedding_norm: NormId,
    hidden_norm: NormId,
    projection: LinearId,
}

impl NextnEntry {
    pub(crate) fn load(loader: &mut Loader<'_>) -> Result<Self, LoadError> {
        let (n_embd, norm) = (loader.descriptor.n_embd, loader.descriptor.rms_norm());
        loader.enter(NetworkPart::Input);
        Ok(Self {
            embedding_norm: loader.norm("nextn.enorm", n_embd, norm)?,
            hidden_norm: loader.norm("nextn.hnorm", n_embd, norm)?,
            projection: loader.linear("nextn.eh_proj", n_embd, 2 * n_embd, Presence::Absent)?,
        })
    }

    /// Writes the layer's stream, from the embeddings and the step's hidden states.
    pub(crate) fn write(&self, program: &mut Program, embedding: Value) -> Value {
        let width = self.hidden_norm.width;
        let embedding = program.norm(self.embedding_norm, embedding);
        let previous = program.push(|y| Op::HiddenInputs { width, y });
        let previous = program.norm(self.hidden_norm, previous);
        let joined = program.join(1, embedding, previous);
        program.linear(self.projection, joined)
    }
}

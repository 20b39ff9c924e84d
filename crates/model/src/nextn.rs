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
    Backend, BackendError, ExecutorLimits, JoinedRows, Linear, Memory, NetworkPart, Norm,
};

use crate::{Descriptor, LoadError, Presence, loader::Loader};

/// Weights of a network that another one uses too.
pub(crate) struct SharedWeights<M: Memory> {
    pub(crate) token_embd: M::Matrix,
    /// `None` if the head is tied to the embedding.
    pub(crate) output: Option<M::Matrix>,
}

/// The weights that compute the layer's input.
pub(crate) struct NextnEntry<M: Memory> {
    embedding_norm: Norm<M::Vector>,
    hidden_norm: Norm<M::Vector>,
    projection: Linear<M::Matrix, M::Vector>,
}

impl<M: Memory> NextnEntry<M> {
    pub(crate) fn load(loader: &mut Loader<'_, M>) -> Result<Self, LoadError> {
        let (n_embd, norm) = (loader.descriptor.n_embd, loader.descriptor.rms_norm());
        loader.memory.enter(NetworkPart::Input);
        Ok(Self {
            embedding_norm: loader.norm("nextn.enorm", n_embd, norm)?,
            hidden_norm: loader.norm("nextn.hnorm", n_embd, norm)?,
            projection: loader.linear("nextn.eh_proj", n_embd, 2 * n_embd, Presence::Absent)?,
        })
    }

    /// Computes the layer's stream from the embeddings, `hidden: [n_tokens, n_embd]`, and the step's hidden
    /// states.
    pub(crate) fn run<B: Backend<Matrix = M::Matrix, Vector = M::Vector>>(
        &self,
        backend: &mut B,
        n_tokens: usize,
        hidden: &mut B::Buffer,
        buffers: &mut NextnBuffers<B::Buffer>,
    ) -> Result<(), BackendError> {
        let n_embd = self.projection.n_out;
        let NextnBuffers {
            embedding,
            previous,
            joined,
        } = buffers;
        backend.norm(&self.embedding_norm, hidden, n_tokens, embedding)?;
        backend.take_hidden_inputs(n_tokens, n_embd, previous)?;
        backend.norm_in_place(&self.hidden_norm, n_tokens, n_embd, previous)?;
        let rows = |rows| JoinedRows { rows, width: n_embd };
        backend.join(n_tokens, rows(&*embedding), rows(&*previous), joined)?;
        backend.linear(&self.projection, joined, n_tokens, hidden)
    }
}

/// Buffers of [`NextnEntry`].
pub(crate) struct NextnBuffers<T> {
    embedding: T,
    previous: T,
    joined: T,
}

impl<T> NextnBuffers<T> {
    pub(crate) fn alloc<M: Memory<Buffer = T>>(
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        memory: &mut M,
    ) -> Result<Option<Self>, BackendError> {
        if !descriptor.reads_hidden {
            return Ok(None);
        }
        let mut of_tokens = |width| memory.alloc(limits.max_batch_tokens, width);
        Ok(Some(Self {
            embedding: of_tokens(descriptor.n_embd)?,
            previous: of_tokens(descriptor.n_embd)?,
            joined: of_tokens(2 * descriptor.n_embd)?,
        }))
    }
}

//! [`ExecutorLimits`]: the limits of an executor's batches.
//!
//! Batches are checked against it before there is a step. Invariant: it is constant over an executor's
//! lifetime.

use crate::{PAGE_TOKENS, PageGroup, Pooling};

/// The limits of an executor's batches: it allocates for these numbers when it is built, and never
/// afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorLimits {
    /// Number of tokens in the vocabulary.
    pub n_vocab: usize,
    /// Width of a hidden row that a step returns.
    pub n_embd: usize,
    /// Maximum positions of a sequence.
    pub n_ctx: usize,
    /// Number of KV pages in the pool, [`PAGE_TOKENS`](crate::PAGE_TOKENS) tokens each.
    pub n_pages: usize,
    /// Number of pages in the host tier; 0 if the executor has none.
    pub n_host_pages: usize,
    /// Maximum tokens of a batch.
    pub max_batch_tokens: usize,
    /// Maximum sequences of a batch.
    pub max_batch_seqs: usize,
    /// Maximum logit rows of a batch.
    pub max_logit_rows: usize,
    /// The width of the widest sliding window, if every layer's attention has one. Pages that are entirely
    /// older are never read again and may be freed.
    pub kv_window: Option<usize>,
    /// The separate pages of layers with a sliding window, if only some layers have one.
    pub window_group: Option<WindowGroup>,
    /// How the network pools a sequence to one row; `None` if its hidden rows belong to tokens.
    pub pooling: Option<Pooling>,
    /// Whether tokens see later ones too. Then a sequence is computed in one step, from its first token to
    /// its last, and yields one hidden row; nothing can be generated, and its pages are working memory of that
    /// step.
    pub is_encoder: bool,
    /// Number of slots for recurrent states; 0 if the model has no recurrent layer.
    pub n_states: usize,
}

/// The pages of the layers with a sliding window, if other layers have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowGroup {
    /// The width of the widest window.
    pub window: usize,
    /// Number of pages in their pool.
    pub n_pages: usize,
    /// Number of pages in their host tier.
    pub n_host_pages: usize,
}

/// The pages of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimits {
    /// The widest window of its layers, if all have one.
    pub window: Option<usize>,
    /// Number of pages in its pool.
    pub n_pages: usize,
    /// Number of pages in its host tier.
    pub n_host_pages: usize,
}

impl ExecutorLimits {
    /// Returns the pages of a group; `None` if the group does not exist.
    pub fn group(&self, group: PageGroup) -> Option<GroupLimits> {
        match group {
            PageGroup::Main => Some(GroupLimits {
                window: self.kv_window,
                n_pages: self.n_pages,
                n_host_pages: self.n_host_pages,
            }),
            PageGroup::Window => self.window_group.map(|group| GroupLimits {
                window: Some(group.window),
                n_pages: group.n_pages,
                n_host_pages: group.n_host_pages,
            }),
        }
    }

    /// Returns the number of tokens that the pools hold for all sequences of a batch together.
    pub fn kv_tokens(&self) -> usize {
        match self.kv_window {
            // Tokens outside the window take no page.
            Some(_) => self.n_ctx.saturating_mul(self.max_batch_seqs),
            None => self.n_pages.saturating_mul(PAGE_TOKENS),
        }
    }

    /// Returns the existing groups.
    pub fn groups(&self) -> impl Iterator<Item = (PageGroup, GroupLimits)> {
        let limits = |group| Some((group, self.group(group)?));
        PageGroup::ALL.into_iter().filter_map(limits)
    }

    /// Returns whether a sequence, all of whose tokens see each other, gives one row.
    pub fn pools_whole_sequences(&self) -> bool {
        self.is_encoder && self.pooling.is_some()
    }

    /// Returns the token, among a sequence's tokens `first..=last` in a step, whose hidden row represents the
    /// sequence if the network pools.
    pub fn pooled_row(&self, first: u32, last: u32) -> u32 {
        match self.pooling {
            Some(Pooling::First) => first,
            _ => last,
        }
    }
}

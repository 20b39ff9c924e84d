//! [`ExecutorLimits`]: what batches an executor takes.
//!
//! Separate because batches are checked against it before there is a step. Invariant: it is constant over an executor's
//! life.

use crate::{PAGE_TOKENS, PageGroup, Pooling};

/// What batches an executor takes: it allocates for these numbers when it is built, and never afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorLimits {
    /// Tokens in the vocabulary.
    pub n_vocab: usize,
    /// Width of a hidden row that a step gives.
    pub n_embd: usize,
    /// Positions a sequence may have.
    pub n_ctx: usize,
    /// KV pages in the pool, [`PAGE_TOKENS`](crate::PAGE_TOKENS) tokens each.
    pub n_pages: usize,
    /// Pages of the host tier; 0 where the executor has none.
    pub n_host_pages: usize,
    /// Tokens a batch may have.
    pub max_batch_tokens: usize,
    /// Sequences a batch may have.
    pub max_batch_seqs: usize,
    /// Logit rows a batch may have.
    pub max_logit_rows: usize,
    /// Where every layer's attention has a sliding window: the width of the widest. Pages wholly older are never read
    /// again and may be freed.
    pub kv_window: Option<usize>,
    /// Where only some layers have a sliding window, and these have pages of their own.
    pub window_group: Option<WindowGroup>,
    /// How the network makes one row of a sequence; `None` where its hidden rows are those of tokens.
    pub pooling: Option<Pooling>,
    /// Whether tokens see those after them too. Then a sequence is computed in one step, from its first token to its last,
    /// gives one hidden row, and nothing can be generated; its pages are working memory of that step.
    pub is_encoder: bool,
    /// Slots of the pool of recurrent states; 0 where the model has no recurrent layer.
    pub n_states: usize,
}

/// The pages of the layers with a sliding window, where other layers have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowGroup {
    /// The width of the widest window.
    pub window: usize,
    /// Pages in their pool.
    pub n_pages: usize,
    /// Pages of their host tier.
    pub n_host_pages: usize,
}

/// The pages of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimits {
    /// The widest window of its layers, where every one has a window.
    pub window: Option<usize>,
    /// Pages in its pool.
    pub n_pages: usize,
    /// Pages of its host tier.
    pub n_host_pages: usize,
}

impl ExecutorLimits {
    /// The pages of a group; `None` for one that there is not.
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

    /// Tokens that the pools hold of all sequences of a batch together.
    pub fn kv_tokens(&self) -> usize {
        match self.kv_window {
            // What has left the window takes no page.
            Some(_) => self.n_ctx.saturating_mul(self.max_batch_seqs),
            None => self.n_pages.saturating_mul(PAGE_TOKENS),
        }
    }

    /// The groups that there are.
    pub fn groups(&self) -> impl Iterator<Item = (PageGroup, GroupLimits)> {
        let limits = |group| Some((group, self.group(group)?));
        PageGroup::ALL.into_iter().filter_map(limits)
    }

    /// Of the tokens of a sequence in a step, `first..=last`, the one whose hidden row stands for it where the network
    /// pools.
    pub fn pooled_row(&self, first: u32, last: u32) -> u32 {
        match self.pooling {
            Some(Pooling::First) => first,
            _ => last,
        }
    }
}

//! [`Group`]: the pages of layers that need the keys and values of the same positions.
//!
//! The pool itself knows no window. Invariant: all groups of a model are filled alike: a token has a place in
//! each, and a prompt continues from the cache only if every group still has what the next token sees.

use tokenmill_backend::{ExecutorLimits, GroupLimits, PAGE_TOKENS};

use crate::pages::{key::first_visible_page, pool::PagePool};

/// The pool of a group, and its limits.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) pool: PagePool,
    pub(crate) limits: GroupLimits,
}

impl Group {
    /// Returns the groups of an executor, the main one first. Slots of recurrent states belong to the main
    /// group.
    pub(crate) fn all(limits: &ExecutorLimits) -> Vec<Self> {
        let mut n_states = limits.n_states;
        (limits.groups())
            .map(|(_, group)| Self {
                pool: PagePool::new(group.n_pages, group.n_host_pages, std::mem::take(&mut n_states)),
                limits: group,
            })
            .collect()
    }

    /// As [`pages_needed`].
    pub(crate) fn pages_needed(&self, n_tokens: usize) -> usize {
        pages_needed(&self.limits, n_tokens)
    }

    /// Returns the first page still visible to a token at `position` or later.
    pub(crate) fn first_visible_page(&self, position: usize) -> usize {
        first_visible_page(position, self.limits.window)
    }
}

/// Returns the maximum number of pages that a sequence of `n_tokens` inputs holds in a group, if it is
/// computed in small chunks.
pub(crate) fn pages_needed(limits: &GroupLimits, n_tokens: usize) -> usize {
    let n_pages = n_tokens.div_ceil(PAGE_TOKENS);
    match limits.window {
        // The window, the page being written, and one that falls out of the window during a step in flight.
        Some(window) => n_pages.min(window.div_ceil(PAGE_TOKENS) + 2),
        None => n_pages,
    }
}

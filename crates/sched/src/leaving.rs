//! [`Leaving`]: which pages of a pool should be kept outside before they are gone.
//!
//! Separate from the pool because most pools have no store to fill. Invariants: pages that no sequence uses are listed once; those
//! that left a window are not, since hardly a prompt can use them.

use tokenmill_backend::PAGE_TOKENS;

use crate::prefix::PageKey;

/// A page that could be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeavingPage {
    pub(crate) page: u32,
    pub(crate) key: PageKey,
    pub(crate) tokens: [u32; PAGE_TOKENS],
    /// The slot with the snapshot behind it.
    pub(crate) state: Option<u32>,
}

/// The pages of one pool.
#[derive(Debug)]
pub(crate) struct Leaving {
    /// Idle ones, or such as were when they were listed. A sequence gives back its last page first, so that first pages are on top.
    idle: Vec<u32>,
    is_listed: Vec<bool>,
    /// Those that just lost their place. It is written again by the copies and the step that come next.
    pub(crate) evicted: Vec<LeavingPage>,
}

impl Leaving {
    pub(crate) fn new(n_pages: usize) -> Self {
        Self {
            idle: Vec::new(),
            is_listed: vec![false; n_pages],
            evicted: Vec::new(),
        }
    }

    pub(crate) fn list(&mut self, page: u32) {
        if !std::mem::replace(&mut self.is_listed[page as usize], true) {
            self.idle.push(page);
        }
    }

    /// The page that was listed last, which may be in use again.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let page = self.idle.pop()?;
        self.is_listed[page as usize] = false;
        Some(page)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.idle.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.idle.clear();
        self.is_listed.fill(false);
        self.evicted.clear();
    }
}

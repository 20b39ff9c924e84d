//! [`Leaving`]: the pages of a pool that should be kept in a store before they are evicted.
//!
//! Most pools have no store. Invariants: unused pages are listed once; pages that left a window are not
//! listed, since hardly any prompt can use them.

use tokenmill_backend::PAGE_TOKENS;

use super::{Cached, PagePool, Place};
use crate::pages::key::PageKey;

/// A page that could be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeavingPage {
    pub(crate) page: u32,
    pub(crate) key: PageKey,
    pub(crate) tokens: [u32; PAGE_TOKENS],
    /// The slot with the snapshot after it.
    pub(crate) state: Option<u32>,
}

/// The listed pages of one pool.
#[derive(Debug)]
pub(super) struct Leaving {
    /// Pages that were idle when listed. A sequence releases its last page first, so first pages are on top.
    idle: Vec<u32>,
    is_listed: Vec<bool>,
    /// Pages evicted just now. The next copies and the next step will overwrite them.
    pub(super) evicted: Vec<LeavingPage>,
}

impl Leaving {
    fn new(n_pages: usize) -> Self {
        Self {
            idle: Vec::new(),
            is_listed: vec![false; n_pages],
            evicted: Vec::new(),
        }
    }

    fn list(&mut self, page: u32) {
        if !std::mem::replace(&mut self.is_listed[page as usize], true) {
            self.idle.push(page);
        }
    }

    /// Returns the page listed last, which may be in use again.
    fn pop(&mut self) -> Option<u32> {
        let page = self.idle.pop()?;
        self.is_listed[page as usize] = false;
        Some(page)
    }

    fn is_empty(&self) -> bool {
        self.idle.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.idle.clear();
        self.is_listed.fill(false);
        self.evicted.clear();
    }
}

impl PagePool {
    /// Starts recording unused and evicted pages.
    pub(crate) fn note_leaving(&mut self) {
        self.leaving = Some(Box::new(Leaving::new(self.pages.len())));
    }

    /// Returns an unused page, each once until it is used again; first pages of a prefix come before later
    /// ones.
    pub(crate) fn next_leaving(&mut self) -> Option<LeavingPage> {
        while let Some(page) = self.leaving.as_mut()?.pop() {
            let entry = self.pages[page as usize];
            if let Some(key) = entry
                .key
                .filter(|_| entry.n_refs == 0 && entry.is_worth_keeping())
            {
                return Some(self.leaving_page(page, key));
            }
        }
        None
    }

    /// Returns whether [`Self::next_leaving`] may have another.
    pub(crate) fn has_leaving(&self) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| !leaving.is_empty())
    }

    /// Lists a page again that [`Self::next_leaving`] returned.
    pub(crate) fn list_leaving(&mut self, page: u32) {
        if let Some(leaving) = &mut self.leaving {
            leaving.list(page);
        }
    }

    /// Lists a page that has left a window as worth keeping, unless a sequence uses it.
    pub(crate) fn list_left(&mut self, key: PageKey) {
        if self.leaving.is_some()
            && let Some(&Cached {
                place: Place::Pool(page),
                ..
            }) = self.index.get(&key)
            && self.idle.contains(page)
        {
            self.pages[page as usize].ends_prompt = true;
            self.list_leaving(page);
        }
    }

    /// Returns the pages evicted since the last call. Their contents stay valid until the next copies and the
    /// next step.
    pub(crate) fn take_evicted(&mut self) -> Vec<LeavingPage> {
        (self.leaving.as_mut()).map_or_else(Vec::new, |leaving| std::mem::take(&mut leaving.evicted))
    }

    pub(super) fn leaving_page(&self, page: u32, key: PageKey) -> LeavingPage {
        LeavingPage {
            page,
            key,
            tokens: self.index[&key].tokens,
            state: self.states.slot_of(key),
        }
    }
}

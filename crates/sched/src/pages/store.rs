//! [`PageStore`]: keeps pages of the prefix cache outside of the engine, for a later engine to find.
//!
//! The scheduler knows no file and no disk. The engine hands out the bytes of unused pages, and requests
//! those with which a prompt begins. Invariants: no call blocks for longer than a look-up; a store verifies
//! every byte that it returns.

use std::{fmt, sync::Arc};

use tokenmill_backend::{MemoryFormat, PAGE_TOKENS, PageGroup};

use crate::pages::key::PageKey;

/// Bytes of pages and states that are copied between two steps, unless one of them has more.
pub(crate) const PORTION_BYTES: usize = 4 << 20;

/// The kind of data kept under a page's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeptKind {
    /// The page itself.
    Page(PageGroup),
    /// The recurrent states after it.
    State,
}

impl KeptKind {
    /// All kinds, in the order of [`Self::index`].
    pub const ALL: [Self; 3] = [
        Self::Page(PageGroup::Main),
        Self::Page(PageGroup::Window),
        Self::State,
    ];

    /// Returns its index in [`Self::ALL`].
    pub fn index(self) -> usize {
        match self {
            Self::Page(group) => group.index(),
            Self::State => PageGroup::ALL.len(),
        }
    }

    /// Returns the bytes of such data.
    pub fn n_bytes(self, format: &MemoryFormat) -> usize {
        match self {
            Self::Page(group) => format.page_bytes[group.index()],
            Self::State => format.state_bytes,
        }
    }
}

/// A part of a prefix's memory: a page, or the recurrent states after one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixPart {
    /// The page's index in the prefix.
    pub page_idx: usize,
    /// The kind of data.
    pub kind: KeptKind,
}

/// The name of kept data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeptName {
    /// Identifies all tokens up to the end of the page, and the model and adapter with which they were
    /// computed.
    pub key: PageKey,
    /// The kind of data.
    pub kind: KeptKind,
}

/// A store's answer to an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// It wants the bytes.
    Take,
    /// It has them already, or does not want them.
    Leave,
    /// It has too much to write now.
    Later,
}

/// Data to keep, or kept data that is requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptPage {
    /// Its name.
    pub name: KeptName,
    /// The tokens of the page, for comparison: equal names are not enough.
    pub tokens: [u32; PAGE_TOKENS],
    /// The backend's bytes; empty in a request.
    pub bytes: Vec<u8>,
}

/// Keeps pages outside of the engine.
pub trait PageStore: fmt::Debug + Send + Sync {
    /// Returns the secret from which names are derived. Names stay valid as long as it stays the same; no
    /// client may know it.
    fn secret(&self) -> [u64; 4];

    /// Returns whether it has data with this name, as far as it knows.
    fn contains(&self, name: KeptName) -> bool;

    /// Asks whether it wants to keep data. Data that it already has counts as used.
    fn offer(&self, name: KeptName) -> Offer;

    /// Keeps data that it has agreed to take. The write happens later.
    fn keep(&self, page: KeptPage);

    /// Returns whether given data is still unwritten.
    fn is_writing(&self) -> bool;

    /// Reads all of `wanted` in order, on its own thread, and passes it to `sink`. It drops the sink at the first one
    /// that it cannot provide, or after the last.
    fn fetch(&self, wanted: Vec<KeptPage>, sink: Box<dyn PageSink>);
}

/// Brings fetched pages to the engine that waits for them.
pub trait PageSink: fmt::Debug + Send {
    /// Passes on the bytes of the next page, and may block until earlier ones are in place. Returns `false` if no
    /// request waits for them any more.
    fn push(&mut self, bytes: Vec<u8>) -> bool;
}

/// A [`PageStore`] that an engine uses.
#[derive(Clone, Debug)]
pub struct SharedPageStore(pub Arc<dyn PageStore>);

impl PartialEq for SharedPageStore {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

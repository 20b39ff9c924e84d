//! [`PageStore`]: keeps pages of the prefix cache outside of the engine, for a later engine to find.
//!
//! The scheduler knows no file and no disk. The engine hands out the bytes of unused pages, and requests
//! those with which a prompt begins. Invariants: no call blocks for longer than a look-up; a store verifies
//! every byte that it returns.

use std::{fmt, sync::Arc};

use tokenmill_backend::{PAGE_TOKENS, PageGroup};

use crate::{pages::key::PageKey, sync::mpsc};

/// The kind of data kept under a page's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeptKind {
    /// The page itself.
    Page(PageGroup),
    /// The recurrent states after it.
    State,
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

    /// Asks whether it wants to keep `n_bytes` of data. Data that it already has counts as used.
    fn offer(&self, name: KeptName, n_bytes: usize) -> Offer;

    /// Keeps data that it has agreed to take. The write happens later.
    fn keep(&self, page: KeptPage);

    /// Returns whether given data is still unwritten.
    fn is_writing(&self) -> bool;

    /// Reads all of `wanted` in order, on its own thread, and passes it to `receiver`. It stops at the first
    /// one that it cannot provide.
    fn fetch(&self, wanted: Vec<KeptPage>, receiver: PageReceiver);
}

/// A [`PageStore`] that an engine uses.
#[derive(Clone, Debug)]
pub struct SharedPageStore(pub Arc<dyn PageStore>);

impl PartialEq for SharedPageStore {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A message to the engine's thread about requested pages.
#[derive(Debug)]
pub(crate) enum Fetched {
    /// The next pages. The engine confirms on the channel that they are in place, or drops it if no caller waits
    /// for them any more.
    Pages {
        fetch: u64,
        pages: Vec<Vec<u8>>,
        done: mpsc::Sender<()>,
    },
    /// No more pages will come.
    End { fetch: u64 },
}

/// Passes pages to the engine that waits for them. Dropping it tells the engine that no more will come.
pub struct PageReceiver {
    fetch: u64,
    post: Box<dyn Fn(Fetched) + Send>,
    /// Confirms that the last pages are in place.
    pending: Option<mpsc::Receiver<()>>,
}

impl PageReceiver {
    /// Creates a receiver that passes the pages of a fetch to `post`.
    pub(crate) fn new(fetch: u64, post: impl Fn(Fetched) + Send + 'static) -> Self {
        Self {
            fetch,
            post: Box::new(post),
            pending: None,
        }
    }

    /// Passes on the bytes of the next pages, once the previous ones are in place; so two portions are in
    /// memory at a time. Returns `false` if no caller waits for them any more.
    pub fn hand_over(&mut self, pages: Vec<Vec<u8>>) -> bool {
        if !self.is_wanted() {
            return false;
        }
        let (done, pending) = mpsc::channel();
        self.pending = Some(pending);
        (self.post)(Fetched::Pages {
            fetch: self.fetch,
            pages,
            done,
        });
        true
    }

    fn is_wanted(&mut self) -> bool {
        self.pending.take().is_none_or(|pending| pending.recv().is_ok())
    }
}

impl Drop for PageReceiver {
    fn drop(&mut self) {
        (self.post)(Fetched::End { fetch: self.fetch });
    }
}

impl fmt::Debug for PageReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageReceiver")
            .field("fetch", &self.fetch)
            .finish_non_exhaustive()
    }
}

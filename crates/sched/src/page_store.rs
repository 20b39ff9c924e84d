//! [`PageStore`]: where pages of the prefix cache are kept outside of the engine, to be found by a later one.
//!
//! The scheduler knows no file and no disk, so this is a seam of its own: the engine hands out the bytes of pages that no sequence uses,
//! and asks for those that a prompt begins with. Invariants: no call blocks for longer than it takes to look something up; what a
//! store gives back is checked by it, to the last byte.

use std::{fmt, sync::Arc};

use tokenmill_backend::{PAGE_TOKENS, PageGroup};

use crate::{prefix::PageKey, sync::mpsc};

/// What of a page's key is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeptKind {
    /// The page itself.
    Page(PageGroup),
    /// The recurrent states behind it.
    State,
}

/// The name of something that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeptName {
    /// Names all tokens up to the end of the page, and what they were computed with.
    pub key: PageKey,
    /// What it is.
    pub kind: KeptKind,
}

/// What a store says to something that could be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// It wants the bytes.
    Take,
    /// It has them, or wants none.
    Leave,
    /// It has too much to write at the moment.
    Later,
}

/// Something to keep, or something that was kept and is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptPage {
    /// Its name.
    pub name: KeptName,
    /// The tokens of the page, to be compared: that a name is equal is not enough.
    pub tokens: [u32; PAGE_TOKENS],
    /// What the backend has in it; empty where it is only wanted.
    pub bytes: Vec<u8>,
}

/// Keeps pages outside of the engine.
pub trait PageStore: fmt::Debug + Send + Sync {
    /// The numbers that names are made with. As long as they stay the same, so do the names; no client may know them.
    fn secret(&self) -> [u64; 4];

    /// Whether it has something of this name, as far as it knows.
    fn contains(&self, name: KeptName) -> bool;

    /// Asks whether it wants to keep something of so many bytes. What it has counts as used.
    fn offer(&self, name: KeptName, n_bytes: usize) -> Offer;

    /// Keeps something that it said it would take. It is written later.
    fn keep(&self, page: KeptPage);

    /// Whether something that was given to it is not written yet.
    fn is_writing(&self) -> bool;

    /// Reads all of `wanted` in order, on a thread of its own, and hands it to `receiver`. It ends at the first that it cannot give.
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

/// What the engine's thread learns of pages that it waits for.
#[derive(Debug)]
pub(crate) enum Fetched {
    /// The next of them. The sender says that they are in place, and is dropped where no one waits for them any more.
    Pages {
        fetch: u64,
        pages: Vec<Vec<u8>>,
        done: mpsc::Sender<()>,
    },
    /// There will be no more.
    End { fetch: u64 },
}

/// Takes pages to the engine that waits for them. Dropping it tells the engine that no more will come.
pub struct PageReceiver {
    fetch: u64,
    post: Box<dyn Fn(Fetched) + Send>,
    /// Answers once the pages handed over last are in place.
    pending: Option<mpsc::Receiver<()>>,
}

impl PageReceiver {
    /// Takes the pages of a fetch to `post`.
    pub(crate) fn new(fetch: u64, post: impl Fn(Fetched) + Send + 'static) -> Self {
        Self {
            fetch,
            post: Box::new(post),
            pending: None,
        }
    }

    /// Hands over the bytes of the next pages, once those before are in place: two portions are in memory at a time. `false` where
    /// no one waits for them any more.
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

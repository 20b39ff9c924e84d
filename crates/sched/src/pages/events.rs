//! [`PageEvent`]: additions to and removals from the prefix cache, for routers that send requests to the
//! engine with their prefix.
//!
//! The pool behaves the same whether or not events are read. Invariants: a reader that applies all events
//! knows exactly the pages that can be found; a reader that falls behind receives [`PageEvent::Cleared`],
//! receives all pages again once it has caught up, and never holds up the engine.

use std::{
    collections::{HashMap, HashSet},
    future::poll_fn,
    task::{Context, Poll},
};

use tokenmill_backend::{AdapterId, PAGE_TOKENS, PageGroup};

use crate::{
    pages::key::PageKey,
    sync::channel::{Receiver, Sender, channel},
};

/// A change of the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageEvent {
    /// A page can now be found.
    Stored(StoredPage),
    /// A page can no longer be found in this tier.
    Removed {
        /// Half of the bits of the page's key.
        key: u64,
        /// The group of layers of the page.
        group: PageGroup,
        /// The tier that it was in.
        tier: PageTier,
    },
    /// No page of any group can be found, or changes were skipped: the reader must discard its knowledge.
    Cleared,
}

/// A page of the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredPage {
    /// Half of the bits of its key. Keys are random per engine, so they mean nothing outside it.
    pub key: u64,
    /// The same for the preceding page; `None` for the first page of a sequence.
    pub parent: Option<u64>,
    /// The salt of requests that can find it.
    pub salt: u64,
    /// The adapter of requests that can find it.
    pub adapter: Option<AdapterId>,
    /// The identity of the media with inputs in the page, as one number; `tokens` are arbitrary there.
    pub media: Option<u128>,
    /// The tokens of the page.
    pub tokens: [u32; PAGE_TOKENS],
    /// The group of layers of the page.
    pub group: PageGroup,
    /// The tier that it is in.
    pub tier: PageTier,
}

/// The location of a cached page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PageTier {
    /// The pool on which steps compute.
    Pool,
    /// The second cache, in main memory.
    Host,
}

/// The predecessor and domain of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lineage {
    pub(crate) parent: Option<PageKey>,
    pub(crate) salt: u64,
    pub(crate) adapter: Option<AdapterId>,
    pub(crate) media: Option<u128>,
}

/// The changes of one pool since they were last taken.
#[derive(Debug)]
pub(crate) struct PageJournal {
    group: PageGroup,
    events: Vec<PageEvent>,
    /// Lineages of findable pages, for when they move between the tiers.
    lineages: HashMap<PageKey, Lineage>,
}

impl PageJournal {
    pub(crate) fn new(group: PageGroup) -> Self {
        Self {
            group,
            events: Vec::new(),
            lineages: HashMap::new(),
        }
    }

    /// Records that a page of the pool got its key.
    pub(crate) fn stored(&mut self, key: PageKey, tokens: [u32; PAGE_TOKENS], lineage: Lineage) {
        self.lineages.insert(key, lineage);
        self.lies_in(key, tokens, PageTier::Pool);
    }

    /// Records that a page moved to `tier`.
    pub(crate) fn moved(&mut self, key: PageKey, tokens: [u32; PAGE_TOKENS], tier: PageTier) {
        self.lies_in(key, tokens, tier);
        let from = match tier {
            PageTier::Pool => PageTier::Host,
            PageTier::Host => PageTier::Pool,
        };
        self.left(key, from);
    }

    /// Records that a page lost its key.
    pub(crate) fn removed(&mut self, key: PageKey, tier: PageTier) {
        self.lineages.remove(&key);
        self.left(key, tier);
    }

    /// Drops the lineages of the pages, all of which are gone.
    pub(crate) fn forget_lineages(&mut self) {
        self.lineages.clear();
    }

    /// Replaces the changes so far by the addition of every findable page, each after its predecessor.
    /// `place` returns a page's tokens and tier.
    pub(crate) fn restate(&mut self, place: impl Fn(PageKey) -> ([u32; PAGE_TOKENS], PageTier)) {
        self.events.clear();
        let mut told = HashSet::with_capacity(self.lineages.len());
        let mut chain = Vec::new();
        let keys: Vec<PageKey> = self.lineages.keys().copied().collect();
        for key in keys {
            let mut next = Some(key);
            while let Some(key) = next.filter(|key| self.lineages.contains_key(key) && told.insert(*key)) {
                chain.push(key);
                next = self.lineages[&key].parent;
            }
            for key in chain.drain(..).rev() {
                let (tokens, tier) = place(key);
                self.lies_in(key, tokens, tier);
            }
        }
    }

    /// Moves the changes to the end of `events`.
    pub(crate) fn take(&mut self, events: &mut Vec<PageEvent>) {
        events.append(&mut self.events);
    }

    fn lies_in(&mut self, key: PageKey, tokens: [u32; PAGE_TOKENS], tier: PageTier) {
        let Lineage {
            parent,
            salt,
            adapter,
            media,
        } = self.lineages[&key];
        self.events.push(PageEvent::Stored(StoredPage {
            key: key.low_bits(),
            parent: parent.map(PageKey::low_bits),
            salt,
            adapter,
            media,
            tokens,
            group: self.group,
            tier,
        }));
    }

    fn left(&mut self, key: PageKey, tier: PageTier) {
        self.events.push(PageEvent::Removed {
            key: key.low_bits(),
            group: self.group,
            tier,
        });
    }
}

/// Creates an event stream that holds at most `n_batches` batches and a marker that more were skipped.
pub(crate) fn page_events(n_batches: usize) -> (PageEventSender, PageEvents) {
    let (sender, receiver) = channel(n_batches);
    let sender = PageEventSender {
        sender,
        has_left_out: false,
    };
    (sender, PageEvents(receiver))
}

/// The engine's end of the stream.
#[derive(Debug)]
pub(crate) struct PageEventSender {
    sender: Sender<Vec<PageEvent>>,
    /// The reader fell behind and received the marker; changes are skipped until it has caught up.
    has_left_out: bool,
}

impl PageEventSender {
    /// Sends a batch, unless the reader is behind. It then receives the marker at once, since there may be no
    /// further change for long.
    pub(crate) fn send(&mut self, events: Vec<PageEvent>) {
        if self.sender.is_full() {
            if !std::mem::replace(&mut self.has_left_out, true) {
                self.sender.send(vec![PageEvent::Cleared]);
            }
        } else if !events.is_empty() {
            self.sender.send(events);
        }
    }

    /// Returns whether a reader that had fallen behind has caught up; the next batch must then contain all
    /// pages.
    pub(crate) fn begins_again(&mut self) -> bool {
        !self.sender.is_full() && std::mem::take(&mut self.has_left_out)
    }
}

/// The changes of the prefix cache, one batch per step with changes. The stream ends with the engine.
#[derive(Debug)]
pub struct PageEvents(Receiver<Vec<PageEvent>>);

impl PageEvents {
    /// Returns the next batch if there is one; never waits.
    pub fn try_next(&mut self) -> Option<Vec<PageEvent>> {
        self.0.try_recv()?.item
    }

    /// Waits for the next batch without blocking the thread; `None` after the last.
    pub async fn next_batch(&mut self) -> Option<Vec<PageEvent>> {
        poll_fn(|context| self.poll_batch(context)).await
    }

    /// Polls for the next batch; `None` after the last.
    pub fn poll_batch(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<PageEvent>>> {
        self.0.poll_recv(context).map(|received| received.item)
    }
}

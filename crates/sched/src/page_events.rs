//! [`PageEvent`]: which pages the prefix cache got and lost, for those that route requests to where their prefix lies.
//!
//! Separate from the pool, which does the same whether or not events are read. Invariants: a reader that applies all events
//! knows exactly the pages that can be found; one that falls behind is told so by [`PageEvent::Cleared`], is told all pages
//! again once it has caught up, and never holds up the engine.

use std::{
    collections::{HashMap, HashSet},
    future::poll_fn,
    task::{Context, Poll},
};

use tokenmill_backend::{AdapterId, PAGE_TOKENS, PageGroup};

use crate::{
    channel::{Receiver, Sender, channel},
    prefix::PageKey,
};

/// A change of the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageEvent {
    /// A page can be found from now on.
    Stored(StoredPage),
    /// A page cannot be found there any more.
    Removed {
        /// Half of the bits of the page's key.
        key: u64,
        /// The layers whose page it was.
        group: PageGroup,
        /// Where it lay.
        tier: PageTier,
    },
    /// No page of any group can be found, or changes went untold: what was known is void.
    Cleared,
}

/// A page of the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredPage {
    /// Half of the bits of its key. Keys are drawn for each engine, so they mean nothing outside of it.
    pub key: u64,
    /// The same of the page before it; `None` for the first of a sequence.
    pub parent: Option<u64>,
    /// The salt of the requests that can find it.
    pub salt: u64,
    /// The adapter of the requests that can find it.
    pub adapter: Option<AdapterId>,
    /// What the media are made of whose inputs it holds, as one number; in their places, `tokens` say nothing.
    pub media: Option<u128>,
    /// The tokens that it holds.
    pub tokens: [u32; PAGE_TOKENS],
    /// The layers whose page it is.
    pub group: PageGroup,
    /// Where it lies.
    pub tier: PageTier,
}

/// Where a page of the prefix cache lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PageTier {
    /// The pool that steps compute on.
    Pool,
    /// The second cache, in main memory.
    Host,
}

/// What a page follows.
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
    /// Of pages that can be found, for when they move between the tiers.
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

    /// A page of the pool got its name.
    pub(crate) fn stored(&mut self, key: PageKey, tokens: [u32; PAGE_TOKENS], lineage: Lineage) {
        self.lineages.insert(key, lineage);
        self.lies_in(key, tokens, PageTier::Pool);
    }

    /// A page moved to `tier`.
    pub(crate) fn moved(&mut self, key: PageKey, tokens: [u32; PAGE_TOKENS], tier: PageTier) {
        self.lies_in(key, tokens, tier);
        let from = match tier {
            PageTier::Pool => PageTier::Host,
            PageTier::Host => PageTier::Pool,
        };
        self.left(key, from);
    }

    /// A page lost its name.
    pub(crate) fn removed(&mut self, key: PageKey, tier: PageTier) {
        self.lineages.remove(&key);
        self.left(key, tier);
    }

    /// Forgets what the pages followed, all of which are gone.
    pub(crate) fn forget_lineages(&mut self) {
        self.lineages.clear();
    }

    /// Tells every page that can be found, as if stored just now, in place of the changes so far: a page comes after the one
    /// that it follows. `place` says what a page holds and where it lies.
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

/// Makes the stream of events that holds `n_batches` at most, and a word that more are left out.
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
    /// The reader fell behind and was told so; changes go untold until it has caught up.
    has_left_out: bool,
}

impl PageEventSender {
    /// Sends a batch, unless the reader is behind. It is told so at once, since nothing may change for long after that.
    pub(crate) fn send(&mut self, events: Vec<PageEvent>) {
        if self.sender.is_full() {
            if !std::mem::replace(&mut self.has_left_out, true) {
                self.sender.send(vec![PageEvent::Cleared]);
            }
        } else if !events.is_empty() {
            self.sender.send(events);
        }
    }

    /// Whether a reader that had fallen behind has caught up since: what is sent next has to be all pages.
    pub(crate) fn begins_again(&mut self) -> bool {
        !self.sender.is_full() && std::mem::take(&mut self.has_left_out)
    }
}

/// The changes of the prefix cache, a batch for each step that made some. It ends with the engine.
#[derive(Debug)]
pub struct PageEvents(Receiver<Vec<PageEvent>>);

impl PageEvents {
    /// The next batch, if one is there; never waits.
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

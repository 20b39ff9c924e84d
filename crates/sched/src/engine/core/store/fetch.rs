//! Fetching pages from a [`PageStore`]: a prompt with a stored prefix waits until the prefix is in the prefix
//! cache.
//!
//! Part of [`Core`] and [`Scheduler`]. No sequence is involved yet: the request is held back, and enters the
//! queue like any other once its pages have arrived or cannot be had. Invariants: fetched pages can be found
//! only when they are complete; a held request reaches the scheduler within its time limits, whatever the
//! store does.

use std::time::Duration;

use tokenmill_backend::{MemoryFormat, MemoryPlace, PAGE_TOKENS, PageGroup};

use crate::{
    arena::SeqId,
    engine::core::{
        Core,
        cause::Cause,
        store::{Fetch, StoredPrefix},
    },
    pages::{
        key::{PageKey, PageNaming, Reuse, longest_reuse},
        pool::{Hit, LeavingPage},
        store::{Fetched, KeptKind, KeptName, KeptPage, PageReceiver},
    },
    plan::{
        scheduler::{Scheduler, held_prefix::HeldPrefix},
        sequence::{SeqSpec, Sequence},
    },
    queue::{
        event::RequestId,
        mailbox::Command,
        submission::{Job, Submission},
    },
    sync,
};

/// Maximum number of fetches that hold pages. A store reads one after the other, and pages reserved for a
/// waiting fetch are taken from others.
const MAX_OPEN: usize = 2;

/// How long a request is held back without progress of its pages, in microseconds.
const FETCH_PATIENCE_US: u64 = 5_000_000;

/// Maximum time from submission for which a request is held back, in microseconds, in addition to the time
/// that its pages take at [`SLOWEST_BYTES_PER_US`].
const FETCH_LIMIT_US: u64 = 10_000_000;

/// Minimum speed of a store, in bytes per microsecond; with a slower one the prompt is computed.
const SLOWEST_BYTES_PER_US: u64 = 64;

impl Core {
    /// Accepts a request, possibly after fetching its pages.
    pub(crate) fn look_outside(&mut self, submission: Submission, now_us: u64) {
        let Some(mut outside) = self.outside.take() else {
            return self.accept(submission);
        };
        let mut spec = submission.spec(None);
        if spec.context_shift.is_some() {
            // Tokens that a full context would drop at once are not part of the prompt.
            let mut sequence = Sequence::new(spec.clone(), 0);
            if sequence.is_to_shift() {
                sequence.cut();
                spec.tokens = sequence.tokens;
            }
        }
        let contains = |name| outside.store.contains(name);
        let is_cached = spec.uses_prefix_cache && self.uses_prefix_cache();
        let keys = (self.scheduler).stored_prefix_keys(&spec, is_cached, &contains);
        let Some((keys, first_missing)) = keys else {
            self.outside = Some(outside);
            return self.accept(submission);
        };
        let open = &mut outside.fetches.open;
        let leader = open.iter().position(|fetch| fetch.stored.wants(first_missing));
        // The fetch that ends first makes room for another.
        if let Some(at) = leader.or((open.len() >= MAX_OPEN).then_some(0)) {
            open[at].followers.push(submission);
            self.outside = Some(outside);
            return;
        }
        let Some(stored) = self.scheduler.reserve_stored(&spec, keys, &contains) else {
            self.outside = Some(outside);
            return self.accept(submission);
        };
        let id = outside.fetches.next;
        outside.fetches.next += 1;
        let mailbox = sync::Arc::clone(&outside.mailbox);
        let receiver = PageReceiver::new(id, move |fetched| mailbox.post(Command::Fetched(fetched)));
        let store = std::sync::Arc::clone(&outside.store);
        self.outside = Some(outside);
        // Making room evicted other pages, which may have to be copied.
        if self.copy_for_prefix().is_err() {
            self.scheduler.let_prefix_go(stored.prefix);
            return self.accept(submission);
        }
        store.fetch(stored.wanted.clone(), receiver);
        if let Some(outside) = &mut self.outside {
            outside.fetches.open.push(Fetch {
                id,
                submission,
                followers: Vec::new(),
                stored,
                n_done: 0,
                last_news_us: now_us,
            });
        }
    }

    /// Writes fetched pages to their places.
    pub(crate) fn take_fetched(&mut self, fetched: Fetched, now_us: u64) {
        let (id, pages, done) = match fetched {
            Fetched::Pages { fetch, pages, done } => (fetch, pages, done),
            Fetched::End { fetch } => return self.end_and_look_again(fetch, now_us),
        };
        let Some(outside) = &mut self.outside else { return };
        let Some(fetch) = outside.fetches.open.iter_mut().find(|fetch| fetch.id == id) else {
            // No request waits for it any more; the dropped `done` tells its sender.
            return;
        };
        fetch.last_news_us = now_us;
        let places = fetch.stored.places.get(fetch.n_done..).unwrap_or_default();
        let contents: Vec<_> = (places.iter().zip(&pages))
            .map(|(&(_, place), bytes)| (place, &bytes[..]))
            .collect();
        if contents.len() < pages.len() || self.executor.write_memory(&contents).is_err() {
            return self.end_and_look_again(id, now_us);
        }
        fetch.n_done += pages.len();
        // The reader of the next pages may have ended.
        let _ = done.send(());
    }

    /// Publishes the fetched pages in the prefix cache, and starts the request that waited for them. Returns
    /// the requests that waited with it.
    fn end_fetch(&mut self, id: u64) -> Vec<Submission> {
        let fetch = (self.outside.as_mut()).and_then(|outside| outside.fetches.take(id));
        let Some(fetch) = fetch else {
            return Vec::new();
        };
        let n_pages = fetch.stored.n_whole_pages(fetch.n_done);
        self.scheduler.publish_part(fetch.stored.prefix, n_pages);
        self.accept(fetch.submission);
        fetch.followers
    }

    /// Does the same as [`Self::end_fetch`]; requests that waited with it look up their missing pages again.
    fn end_and_look_again(&mut self, id: u64, now_us: u64) {
        for follower in self.end_fetch(id) {
            self.look_outside(follower, now_us);
        }
    }

    /// Does the same as [`Self::end_fetch`]; requests that waited with it start too.
    fn end_and_begin(&mut self, id: u64) {
        for follower in self.end_fetch(id) {
            self.accept(follower);
        }
    }

    /// Starts requests whose pages do not come or come too late, and those past their own deadline, so that
    /// they end.
    pub(crate) fn end_late_fetches(&mut self, now_us: u64) {
        let Some(outside) = &self.outside else { return };
        let is_late = |fetch: &&Fetch| {
            let is_silent = now_us.saturating_sub(fetch.last_news_us) >= FETCH_PATIENCE_US;
            is_silent || now_us >= fetch.latest_us(&outside.format)
        };
        let late = outside.fetches.open.iter().filter(is_late);
        let late: Vec<u64> = late.map(|fetch| fetch.id).collect();
        let submissions = outside.fetches.open.iter().flat_map(Fetch::submissions);
        let overdue: Vec<RequestId> = submissions
            .filter(|submission| submission.is_overdue(now_us))
            .map(|submission| submission.request)
            .collect();
        for id in late {
            self.end_and_begin(id);
        }
        let has_overdue = !overdue.is_empty();
        for request in overdue {
            self.stop_waiting(request);
        }
        if has_overdue {
            // Before they can enter a step.
            self.scheduler.expire(now_us, &mut self.outcomes);
            self.publish_outcomes(Cause::Caller, now_us);
        }
    }

    /// Starts a request that is held back, so that it can be ended.
    pub(crate) fn stop_waiting(&mut self, request: RequestId) {
        let Some(outside) = &mut self.outside else { return };
        for fetch in &mut outside.fetches.open {
            if fetch.submission.request == request {
                if fetch.followers.is_empty() {
                    let id = fetch.id;
                    return self.end_and_begin(id);
                }
                // Others still wait for the same pages, or for room.
                let next = fetch.followers.remove(0);
                let submission = std::mem::replace(&mut fetch.submission, next);
                return self.accept(submission);
            }
            let follower = fetch
                .followers
                .iter()
                .position(|follower| follower.request == request);
            if let Some(at) = follower {
                let follower = fetch.followers.remove(at);
                return self.accept(follower);
            }
        }
    }

    /// Starts all requests that are held back.
    pub(crate) fn stop_all_waiting(&mut self) {
        while let Some(outside) = &self.outside
            && let Some(fetch) = outside.fetches.open.first()
        {
            let id = fetch.id;
            self.end_and_begin(id);
        }
    }
}

impl Fetch {
    /// Returns the requests that wait for the fetch.
    pub(crate) fn submissions(&self) -> impl Iterator<Item = &Submission> {
        std::iter::once(&self.submission).chain(&self.followers)
    }

    /// Returns the time at which the fetch ends in any case.
    fn latest_us(&self, format: &MemoryFormat) -> u64 {
        let places = self.stored.places.iter();
        let n_bytes: usize = places.map(|&(_, place)| format.bytes_of(place)).sum();
        (self.submission.submitted_us).saturating_add(FETCH_LIMIT_US + n_bytes as u64 / SLOWEST_BYTES_PER_US)
    }
}

impl Submission {
    /// Returns whether a deadline set by its caller has passed before its start.
    fn is_overdue(&self, now_us: u64) -> bool {
        let (queue_timeout, deadline) = match &self.job {
            Job::Generate { params, .. } => (params.queue_timeout, params.deadline),
            Job::Forward(params) => (params.queue_timeout, params.deadline),
        };
        let is_over = |after: Duration| {
            let after_us = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
            self.submitted_us.saturating_add(after_us) <= now_us
        };
        queue_timeout.into_iter().chain(deadline).any(is_over)
    }
}

impl Scheduler {
    /// Derives page names from these numbers from now on, and records pages that no sequence uses. There must
    /// be no pages yet.
    pub(crate) fn name_pages_with(&mut self, secret: [u64; 4]) {
        self.hasher = crate::pages::key::PrefixHasher::with_secret(secret, self.config.model_salt);
        for group in &mut self.groups {
            group.pool.note_leaving();
        }
    }

    /// Returns the keys of the longest prefix of a sequence's tokens that cache and store hold together, and
    /// the first key missing from the cache; `None` if the store has nothing to add.
    pub(crate) fn stored_prefix_keys(
        &self,
        spec: &SeqSpec,
        is_cached: bool,
        contains: &dyn Fn(KeptName) -> bool,
    ) -> Option<(Vec<PageKey>, PageKey)> {
        if !is_cached {
            return None;
        }
        let naming = PageNaming {
            tokens: &spec.tokens,
            media: &spec.media,
            salt: spec.salt,
            adapter: spec.adapter,
        };
        let n_pages = spec.work.n_reusable(spec.tokens.len()) / PAGE_TOKENS;
        let mut keys = Vec::with_capacity(n_pages);
        self.hasher.extend(&mut keys, &naming, n_pages);
        let cached = self.longest_cached(&keys, &spec.tokens);
        let reuse = self.longest_stored(&keys, &spec.tokens, contains);
        if reuse.n_pages <= cached.n_pages {
            return None;
        }
        keys.truncate(reuse.n_pages);
        let first_missing = keys[cached.n_pages];
        Some((keys, first_missing))
    }

    fn longest_stored(&self, keys: &[PageKey], tokens: &[u32], contains: &dyn Fn(KeptName) -> bool) -> Reuse {
        let states = &self.pool().states;
        let windows: Vec<_> = self.groups.iter().map(|group| group.limits.window).collect();
        longest_reuse(
            keys.len(),
            &windows,
            |group_idx, page_idx| {
                let (key, kind) = (keys[page_idx], KeptKind::Page(PageGroup::ALL[group_idx]));
                let tokens = &tokens[page_idx * PAGE_TOKENS..(page_idx + 1) * PAGE_TOKENS];
                self.groups[group_idx].pool.find(key, tokens).is_some() || contains(KeptName { key, kind })
            },
            |page_idx| {
                let (key, kind) = (keys[page_idx], KeptKind::State);
                !states.is_used() || states.contains(key) || contains(KeptName { key, kind })
            },
        )
    }

    /// Pins the cached part of a prefix with these keys, and reserves memory for the rest by evicting the
    /// pages idle longest; `None` if there is no room. One page per running sequence stays available.
    pub(crate) fn reserve_stored(
        &mut self,
        spec: &SeqSpec,
        keys: Vec<PageKey>,
        contains: &dyn Fn(KeptName) -> bool,
    ) -> Option<StoredPrefix> {
        let reuse = self.longest_stored(&keys, &spec.tokens, contains);
        let tokens_of = |page_idx: usize| {
            let tokens = &spec.tokens[page_idx * PAGE_TOKENS..(page_idx + 1) * PAGE_TOKENS];
            <[u32; PAGE_TOKENS]>::try_from(tokens).expect("a whole page")
        };
        let last = reuse.n_pages.checked_sub(1)?;
        let lacks_state = {
            let states = &self.pool().states;
            let lacks = states.is_used() && !states.contains(keys[last]);
            if lacks && states.n_available() == 0 {
                return None;
            }
            lacks
        };
        for (group, first_page) in self.groups.iter().zip(reuse.first_pages) {
            let is_free =
                |&page_idx: &usize| group.pool.find(keys[page_idx], &tokens_of(page_idx)) == Some(Hit::InUse);
            let n_needed = (first_page..reuse.n_pages)
                .filter(|page_idx| !is_free(page_idx))
                .count();
            if n_needed + self.running.len() > group.pool.n_available() {
                return None;
            }
        }
        let mut wanted_at = Vec::new();
        let mut tables: [Vec<u32>; PageGroup::ALL.len()] = Default::default();
        let groups = PageGroup::ALL.into_iter().zip(&mut self.groups).zip(&mut tables);
        for (((group, pool), pages), first_page) in groups
            .map(|((group, of_group), pages)| ((group, &mut of_group.pool), pages))
            .zip(reuse.first_pages)
        {
            let is_found: Vec<bool> = (first_page..reuse.n_pages)
                .map(|page_idx| pool.find(keys[page_idx], &tokens_of(page_idx)).is_some())
                .collect();
            // Pin the cached pages first, so that they are not evicted to make room.
            let found: Vec<PageKey> = (keys[first_page..].iter().zip(&is_found))
                .filter_map(|(&key, &is_found)| is_found.then_some(key))
                .collect();
            let mut held = Vec::new();
            pool.take_cached(&found, &mut held);
            let mut held = held.into_iter();
            for (page_idx, is_found) in (first_page..reuse.n_pages).zip(is_found) {
                let page = if is_found { held.next() } else { pool.allocate() };
                let page = page.expect("the pages were counted before");
                pages.push(page);
                if !is_found {
                    wanted_at.push((page_idx, KeptKind::Page(group), MemoryPlace::Page { group, page }));
                }
            }
        }
        wanted_at.sort_by_key(|&(page_idx, ..)| page_idx);
        let mut states = Vec::new();
        if lacks_state {
            let slot = (self.groups[0].pool.states.allocate()).expect("a slot was available");
            states.push((reuse.n_pages, slot));
            wanted_at.push((last, KeptKind::State, MemoryPlace::State { slot }));
        }
        let wanted = (wanted_at.iter()).map(|&(page_idx, kind, _)| KeptPage {
            name: KeptName {
                key: keys[page_idx],
                kind,
            },
            tokens: tokens_of(page_idx),
            bytes: Vec::new(),
        });
        Some(StoredPrefix {
            wanted: wanted.collect(),
            places: (wanted_at.iter())
                .map(|&(page_idx, _, place)| (page_idx, place))
                .collect(),
            prefix: HeldPrefix {
                tokens: spec.tokens[..reuse.n_pages * PAGE_TOKENS].to_vec(),
                salt: spec.salt,
                adapter: spec.adapter,
                keys,
                reuse,
                tables,
                states,
            },
        })
    }

    /// Publishes the first `n_pages` pages of a prefix, and releases the others.
    pub(crate) fn publish_part(&mut self, mut held: HeldPrefix, n_pages: usize) {
        if n_pages < held.reuse.n_pages {
            let first_pages = held.reuse.first_pages;
            for ((group, pages), first_page) in self.groups.iter_mut().zip(&mut held.tables).zip(first_pages)
            {
                let n_kept = n_pages.saturating_sub(first_page).min(pages.len());
                for page in pages.drain(n_kept..).rev() {
                    group.pool.release(page);
                }
            }
            for (_, slot) in held.states.drain(..) {
                self.groups[0].pool.states.release(slot);
            }
        }
        self.publish_prefix(held);
    }

    /// Lists the pages of an ending sequence that have left its window but would be visible to a prompt that
    /// continues after its last whole page.
    pub(crate) fn list_left_pages(&mut self, id: SeqId) {
        let sequence = &self.sequences[id];
        for group in &mut self.groups {
            let n_whole = sequence.n_registered;
            let first_left = group.first_visible_page(n_whole * PAGE_TOKENS);
            let n_left = group.first_visible_page(sequence.n_committed).min(n_whole);
            for &key in sequence.page_keys.get(first_left..n_left).unwrap_or_default() {
                group.pool.list_left(key);
            }
        }
    }

    /// Returns whether [`Self::next_leaving`] may have a page.
    pub(crate) fn has_leaving(&self) -> bool {
        self.groups.iter().any(|group| group.pool.has_leaving())
    }

    /// Returns a page of a group that no sequence uses.
    pub(crate) fn next_leaving(&mut self, group: PageGroup) -> Option<LeavingPage> {
        self.groups.get_mut(group.index())?.pool.next_leaving()
    }

    /// Lists a page again.
    pub(crate) fn list_leaving(&mut self, group: PageGroup, page: u32) {
        self.groups[group.index()].pool.list_leaving(page);
    }

    /// Returns the evicted pages of a group.
    pub(crate) fn take_evicted(&mut self, group: PageGroup) -> Vec<LeavingPage> {
        let group = self.groups.get_mut(group.index());
        group.map_or_else(Vec::new, |group| group.pool.take_evicted())
    }
}

//! How pages come back from a [`PageStore`]: a prompt whose beginning is there waits until it is in the prefix cache.
//!
//! A part of [`Core`] and [`Scheduler`] that stands apart because no sequence takes part in it yet: the request is kept back, and enters
//! the queue as any other once its pages are there, or cannot be had. Invariants: what arrives can be found only once a page is
//! whole; a request that is kept back is told to the scheduler within its limits of time, whatever the store does.

use std::time::Duration;

use tokenmill_backend::{MemoryFormat, MemoryPlace, PAGE_TOKENS, PageGroup};

use crate::{
    arena::SeqId,
    cause::Cause,
    core::Core,
    event::RequestId,
    held_prefix::HeldPrefix,
    mailbox::Command,
    outside::{Fetch, StoredPrefix},
    page_store::{Fetched, KeptKind, KeptName, KeptPage, PageReceiver},
    pool::{Hit, LeavingPage},
    prefix::{PageKey, PageNaming, Reuse, longest_reuse},
    scheduler::Scheduler,
    sequence::{SeqSpec, Sequence},
    submission::{Job, Submission},
    sync,
};

/// Fetches that hold pages at a time. A store reads one after the other, and pages that wait for it are taken from others.
const MAX_OPEN: usize = 2;

/// How long a request is kept back without news of its pages, microseconds.
const FETCH_PATIENCE_US: u64 = 5_000_000;

/// How long after its submission a request is kept back in all, microseconds, in addition to the time that its pages take at [`SLOWEST_BYTES_PER_US`].
const FETCH_LIMIT_US: u64 = 10_000_000;

/// What a store gives at least, bytes in a microsecond: with one that gives less the prompt is computed.
const SLOWEST_BYTES_PER_US: u64 = 64;

impl Core {
    /// Takes a request in, perhaps after its pages were fetched.
    pub(crate) fn look_outside(&mut self, submission: Submission, now_us: u64) {
        let Some(mut outside) = self.outside.take() else {
            return self.accept(submission);
        };
        let mut spec = submission.spec(None);
        if spec.context_shift.is_some() {
            // A prompt that fills the context is computed without the tokens that it then drops.
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
        // The first to end makes room for another.
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
        // Room for the pages was made of others.
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

    /// Puts pages that have arrived in their places.
    pub(crate) fn take_fetched(&mut self, fetched: Fetched, now_us: u64) {
        let (id, pages, done) = match fetched {
            Fetched::Pages { fetch, pages, done } => (fetch, pages, done),
            Fetched::End { fetch } => return self.end_and_look_again(fetch, now_us),
        };
        let Some(outside) = &mut self.outside else { return };
        let Some(fetch) = outside.fetches.open.iter_mut().find(|fetch| fetch.id == id) else {
            // No one waits for it any more, which its sender learns from `done`.
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
        // Whoever reads the next may have ended.
        let _ = done.send(());
    }

    /// Lets prompts find what has arrived, and the request that waited for it begin. Gives those that waited with it.
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

    /// As [`Self::end_fetch`]; those that waited with it look for what they lack.
    fn end_and_look_again(&mut self, id: u64, now_us: u64) {
        for follower in self.end_fetch(id) {
            self.look_outside(follower, now_us);
        }
    }

    /// As [`Self::end_fetch`]; those that waited with it begin too.
    fn end_and_begin(&mut self, id: u64) {
        for follower in self.end_fetch(id) {
            self.accept(follower);
        }
    }

    /// Lets requests begin whose pages do not come, or not in time, and those whose own time is over, so that they end.
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
            // Before a step can be made of them.
            self.scheduler.expire(now_us, &mut self.outcomes);
            self.publish_outcomes(Cause::Caller, now_us);
        }
    }

    /// Lets a request begin, if it is kept back, so that it can be ended.
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

    /// Lets all requests begin that are kept back.
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
    /// Those that wait for it.
    pub(crate) fn submissions(&self) -> impl Iterator<Item = &Submission> {
        std::iter::once(&self.submission).chain(&self.followers)
    }

    /// When it ends, whatever has come.
    fn latest_us(&self, format: &MemoryFormat) -> u64 {
        let places = self.stored.places.iter();
        let n_bytes: usize = places.map(|&(_, place)| format.bytes_of(place)).sum();
        (self.submission.submitted_us).saturating_add(FETCH_LIMIT_US + n_bytes as u64 / SLOWEST_BYTES_PER_US)
    }
}

impl Submission {
    /// Whether a time that its caller gave is over before it has begun.
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
    /// Names pages with these numbers from now on, and notes which of them no sequence uses. There are none yet.
    pub(crate) fn name_pages_with(&mut self, secret: [u64; 4]) {
        self.hasher = crate::prefix::PrefixHasher::with_secret(secret, self.config.model_salt);
        for group in &mut self.groups {
            group.pool.note_leaving();
        }
    }

    /// The keys of the longest prefix of a sequence's tokens that the cache and a store have together, and the first of them that the
    /// cache has not; `None` where the store has nothing to add.
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

    /// Holds what the cache has of a prefix with these keys, and takes memory for what it has not, at the price of what was idle
    /// longest; `None` where there is no room. Each running sequence is left a page.
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
            // What is there is held first, so that room for the rest is not made of it.
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

    /// Lets prompts find the first `n_pages` pages of a prefix, and gives back the others.
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

    /// Lists the pages of a sequence that ends which have left its window and that a prompt sees which continues behind its last
    /// whole page.
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

    /// Whether [`Self::next_leaving`] may have a page.
    pub(crate) fn has_leaving(&self) -> bool {
        self.groups.iter().any(|group| group.pool.has_leaving())
    }

    /// A page of a group that no sequence uses.
    pub(crate) fn next_leaving(&mut self, group: PageGroup) -> Option<LeavingPage> {
        self.groups.get_mut(group.index())?.pool.next_leaving()
    }

    /// Lists a page again.
    pub(crate) fn list_leaving(&mut self, group: PageGroup, page: u32) {
        self.groups[group.index()].pool.list_leaving(page);
    }

    /// The pages of a group that lost their place.
    pub(crate) fn take_evicted(&mut self, group: PageGroup) -> Vec<LeavingPage> {
        let group = self.groups.get_mut(group.index());
        group.map_or_else(Vec::new, |group| group.pool.take_evicted())
    }
}

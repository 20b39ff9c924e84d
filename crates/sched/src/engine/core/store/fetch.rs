//! Fetching pages from a [`PageStore`]: a prompt with a stored prefix waits until the prefix is in the prefix
//! cache.
//!
//! Part of [`Core`]. No sequence is involved yet: the request is held back, and enters the
//! queue like any other once its pages have arrived or cannot be had. Invariants: fetched pages can be found
//! only when they are complete; a held request reaches the scheduler within its time limits, whatever the
//! store does.

use std::time::Duration;

use tokenmill_backend::{AdapterId, MemoryFormat};

use crate::{
    engine::core::{Core, cause::Cause, store::Fetch},
    pages::store::{Fetched, PageReceiver},
    plan::sequence::Sequence,
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
    pub(in crate::engine::core) fn accept_or_fetch(&mut self, submission: Submission, now_us: u64) {
        let Some(mut link) = self.store.take() else {
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
        let contains = |name| link.store.contains(name);
        let is_cached = spec.uses_prefix_cache && self.uses_prefix_cache();
        let keys = (self.scheduler).stored_prefix_keys(&spec, is_cached, &contains);
        let Some((keys, first_missing)) = keys else {
            self.store = Some(link);
            return self.accept(submission);
        };
        let open = &mut link.fetches.open;
        let leader = open.iter().position(|fetch| fetch.stored.wants(first_missing));
        // The fetch that ends first makes room for another.
        if let Some(at) = leader.or((open.len() >= MAX_OPEN).then_some(0)) {
            open[at].followers.push(submission);
            self.store = Some(link);
            return;
        }
        let Some(stored) = self.scheduler.reserve_stored(&spec, keys, &contains) else {
            self.store = Some(link);
            return self.accept(submission);
        };
        let id = link.fetches.next;
        link.fetches.next += 1;
        let mailbox = sync::Arc::clone(&link.mailbox);
        let receiver = PageReceiver::new(id, move |fetched| mailbox.post(Command::Fetched(fetched)));
        let store = std::sync::Arc::clone(&link.store);
        self.store = Some(link);
        // Making room evicted other pages, which may have to be copied.
        if self.copy_for_prefix().is_err() {
            self.scheduler.let_prefix_go(stored.prefix);
            return self.accept(submission);
        }
        store.fetch(stored.wanted.clone(), receiver);
        if let Some(link) = &mut self.store {
            link.fetches.open.push(Fetch {
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
    pub(in crate::engine::core) fn take_fetched(&mut self, fetched: Fetched, now_us: u64) {
        let (id, pages, done) = match fetched {
            Fetched::Pages { fetch, pages, done } => (fetch, pages, done),
            Fetched::End { fetch } => return self.end_and_look_again(fetch, now_us),
        };
        let Some(link) = &mut self.store else { return };
        let Some(fetch) = link.fetches.open.iter_mut().find(|fetch| fetch.id == id) else {
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
        let fetch = (self.store.as_mut()).and_then(|link| link.fetches.take(id));
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
            self.accept_or_fetch(follower, now_us);
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
    pub(in crate::engine::core) fn end_late_fetches(&mut self, now_us: u64) {
        let Some(link) = &self.store else { return };
        let is_late = |fetch: &&Fetch| {
            let is_silent = now_us.saturating_sub(fetch.last_news_us) >= FETCH_PATIENCE_US;
            is_silent || now_us >= fetch.latest_us(&link.format)
        };
        let late = link.fetches.open.iter().filter(is_late);
        let late: Vec<u64> = late.map(|fetch| fetch.id).collect();
        let submissions = link.fetches.open.iter().flat_map(Fetch::submissions);
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
    pub(in crate::engine::core) fn stop_waiting(&mut self, request: RequestId) {
        let Some(link) = &mut self.store else { return };
        for fetch in &mut link.fetches.open {
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

    /// Returns the number of requests that are held back.
    pub(in crate::engine::core) fn n_fetching(&self) -> usize {
        (self.store.as_ref()).map_or(0, |link| link.fetches.n_waiting())
    }

    /// Returns the adapters of requests waiting for stored pages, and of pages being fetched.
    pub(in crate::engine::core) fn kept_back_adapters(&self) -> Vec<AdapterId> {
        let open = (self.store.iter()).flat_map(|link| &link.fetches.open);
        let of_fetch = |fetch: &Fetch| {
            let of_requests = fetch
                .submissions()
                .filter_map(|submission| submission.job.adapter());
            let mut ids: Vec<AdapterId> = of_requests.collect();
            // The request that started the fetch may have been cancelled.
            ids.extend(fetch.stored.prefix.adapter);
            ids
        };
        open.flat_map(of_fetch).collect()
    }

    /// Starts all requests that are held back.
    pub(in crate::engine::core) fn stop_all_waiting(&mut self) {
        while let Some(link) = &self.store
            && let Some(fetch) = link.fetches.open.first()
        {
            let id = fetch.id;
            self.end_and_begin(id);
        }
    }
}

impl Fetch {
    /// Returns the requests that wait for the fetch.
    fn submissions(&self) -> impl Iterator<Item = &Submission> {
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

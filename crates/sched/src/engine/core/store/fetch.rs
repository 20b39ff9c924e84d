//! Fetching pages from a [`PageStore`]: a prompt with a stored prefix waits until the prefix is in the prefix
//! cache.
//!
//! Part of [`Core`]. No sequence is involved yet: the request is held back, and enters the
//! queue like any other once its pages have arrived or cannot be had. Invariants: fetched pages can be found
//! only when they are complete; a held request reaches the scheduler within its time limits, whatever the
//! store does.

use std::time::Duration;

use tokenmill_backend::AdapterId;

use crate::{
    engine::{
        core::{Core, cause::Cause, store::Fetch},
        prefix_transfer::PrefixWriter,
    },
    plan::sequence::Sequence,
    queue::{
        event::RequestId,
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
        if let Some(submission) = self.fetch(submission, now_us) {
            self.accept(submission);
        }
    }

    /// Holds a request back until its pages are fetched. Returns it if the store has nothing to add, or the cache
    /// no room.
    fn fetch(&mut self, submission: Submission, now_us: u64) -> Option<Submission> {
        let uses_cache = self.uses_prefix_cache();
        let Some(link) = &mut self.store else {
            return Some(submission);
        };
        let mut spec = submission.spec(None);
        if !uses_cache || !spec.uses_prefix_cache {
            return Some(submission);
        }
        if spec.context_shift.is_some() {
            // Tokens that a full context would drop at once are not part of the prompt.
            let mut sequence = Sequence::new(spec.clone(), 0);
            if sequence.is_to_shift() {
                sequence.cut();
                spec.tokens = sequence.tokens;
            }
        }
        let store = std::sync::Arc::clone(&link.store);
        let is_stored = |_: usize, name| store.contains(name);
        let Some((keys, first_missing)) = self.scheduler.stored_prefix_keys(&spec, &is_stored) else {
            return Some(submission);
        };
        let wants =
            |fetch: &Fetch| (self.holds.prefix(fetch.hold)).is_some_and(|prefix| prefix.wants(first_missing));
        let leader = link.fetches.iter().position(wants);
        // The fetch that ends first makes room for another.
        if let Some(at) = leader.or((link.fetches.len() >= MAX_OPEN).then_some(0)) {
            link.fetches[at].followers.push(submission);
            return None;
        }
        let Ok(prefix) = self.scheduler.hold_keys(&spec.naming(), keys, 1, &is_stored) else {
            return Some(submission);
        };
        let wanted = prefix.wanted();
        let n_bytes = wanted
            .iter()
            .map(|page| page.name.kind.n_bytes(&link.format) as u64)
            .sum();
        let mailbox = sync::Arc::clone(&link.mailbox);
        let Ok(hold) = self.hold(prefix) else {
            return Some(submission);
        };
        store.fetch(wanted, Box::new(PrefixWriter::new(hold, mailbox)));
        if let Some(link) = &mut self.store {
            link.fetches.push(Fetch {
                hold,
                n_bytes,
                submission,
                followers: Vec::new(),
                last_news_us: now_us,
            });
        }
        None
    }

    /// Notes that pages of a fetch have arrived, if the held prefix is that of a fetch.
    pub(in crate::engine::core) fn note_fetched(&mut self, hold: u64, now_us: u64) {
        let mut fetches = self.store.iter_mut().flat_map(|link| &mut link.fetches);
        if let Some(fetch) = fetches.find(|fetch| fetch.hold == hold) {
            fetch.last_news_us = now_us;
        }
    }

    /// Does the same as [`Self::end_hold`]; requests that waited with it look up their missing pages again.
    pub(in crate::engine::core) fn end_and_look_again(&mut self, hold: u64, now_us: u64) {
        for follower in self.end_hold(hold) {
            self.accept_or_fetch(follower, now_us);
        }
    }

    /// Does the same as [`Self::end_hold`]; requests that waited with it start too.
    fn end_and_begin(&mut self, hold: u64) {
        for follower in self.end_hold(hold) {
            self.accept(follower);
        }
    }

    /// Starts requests whose pages do not come or come too late, and those past their own deadline, so that
    /// they end.
    pub(in crate::engine::core) fn end_late_fetches(&mut self, now_us: u64) {
        let Some(link) = &self.store else { return };
        let is_late = |fetch: &&Fetch| {
            let is_silent = now_us.saturating_sub(fetch.last_news_us) >= FETCH_PATIENCE_US;
            is_silent || now_us >= fetch.latest_us()
        };
        let late = link.fetches.iter().filter(is_late);
        let late: Vec<u64> = late.map(|fetch| fetch.hold).collect();
        let submissions = link.fetches.iter().flat_map(Fetch::submissions);
        let overdue: Vec<RequestId> = submissions
            .filter(|submission| submission.is_overdue(now_us))
            .map(|submission| submission.request)
            .collect();
        for hold in late {
            self.end_and_begin(hold);
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
        for fetch in &mut link.fetches {
            if fetch.submission.request == request {
                if fetch.followers.is_empty() {
                    let hold = fetch.hold;
                    return self.end_and_begin(hold);
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
        let fetches = self.store.iter().flat_map(|link| &link.fetches);
        fetches.map(|fetch| 1 + fetch.followers.len()).sum()
    }

    /// Returns the adapters of requests waiting for stored pages, and of pages being fetched.
    pub(in crate::engine::core) fn kept_back_adapters(&self) -> Vec<AdapterId> {
        let fetches = self.store.iter().flat_map(|link| &link.fetches);
        let of_requests = fetches
            .flat_map(Fetch::submissions)
            .filter_map(|submission| submission.job.adapter());
        // The request that started the fetch may have been cancelled.
        of_requests.chain(self.holds.adapters()).collect()
    }

    /// Starts all requests that are held back.
    pub(in crate::engine::core) fn stop_all_waiting(&mut self) {
        while let Some(link) = &self.store
            && let Some(fetch) = link.fetches.first()
        {
            let hold = fetch.hold;
            self.end_and_begin(hold);
        }
    }
}

impl Fetch {
    /// Returns the requests that wait for the fetch.
    fn submissions(&self) -> impl Iterator<Item = &Submission> {
        std::iter::once(&self.submission).chain(&self.followers)
    }

    /// Returns the time at which the fetch ends in any case.
    fn latest_us(&self) -> u64 {
        (self.submission.submitted_us).saturating_add(FETCH_LIMIT_US + self.n_bytes / SLOWEST_BYTES_PER_US)
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

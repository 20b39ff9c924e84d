//! [`Registry`]: the state of each model, its waiting requests, and the next action.
//!
//! It decides and does nothing: it has no thread, opens no file and gets the time from its caller.
//! Invariants: loaded and loading models together never exceed the budget; nothing is unloaded while requests
//! run on it; each waiting request is answered once, in the order in which the models were first requested.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{
    KeepAlive,
    lookup::{Answer, Lookup, Purpose, Rules, Step},
    room::{Resident, Room, room_for},
    status::{Counts, Doing, Status},
};
use crate::ApiError;

/// How long a model waits for the requests of others to end before these take no new ones. Without it a model that is
/// always in use would keep the others out for ever; with none, two models would take turns at each request.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long the reason of a load that failed is given before it is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Why a model is to be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// Requests wait for it. It is given up when they go away.
    Requests,
    /// The operator wants it loaded.
    Order,
    /// It is loaded at the start if no other has to go for it.
    Start,
}

#[derive(Clone, Copy, Debug)]
struct Wish {
    /// Wishes are granted in this order.
    number: u64,
    since: Instant,
    reason: Reason,
    needed_bytes: Option<u64>,
}

#[derive(Debug)]
enum Stage<A> {
    Unloaded,
    Loading { n_bytes: u64 },
    Loaded { app: A, n_bytes: u64 },
    Unloading { n_bytes: u64 },
}

#[derive(Debug)]
struct Waiting<L> {
    to: oneshot::Sender<Result<L, ApiError>>,
    purpose: Purpose,
}

#[derive(Debug)]
struct Entry<A, L> {
    rules: Rules,
    stage: Stage<A>,
    wish: Option<Wish>,
    waiting: VecDeque<Waiting<L>>,
    n_running: usize,
    /// When it was used last.
    used_at: Instant,
    /// Which use of all models that was.
    used: u64,
    /// The time to keep it, as the newest request asked.
    keep_alive: Option<KeepAlive>,
    /// Takes no new requests, for another model needs its room.
    is_leaving: bool,
    /// Takes no new requests, since it is to be unloaded.
    is_dismissed: bool,
    /// Its memory did not become free when it was unloaded.
    is_stuck: bool,
    /// When it was loaded last.
    loaded_at: Instant,
    failure: Option<(ApiError, Instant)>,
    counts: Counts,
}

impl<A: Clone, L> Entry<A, L> {
    fn new(rules: Rules, now: Instant) -> Self {
        Self {
            rules,
            stage: Stage::Unloaded,
            wish: None,
            waiting: VecDeque::new(),
            n_running: 0,
            used_at: now,
            used: 0,
            keep_alive: None,
            is_leaving: false,
            is_dismissed: false,
            is_stuck: false,
            loaded_at: now,
            failure: None,
            counts: Counts::default(),
        }
    }

    fn n_bytes(&self) -> u64 {
        match self.stage {
            Stage::Unloaded => 0,
            Stage::Loading { n_bytes } | Stage::Loaded { n_bytes, .. } | Stage::Unloading { n_bytes } => {
                n_bytes
            }
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Loaded { .. }) && !self.is_leaving && !self.is_dismissed
    }

    /// How long it stays without requests.
    fn stays(&self) -> Option<Duration> {
        if self.rules.is_pinned {
            return None;
        }
        self.keep_alive.unwrap_or(self.rules.keep_alive).time()
    }

    /// The rest of its time, while nothing runs on it.
    fn rest(&self, now: Instant) -> Option<Duration> {
        let is_idle =
            matches!(self.stage, Stage::Loaded { .. }) && self.n_running == 0 && self.waiting.is_empty();
        let stays = self.stays().filter(|_| is_idle)?;
        Some(stays.saturating_sub(now.saturating_duration_since(self.used_at)))
    }
}

/// The models of a server.
#[derive(Debug)]
pub(crate) struct Registry<A, L> {
    entries: Vec<Entry<A, L>>,
    budget_bytes: u64,
    max_waiting: usize,
    n_wishes: u64,
    n_uses: u64,
}

impl<A: Clone, L> Registry<A, L> {
    /// Models of which none is loaded.
    pub(crate) fn new(
        rules: impl IntoIterator<Item = Rules>,
        budget_bytes: u64,
        max_waiting: usize,
        now: Instant,
    ) -> Self {
        Self {
            entries: rules.into_iter().map(|rules| Entry::new(rules, now)).collect(),
            budget_bytes,
            max_waiting,
            n_wishes: 0,
            n_uses: 0,
        }
    }

    /// Takes in one more model, which is not loaded.
    pub(crate) fn add(&mut self, rules: Rules, now: Instant) {
        self.entries.push(Entry::new(rules, now));
    }

    /// Requests that wait for a model to be loaded.
    pub(crate) fn n_waiting(&self) -> usize {
        self.entries.iter().map(|entry| entry.waiting.len()).sum()
    }

    /// Whether one more request may wait.
    pub(crate) fn has_room_to_wait(&self) -> bool {
        self.n_waiting() < self.max_waiting
    }

    /// A model as others see it.
    pub(crate) fn status(&self, idx: usize, now: Instant) -> Status<A> {
        let entry = &self.entries[idx];
        let (doing, app) = match &entry.stage {
            Stage::Unloaded => (Doing::Unloaded, None),
            Stage::Loading { .. } => (Doing::Loading, None),
            Stage::Loaded { app, .. } => (Doing::Loaded, Some(app.clone())),
            Stage::Unloading { .. } => (Doing::Unloading, None),
        };
        Status {
            // A model whose turn to be loaded has not come yet is on its way for all that clients can tell.
            doing: match (doing, &entry.wish) {
                (Doing::Unloaded, Some(wish)) if wish.reason != Reason::Start => Doing::Loading,
                (doing, _) => doing,
            },
            app,
            n_bytes: entry.n_bytes(),
            failure: entry.failure.as_ref().map(|(error, _)| error.clone()),
            n_waiting: entry.waiting.len(),
            n_running: entry.n_running,
            expires_in: if entry.n_running == 0 {
                entry.rest(now)
            } else {
                entry.stays()
            },
            counts: entry.counts,
        }
    }

    /// Asks for a model to run a request on.
    pub(crate) fn ask(&mut self, idx: usize, purpose: Purpose, now: Instant) -> Lookup<A, L> {
        self.forget_gone();
        let n_waiting = self.n_waiting();
        let entry = &mut self.entries[idx];
        if entry.is_open() && entry.waiting.is_empty() {
            return Lookup::Runs(self.run(idx, purpose, now));
        }
        if let (true, Some((error, _))) = (entry.is_stuck, &entry.failure) {
            return Lookup::Refused(error.clone());
        }
        if let (Stage::Unloaded, None, Some((error, at))) = (&entry.stage, &entry.wish, &entry.failure)
            && now.saturating_duration_since(*at) < RETRY_PAUSE
        {
            return Lookup::Refused(error.clone());
        }
        if n_waiting >= self.max_waiting {
            return Lookup::Refused(ApiError::QueueFull {
                waiting: n_waiting,
                retry_after_s: 1,
            });
        }
        let (to, answer) = oneshot::channel();
        entry.waiting.push_back(Waiting { to, purpose });
        self.wish(idx, Reason::Requests, now);
        Lookup::Waits(answer)
    }

    /// Runs a request on a model if it is loaded and stays. Nothing is wished where it is not.
    pub(crate) fn look(&mut self, idx: usize, now: Instant) -> Option<A> {
        self.entries[idx]
            .is_open()
            .then(|| self.run(idx, Purpose::Look, now))
    }

    /// Asks for a model to be loaded, whether a request waits for it or not.
    pub(crate) fn order(&mut self, idx: usize, now: Instant) {
        self.entries[idx].is_dismissed = false;
        self.wish(idx, Reason::Order, now);
    }

    /// Requests a load if there is room next to the models requested before.
    pub(crate) fn preload(&mut self, idx: usize, now: Instant) {
        self.wish(idx, Reason::Start, now);
    }

    fn wish(&mut self, idx: usize, reason: Reason, now: Instant) {
        let entry = &mut self.entries[idx];
        if entry.is_open() || matches!(entry.stage, Stage::Loading { .. }) {
            return;
        }
        match &mut entry.wish {
            Some(wish) if wish.reason == Reason::Order => {}
            Some(wish) => wish.reason = reason,
            None => {
                self.n_wishes += 1;
                entry.wish = Some(Wish {
                    number: self.n_wishes,
                    since: now,
                    reason,
                    needed_bytes: None,
                });
            }
        }
    }

    /// Tells a model to go once the requests on it have ended. One that is not loaded is not loaded for those who do not wait
    /// for it. Returns whether there was anything to unload.
    pub(crate) fn dismiss(&mut self, idx: usize) -> bool {
        let entry = &mut self.entries[idx];
        match entry.stage {
            Stage::Loaded { .. } => {
                entry.is_dismissed = true;
                true
            }
            Stage::Loading { .. } => {
                // It goes as soon as it is there, unless requests wait for it.
                entry.is_dismissed = entry.waiting.is_empty();
                true
            }
            Stage::Unloaded | Stage::Unloading { .. } => {
                if entry.waiting.is_empty() {
                    entry.wish = None;
                }
                false
            }
        }
    }

    /// Tells that a loaded model cannot continue, for instance because its device was lost.
    pub(crate) fn lost(&mut self, idx: usize, error: ApiError, now: Instant) {
        let entry = &mut self.entries[idx];
        if matches!(entry.stage, Stage::Loaded { .. }) && !entry.is_dismissed {
            entry.is_dismissed = true;
            entry.failure = Some((error, now));
        }
    }

    /// Tells that a request has ended.
    pub(crate) fn release(&mut self, idx: usize, purpose: Purpose, now: Instant) {
        let entry = &mut self.entries[idx];
        entry.n_running = entry
            .n_running
            .checked_sub(1)
            .expect("a request ends once, after it was let in");
        if let Purpose::Use(_) = purpose {
            entry.used_at = now;
        }
    }

    /// Returns the next action, which must be done before the next call.
    pub(crate) fn next(&mut self, now: Instant) -> Step<A, L> {
        self.forget_gone();
        let mut wait = None;
        for entry in &mut self.entries {
            entry.is_leaving = false;
        }
        while let Some((idx, wish)) = self.first_wish() {
            let Some(needed_bytes) = wish.needed_bytes else {
                return Step::Measure(idx);
            };
            match room_for(needed_bytes, self.budget_bytes, &self.residents()) {
                Room::Enough => {
                    self.entries[idx].stage = Stage::Loading {
                        n_bytes: needed_bytes,
                    };
                    return Step::Load(idx);
                }
                Room::Unload(_) | Room::AfterRequests(_) if wish.reason == Reason::Start => {
                    self.entries[idx].wish = None;
                    continue;
                }
                Room::Unload(gone) => self.make_leave(&gone),
                Room::AfterRequests(gone) => {
                    // A model that was loaded after this wish gets the full patience too; otherwise the
                    // waiting load would unload it at once.
                    let loaded_at = gone.iter().map(|&idx| self.entries[idx].loaded_at);
                    let since = loaded_at.fold(wish.since, Instant::max);
                    let rest = PATIENCE.saturating_sub(now.saturating_duration_since(since));
                    if rest.is_zero() {
                        self.make_leave(&gone);
                    } else {
                        wait = Some(rest);
                    }
                }
                Room::Never { pinned_bytes } => {
                    let error = ApiError::ModelTooLarge {
                        model: self.entries[idx].rules.name.clone(),
                        needed_bytes,
                        budget_bytes: self.budget_bytes,
                        pinned_bytes,
                    };
                    let answers = self.fail(idx, &error, now);
                    return match wish.reason {
                        Reason::Order => Step::Refuse(idx, error, answers),
                        Reason::Requests | Reason::Start => Step::Answer(answers),
                    };
                }
            }
            break;
        }
        for (idx, entry) in self.entries.iter_mut().enumerate() {
            let Stage::Loaded { app, n_bytes } = &entry.stage else {
                continue;
            };
            let is_over =
                entry.is_leaving || entry.is_dismissed || entry.rest(now).is_some_and(|rest| rest.is_zero());
            if is_over && entry.n_running == 0 {
                let (app, n_bytes) = (app.clone(), *n_bytes);
                entry.stage = Stage::Unloading { n_bytes };
                entry.is_dismissed = false;
                return Step::Unload(idx, app);
            }
        }
        // Admit the requests that waited for a model that stays after all.
        let answers: Vec<_> = (0..self.entries.len())
            .flat_map(|idx| {
                if self.entries[idx].is_open() {
                    self.let_in(idx, now)
                } else {
                    Vec::new()
                }
            })
            .collect();
        if !answers.is_empty() {
            return Step::Answer(answers);
        }
        let rests = self.entries.iter().filter_map(|entry| entry.rest(now));
        Step::Wait(rests.chain(wait).min())
    }

    /// Reports the facts of a model that no request has asked for yet.
    pub(crate) fn seen(&mut self, idx: usize, measured: Result<u64, String>, now: Instant) {
        let failure = measured.err().map(|reason| (self.failure(idx, reason), now));
        let entry = &mut self.entries[idx];
        if matches!(entry.stage, Stage::Unloaded) && entry.wish.is_none() {
            entry.failure = failure;
        }
    }

    /// Tells that the files of a model are others now: why it could not be loaded before does not hold any more.
    pub(crate) fn changed(&mut self, idx: usize) {
        let entry = &mut self.entries[idx];
        if !entry.is_stuck {
            entry.failure = None;
        }
    }

    /// Reports the memory of a model.
    pub(crate) fn measured(
        &mut self,
        idx: usize,
        measured: Result<u64, String>,
        now: Instant,
    ) -> Vec<Answer<A, L>> {
        match measured {
            Ok(n_bytes) => {
                if let Some(wish) = &mut self.entries[idx].wish {
                    wish.needed_bytes = Some(n_bytes);
                }
                Vec::new()
            }
            Err(reason) => {
                let error = self.failure(idx, reason);
                self.fail(idx, &error, now)
            }
        }
    }

    /// Reports the end of a load: the model and its memory, or the error.
    pub(crate) fn loaded(
        &mut self,
        idx: usize,
        loaded: Result<(A, u64), String>,
        now: Instant,
    ) -> Vec<Answer<A, L>> {
        let entry = &mut self.entries[idx];
        match loaded {
            Ok((app, n_bytes)) => {
                entry.stage = Stage::Loaded { app, n_bytes };
                entry.wish = None;
                entry.failure = None;
                entry.keep_alive = None;
                entry.used_at = now;
                entry.loaded_at = now;
                entry.counts.loads += 1;
                self.n_uses += 1;
                self.entries[idx].used = self.n_uses;
                self.let_in(idx, now)
            }
            Err(reason) => {
                entry.stage = Stage::Unloaded;
                entry.is_dismissed = false;
                let error = self.failure(idx, reason);
                self.fail(idx, &error, now)
            }
        }
    }

    /// Tells that a model is not gone though it was unloaded: it keeps its bytes until it is, and is not loaded again before.
    pub(crate) fn stuck(&mut self, idx: usize, error: &ApiError, now: Instant) -> Vec<Answer<A, L>> {
        self.entries[idx].is_stuck = true;
        self.fail(idx, error, now)
    }

    /// Tells that a model is gone.
    pub(crate) fn unloaded(&mut self, idx: usize) {
        let entry = &mut self.entries[idx];
        entry.stage = Stage::Unloaded;
        if std::mem::take(&mut entry.is_stuck) {
            entry.failure = None;
        }
        entry.counts.unloads += 1;
    }

    fn failure(&self, idx: usize, reason: String) -> ApiError {
        ApiError::ModelFailed {
            model: self.entries[idx].rules.name.clone(),
            reason,
        }
    }

    /// Refuses those who wait for models whose load has not begun, and gives up all wishes for these.
    pub(crate) fn refuse_what_waits(&mut self, error: &ApiError) -> Vec<Answer<A, L>> {
        let mut answers = Vec::new();
        for (idx, entry) in self.entries.iter_mut().enumerate() {
            if entry.is_open() || matches!(entry.stage, Stage::Loading { .. }) {
                continue;
            }
            entry.wish = None;
            answers.extend(entry.waiting.drain(..).map(|waiting| Answer {
                idx,
                purpose: waiting.purpose,
                to: waiting.to,
                reply: Err(error.clone()),
            }));
        }
        answers
    }

    /// Gives up a wish, and tells those who wait why.
    fn fail(&mut self, idx: usize, error: &ApiError, now: Instant) -> Vec<Answer<A, L>> {
        let entry = &mut self.entries[idx];
        entry.wish = None;
        entry.counts.failures += 1;
        entry.failure = Some((error.clone(), now));
        let waiting = std::mem::take(&mut entry.waiting);
        let answer = |waiting: Waiting<L>| Answer {
            idx,
            purpose: waiting.purpose,
            to: waiting.to,
            reply: Err(error.clone()),
        };
        waiting.into_iter().map(answer).collect()
    }

    /// Lets in all who wait for a loaded model.
    fn let_in(&mut self, idx: usize, now: Instant) -> Vec<Answer<A, L>> {
        let entry = &mut self.entries[idx];
        entry.wish = None;
        let waiting = std::mem::take(&mut entry.waiting);
        waiting
            .into_iter()
            .filter(|waiting| !waiting.to.is_closed())
            .map(|waiting| Answer {
                idx,
                purpose: waiting.purpose,
                reply: Ok(self.run(idx, waiting.purpose, now)),
                to: waiting.to,
            })
            .collect()
    }

    fn run(&mut self, idx: usize, purpose: Purpose, now: Instant) -> A {
        let entry = &mut self.entries[idx];
        let Stage::Loaded { app, .. } = &entry.stage else {
            unreachable!("requests run on loaded models only");
        };
        let app = app.clone();
        entry.n_running += 1;
        if let Purpose::Use(keep_alive) = purpose {
            self.n_uses += 1;
            entry.used = self.n_uses;
            entry.used_at = now;
            entry.keep_alive = keep_alive;
        }
        app
    }

    /// Removes requests that no longer wait, and the loads that only they wanted.
    fn forget_gone(&mut self) {
        for entry in &mut self.entries {
            entry.waiting.retain(|waiting| !waiting.to.is_closed());
            let is_for_requests = entry.wish.is_some_and(|wish| wish.reason == Reason::Requests);
            if entry.waiting.is_empty() && is_for_requests && !matches!(entry.stage, Stage::Loading { .. }) {
                entry.wish = None;
            }
        }
    }

    /// The model that is to be loaded next.
    fn first_wish(&self) -> Option<(usize, Wish)> {
        (self.entries.iter().enumerate())
            .filter(|(_, entry)| matches!(entry.stage, Stage::Unloaded))
            .filter_map(|(idx, entry)| Some((idx, entry.wish?)))
            .min_by_key(|(_, wish)| wish.number)
    }

    fn residents(&self) -> Vec<Resident> {
        (self.entries.iter().enumerate())
            .filter(|(_, entry)| !matches!(entry.stage, Stage::Unloaded))
            .map(|(idx, entry)| Resident {
                idx,
                n_bytes: entry.n_bytes(),
                // A stuck model cannot be unloaded to make room.
                is_pinned: entry.rules.is_pinned || entry.is_stuck,
                is_busy: entry.n_running > 0,
                used: entry.used,
            })
            .collect()
    }

    fn make_leave(&mut self, gone: &[usize]) {
        for &idx in gone {
            self.entries[idx].is_leaving = true;
        }
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;

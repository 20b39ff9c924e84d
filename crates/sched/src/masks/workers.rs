//! [`MaskWorkers`]: threads that compute the masks of constrained samples, so that the engine's thread never
//! does.
//!
//! A mask may take longer than a step, and other sequences must not wait for it. Invariants: each order comes
//! back exactly once, even if a constraint panics; threads are started on first use and end with the engine, and
//! if the system starts none, the engine's thread does their work;
//! a mask that a step waits for has priority over all others, and never waits for constraints that begin;
//! work for later steps runs after the masks of the step are handed over, and only while no order waits.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use crate::{
    arena::SeqId,
    masks::{
        constraint::{ConstraintFailure, ConstraintSource},
        next_mask::Arrival,
        text::{LookAhead, MaskedText, Seen, SharedText, refuses},
    },
    sync::{Arc, Condvar, Mutex, thread},
};

/// Maximum number of threads.
const MAX_THREADS: usize = 4;

/// Maximum number of threads that begin constraints, which may take long.
const MAX_BEGINNING: usize = MAX_THREADS - 1;

/// An order to compute a mask.
pub(crate) struct MaskOrder {
    pub(crate) seq: SeqId,
    pub(crate) stage: MaskStage,
    /// Words per mask.
    pub(crate) n_words: usize,
    /// Work beyond the next mask.
    pub(crate) ahead: LookAhead,
    /// Buffer for the masks.
    pub(crate) words: Vec<u32>,
    /// Where a step waits for it, if one may.
    pub(crate) arrival: Option<Arc<Arrival>>,
}

/// The progress of a sample.
pub(crate) enum MaskStage {
    /// The sample begins.
    First(ConstraintSource),
    /// These tokens were sampled.
    Next(Arc<SharedText>, Vec<u32>),
}

impl MaskStage {
    fn begins(&self) -> bool {
        matches!(self, Self::First(_))
    }
}

/// A computed mask, with those after draft tokens.
pub(crate) struct MaskResult {
    pub(crate) seq: SeqId,
    pub(crate) words: Vec<u32>,
    /// The text, for the next order, and whether nothing may follow.
    pub(crate) text: Result<(Arc<SharedText>, bool), ConstraintFailure>,
    /// The likely continuation; each token has a mask.
    pub(crate) seen: Seen,
    /// Time of the next mask.
    pub(crate) took: Duration,
    /// Time of the others.
    pub(crate) took_ahead: Duration,
}

/// The likely continuation after the tokens of a completed order.
pub(crate) struct Foreseen {
    pub(crate) seq: SeqId,
    pub(crate) seen: Seen,
    /// Time to find the forced tokens.
    pub(crate) took: Duration,
}

/// Remaining work of a completed order: find the tokens forced after its draft, then roll both back.
struct Rest {
    seq: SeqId,
    text: Arc<SharedText>,
    /// Number of its tokens.
    n_sampled: usize,
    n_words: usize,
    /// The mask after the draft.
    mask: Vec<u32>,
    seen: Seen,
    n_forced: usize,
    patience: Duration,
}

pub(crate) struct MaskWorkers {
    desk: Arc<Desk>,
    threads: Vec<thread::JoinHandle<()>>,
    /// Returns the properties of a new thread.
    builder: fn() -> thread::Builder,
    /// Number of unfinished orders.
    n_open: usize,
}

/// State shared by the engine's thread and the workers.
struct Desk {
    papers: Mutex<Papers>,
    has_order: Condvar,
    has_result: Condvar,
}

#[derive(Default)]
struct Papers {
    /// Orders that a step may wait for.
    promised: VecDeque<MaskOrder>,
    /// The other orders.
    orders: VecDeque<MaskOrder>,
    /// Work that no step waits for.
    rests: VecDeque<Rest>,
    results: Vec<MaskResult>,
    foreseen: Vec<Foreseen>,
    n_idle: usize,
    /// Number of threads that are beginning a constraint.
    n_beginning: usize,
    is_closed: bool,
}

impl Papers {
    fn put(&mut self, order: MaskOrder) {
        if order.arrival.is_some() {
            self.promised.push_back(order);
        } else {
            self.orders.push_back(order);
        }
    }

    fn n_orders(&self) -> usize {
        self.promised.len() + self.orders.len()
    }

    /// Returns the next order that a thread may execute.
    fn take(&mut self) -> Option<MaskOrder> {
        if let Some(order) = self.promised.pop_front() {
            return Some(order);
        }
        let may_begin = self.n_beginning < MAX_BEGINNING;
        let idx = (self.orders.iter()).position(|order| may_begin || !order.stage.begins())?;
        let order = self.orders.remove(idx)?;
        self.n_beginning += usize::from(order.stage.begins());
        Some(order)
    }
}

const NOT_POISONED: &str = "nothing panics while it holds this lock";

impl MaskWorkers {
    pub(crate) fn new() -> Self {
        Self::with(|| thread::Builder::new().name("masks".to_owned()))
    }

    /// Starts its threads by this builder.
    pub(crate) fn with(builder: fn() -> thread::Builder) -> Self {
        Self {
            builder,
            desk: Arc::new(Desk {
                papers: Mutex::new(Papers::default()),
                has_order: Condvar::new(),
                has_result: Condvar::new(),
            }),
            threads: Vec::new(),
            n_open: 0,
        }
    }

    /// Returns the number of unfinished orders.
    pub(crate) fn n_open(&self) -> usize {
        self.n_open
    }

    /// Returns the number of finished orders that were not taken yet.
    #[cfg(test)]
    pub(crate) fn n_results(&self) -> usize {
        self.desk.papers.lock().expect(NOT_POISONED).results.len()
    }

    pub(crate) fn order(&mut self, order: MaskOrder) {
        self.n_open += 1;
        let needs_thread = {
            let mut papers = self.desk.papers.lock().expect(NOT_POISONED);
            papers.put(order);
            papers.n_orders() > papers.n_idle
        };
        if needs_thread && self.threads.len() < MAX_THREADS {
            let desk = Arc::clone(&self.desk);
            match (self.builder)().spawn(move || work(&desk)) {
                Ok(thread) => self.threads.push(thread),
                Err(_) if self.threads.is_empty() => work_off(&self.desk),
                // The other threads do it.
                Err(_) => {}
            }
        }
        self.desk.has_order.notify_one();
    }

    /// Waits for all orders, at most for `patience`, and moves the results into `results`.
    pub(crate) fn wait_for_all(&mut self, patience: Duration, results: &mut Vec<MaskResult>) {
        let n_open = self.n_open;
        self.wait(|n_results| n_results == n_open, Some(patience), results);
    }

    /// Waits for at least one order, and moves the results into `results`.
    pub(crate) fn wait_for_one(&mut self, results: &mut Vec<MaskResult>) {
        debug_assert!(self.n_open > 0, "nothing comes back where nothing is open");
        self.wait(|n_results| n_results > 0, None, results);
    }

    fn wait(
        &mut self,
        is_enough: impl Fn(usize) -> bool,
        patience: Option<Duration>,
        results: &mut Vec<MaskResult>,
    ) {
        let started = Instant::now();
        let mut papers = self.desk.papers.lock().expect(NOT_POISONED);
        while !is_enough(papers.results.len()) {
            match patience {
                None => papers = self.desk.has_result.wait(papers).expect(NOT_POISONED),
                Some(patience) => {
                    let Some(left) = patience
                        .checked_sub(started.elapsed())
                        .filter(|left| !left.is_zero())
                    else {
                        break;
                    };
                    let waited = self.desk.has_result.wait_timeout(papers, left);
                    (papers, _) = waited.expect(NOT_POISONED);
                }
            }
        }
        self.n_open -= papers.results.len();
        results.append(&mut papers.results);
    }

    /// Returns the continuations found since the last call.
    pub(crate) fn take_foreseen(&mut self) -> Vec<Foreseen> {
        std::mem::take(&mut self.desk.papers.lock().expect(NOT_POISONED).foreseen)
    }
}

impl Drop for MaskWorkers {
    fn drop(&mut self) {
        if let Ok(mut papers) = self.desk.papers.lock() {
            papers.is_closed = true;
            papers.promised.clear();
            papers.orders.clear();
            papers.rests.clear();
        }
        self.desk.has_order.notify_all();
        for thread in self.threads.drain(..) {
            // A worker catches the panics of constraints and has none of its own.
            let _ = thread.join();
        }
    }
}

/// The next task of a thread.
enum Task {
    Order(MaskOrder),
    Rest(Rest),
}

impl Task {
    /// Returns whether it begins a constraint.
    fn begins(&self) -> bool {
        matches!(self, Self::Order(order) if order.stage.begins())
    }

    fn run(self, desk: &Desk) {
        match self {
            Self::Order(order) => carry_out(desk, order),
            Self::Rest(rest) => look_on(desk, rest),
        }
    }
}

fn work(desk: &Desk) {
    let mut has_begun = false;
    loop {
        let mut papers = desk.papers.lock().expect(NOT_POISONED);
        papers.n_beginning -= usize::from(has_begun);
        let task = loop {
            if papers.is_closed {
                return;
            }
            if let Some(order) = papers.take() {
                break Task::Order(order);
            }
            if let Some(rest) = papers.rests.pop_front() {
                break Task::Rest(rest);
            }
            papers.n_idle += 1;
            papers = desk.has_order.wait(papers).expect(NOT_POISONED);
            papers.n_idle -= 1;
        };
        drop(papers);
        has_begun = task.begins();
        task.run(desk);
    }
}

/// Does the work that waits on this thread, because there is no other.
fn work_off(desk: &Desk) {
    let next = || {
        let mut papers = desk.papers.lock().expect(NOT_POISONED);
        let order = papers.take().map(Task::Order);
        order.or_else(|| papers.rests.pop_front().map(Task::Rest))
    };
    while let Some(task) = next() {
        let has_begun = task.begins();
        task.run(desk);
        desk.papers.lock().expect(NOT_POISONED).n_beginning -= usize::from(has_begun);
    }
}

impl Desk {
    /// Hands a result to the engine, and its masks to a waiting step; then `rest` can be done.
    fn hand_over(&self, result: MaskResult, n_words: usize, arrival: Option<&Arrival>, rest: Option<Rest>) {
        let is_needed = matches!(result.text, Ok((_, is_done)) if !is_done);
        if let Some(arrival) = arrival.filter(|_| is_needed) {
            arrival.put(&result.words, n_words);
        }
        {
            let mut papers = self.papers.lock().expect(NOT_POISONED);
            papers.results.push(result);
            papers.rests.extend(rest);
            // Under one lock: a step that has seen the mask must find the result, and the engine, which
            // orders the next mask after the result, must find this one handed over. Otherwise it would be
            // taken for the next one.
            if let Some(arrival) = arrival {
                arrival.hand_over(is_needed);
            }
        }
        self.has_result.notify_one();
    }

    /// Returns whether no order waits for a thread.
    fn is_quiet(&self) -> bool {
        let papers = self.papers.lock().expect(NOT_POISONED);
        !papers.is_closed && papers.n_orders() <= papers.n_idle
    }
}

/// Returns the result of the function, with a panic turned into a failure.
fn caught<T>(compute: impl FnOnce() -> Result<T, ConstraintFailure>) -> Result<T, ConstraintFailure> {
    catch_unwind(AssertUnwindSafe(compute)).unwrap_or_else(|_| {
        Err(ConstraintFailure {
            reason: "it panicked".to_owned(),
        })
    })
}

/// Computes the masks of an order.
fn carry_out(desk: &Desk, order: MaskOrder) {
    let MaskOrder {
        seq,
        stage,
        n_words,
        ahead,
        mut words,
        arrival,
    } = order;
    let started = Instant::now();
    let (mut took, mut took_ahead) = (None, Duration::ZERO);
    let mut seen = Seen {
        at: ahead.at,
        ..Seen::default()
    };
    let mut rest = None;
    let text = caught(|| {
        let (text, tokens) = match stage {
            MaskStage::First(source) => (Arc::new(SharedText::new(MaskedText::begin(source))), Vec::new()),
            MaskStage::Next(text, tokens) => (text, tokens),
        };
        let mut open = text.open();
        let is_done = caught(|| {
            open.commit(&tokens)?;
            if !open.is_done() {
                open.mask(n_words, &mut words)?;
            }
            let is_done = open.is_done();
            took = Some(started.elapsed());
            if is_done {
                return Ok(true);
            }
            seen.n_drafted = open.follow(n_words, &ahead.draft, &mut words);
            seen.is_refused = refuses(&ahead.draft, seen.n_drafted, n_words, &words);
            seen.tokens.extend_from_slice(&ahead.draft[..seen.n_drafted]);
            if ahead.is_for_this_step {
                let begun = Instant::now();
                let has_time = || begun.elapsed() < ahead.patience;
                let forced = open.follow_forced(n_words, ahead.n_forced, &mut words, &has_time);
                seen.tokens.extend(forced);
                open.come_back()?;
            }
            Ok(false)
        });
        let n_sampled = open.n_sampled();
        drop(open);
        took_ahead = started.elapsed().saturating_sub(took.unwrap_or_default());
        let is_done = is_done?;
        if !is_done && !ahead.is_for_this_step && ahead.n_forced + seen.n_drafted > 0 {
            rest = Some(Rest {
                seq,
                text: Arc::clone(&text),
                n_sampled,
                n_words,
                mask: words[words.len() - n_words..].to_vec(),
                seen: seen.clone(),
                n_forced: ahead.n_forced,
                patience: ahead.patience,
            });
        }
        Ok((text, is_done))
    });
    let result = MaskResult {
        seq,
        words,
        text,
        seen,
        took: took.unwrap_or_else(|| started.elapsed()),
        took_ahead,
    };
    desk.hand_over(result, n_words, arrival.as_deref(), rest);
}

/// Finds the tokens forced after the draft of a completed order, until an order waits for a thread or for
/// this text; then rolls both back.
fn look_on(desk: &Desk, rest: Rest) {
    let Rest {
        seq,
        text,
        n_sampled,
        n_words,
        mask: mut words,
        mut seen,
        n_forced,
        patience,
    } = rest;
    let Some(mut open) = text.open_at(n_sampled) else {
        return;
    };
    let begun = Instant::now();
    let has_time = || begun.elapsed() < patience && !text.is_wanted() && desk.is_quiet();
    let forced = open.follow_forced(n_words, n_forced, &mut words, &has_time);
    if !forced.is_empty() {
        seen.tokens.extend(forced);
        let took = begun.elapsed();
        let mut papers = desk.papers.lock().expect(NOT_POISONED);
        papers.foreseen.push(Foreseen { seq, seen, took });
    }
    // A failure shows when the next token is committed.
    let _ = caught(|| open.come_back());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{arena::Arena, masks::constraint::TokenConstraint};

    struct Anything;

    impl TokenConstraint for Anything {
        fn mask(&mut self, _: &mut [u32]) -> Result<(), ConstraintFailure> {
            Ok(())
        }

        fn commit(&mut self, _: u32) -> Result<(), ConstraintFailure> {
            Ok(())
        }

        fn is_done(&self) -> bool {
            false
        }

        fn rollback(&mut self, _: usize) -> Result<(), ConstraintFailure> {
            Ok(())
        }
    }

    #[test]
    fn constraints_that_begin_leave_a_thread_to_masks_that_are_waited_for() {
        let seq = Arena::new().insert(());
        let order = |stage| MaskOrder {
            seq,
            stage,
            n_words: 0,
            ahead: LookAhead::default(),
            words: Vec::new(),
            arrival: None,
        };
        let first = || order(MaskStage::First(ConstraintSource::new(|| Box::new(Anything))));
        let next = |token| {
            let source = ConstraintSource::new(|| Box::new(Anything));
            let text = SharedText::new(MaskedText::begin(source));
            order(MaskStage::Next(Arc::new(text), vec![token]))
        };
        let token_of = |order: Option<MaskOrder>| match order.map(|order| order.stage) {
            Some(MaskStage::Next(_, tokens)) => tokens.first().copied(),
            _ => None,
        };
        let mut papers = Papers::default();
        for _ in 0..8 {
            papers.put(first());
        }
        for n_beginning in 1..=MAX_BEGINNING {
            assert!(papers.take().is_some_and(|order| order.stage.begins()));
            assert_eq!(papers.n_beginning, n_beginning);
        }
        assert!(papers.take().is_none(), "a thread is left");
        papers.put(next(1));
        papers.promised.push_back(next(2));
        assert_eq!(papers.n_orders(), 8 - MAX_BEGINNING + 2);
        assert_eq!(token_of(papers.take()), Some(2), "what is promised goes first");
        assert_eq!(token_of(papers.take()), Some(1));
        assert!(papers.take().is_none());
        papers.n_beginning -= 1;
        assert!(papers.take().is_some_and(|order| order.stage.begins()));
    }
}

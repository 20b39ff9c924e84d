//! [`DraftLedger`]: the time that a draft model may lose, and when it is asked.
//!
//! The weighing of single passes uses expected times and probabilities. A part of a step that is not measured,
//! or a wrong expectation, shows up here: every pass is booked as a loss when it runs, and the gain of its
//! draft when the step is done, so that passes without a draft in any step are paid too. Steps without drafts
//! add a share of their time to the balance, and nothing is drafted while it is negative. Drafts that are not
//! expected to pay are made as probes, at intervals of many times their cost. Between two probes the question
//! is skipped, and if drafts have not paid for long, the hidden states for them are not stored. Invariant:
//! drafts and probes together lose at most one part in [`LENT_SHARE`] of all time, apart from the initial
//! credit and from prompts that are not paid off yet.

/// Initial credit, in steps: time that drafts may lose before they have gained anything.
const LENT_STEPS: i64 = 2;

/// Maximum credit from gains, in steps: the most that is lost before unprofitable drafts are noticed.
const MAX_SAVED_STEPS: i64 = 4;

/// A larger loss than this, in steps, by one step or by the passes before it, counts in full only if such
/// losses are usual. A step or pass may lose its processor for a while, which says nothing about drafts.
const MAX_LOSS_STEPS: i64 = 2;

/// Number of recent losses; their median is the usual loss.
const N_RECENT: usize = 5;

/// Divisor of the time of steps without drafts that is added to the credit.
const LENT_SHARE: i64 = 64;

/// Initial and largest share of step time, one part in this many, for probes. It halves after each probe until
/// drafts are expected to pay.
const PROBE_SHARE: u64 = 64;
const LAST_PROBE_SHARE: u64 = 512;

/// Divisor of a step's time that pays off what computing prompts for drafts took. A prompt is computed only
/// if an answer of the expected length can pay it off.
pub(crate) const PAID_SHARE: u64 = 8;

/// Maximum number of steps in which the question is skipped, apart from those before a probe that collects
/// states again. Times change meanwhile, and drafts may pay then.
const MAX_REST_STEPS: u64 = 32;

/// Number of steps before a probe in which hidden states are stored. If storing resumes, the question is
/// skipped until then.
const WINDOW_STEPS: u64 = 64;

/// The gains and losses of a draft model, and its probes; see the module.
#[derive(Debug)]
pub(crate) struct DraftLedger {
    /// The time that may still be lost, in 1/[`LENT_SHARE`] microseconds; `None` before the first step.
    balance: Option<i64>,
    /// Time spent on prompts and not paid off yet, in microseconds.
    unpaid_us: u64,
    /// Recent losses of passes before a step.
    of_passes: Recent,
    /// Recent losses of steps with drafts.
    of_steps: Recent,
    /// Total time of steps since the last probe, in microseconds.
    untried_us: u64,
    /// Share of that time that the next probe may take, one part in this many.
    share: u64,
    /// Cost of a probe, and the duration of a step, when last asked.
    probe_us: u64,
    step_us: u64,
    /// Whether to repeat the last probe: it caught up sequences, which does not show how long a pass takes.
    again: bool,
    /// The current rest, in which the question is skipped.
    rest: Option<Rest>,
    /// Number of steps.
    n_steps: u64,
    states: States,
}

/// The hidden states of the first model that drafts may need.
#[derive(Debug)]
struct States {
    are_needed: bool,
    are_kept: bool,
    /// The step until which they are stored for a new sequence.
    kept_until: u64,
}

/// A probe before a step for which drafts are not expected to pay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    /// Rows of the step, and its duration without drafts.
    pub(crate) n_rows: usize,
    pub(crate) step_us: u64,
    pub(crate) cost_us: u64,
    /// Whether it must catch up sequences.
    pub(crate) catches_up: bool,
    /// Whether drafts might pay with other sequences.
    pub(crate) is_hopeful: bool,
}

/// Steps of `n_rows` rows before which nothing is asked.
#[derive(Clone, Copy, Debug)]
struct Rest {
    n_rows: usize,
    until: u64,
}

/// The newest losses of one kind, in microseconds.
#[derive(Debug, Default)]
struct Recent {
    losses: [i64; N_RECENT],
    next: usize,
}

impl Recent {
    /// Returns how much of a loss counts: all of it, unless it exceeds both [`MAX_LOSS_STEPS`] and twice the
    /// usual loss.
    fn limit(&mut self, loss: i64, step: i64) -> i64 {
        self.losses[self.next] = loss;
        self.next = (self.next + 1) % N_RECENT;
        let mut sorted = self.losses;
        sorted.sort_unstable();
        loss.min((MAX_LOSS_STEPS * step).max(2 * sorted[N_RECENT / 2]))
    }
}

/// Converts microseconds, limited so that products do not overflow.
fn of(us: u64) -> i64 {
    i64::try_from(us)
        .map_or(i64::MAX, |us| us)
        .min(i64::MAX / (LENT_SHARE * MAX_SAVED_STEPS * 4))
}

impl DraftLedger {
    /// Creates the ledger of a draft model that reads hidden states or does not.
    pub(crate) fn new(needs_states: bool) -> Self {
        Self {
            balance: None,
            unpaid_us: 0,
            of_passes: Recent::default(),
            of_steps: Recent::default(),
            untried_us: 0,
            share: PROBE_SHARE,
            probe_us: 0,
            step_us: 1,
            again: false,
            rest: None,
            n_steps: 0,
            states: States {
                are_needed: needs_states,
                are_kept: true,
                kept_until: 0,
            },
        }
    }

    /// Returns whether a draft may be made.
    pub(crate) fn allows(&self) -> bool {
        self.balance.is_none_or(|balance| balance >= 0)
    }

    /// Returns whether hidden states are stored, if drafts need them.
    pub(crate) fn keeps_states(&self) -> bool {
        self.states.are_kept
    }

    /// Returns whether the question is skipped before a step of `n_rows` rows: no loss is allowed, or drafts
    /// did not pay in such steps just now.
    pub(crate) fn rests(&self, n_rows: usize) -> bool {
        let is_resting = |rest: Rest| rest.n_rows == n_rows && self.n_steps < rest.until;
        !self.allows() || self.rest.is_some_and(is_resting)
    }

    /// Returns whether a step need not wait for drafts: none are allowed, or none will be made unless steps
    /// change.
    pub(crate) fn expects_none(&self) -> bool {
        let lasts = |rest: Rest| self.n_steps < rest.until || self.n_steps_to(self.probe_us) > 0;
        !self.allows() || self.rest.is_some_and(lasts)
    }

    /// Ends the rest because the sequences have changed.
    pub(crate) fn end_rest(&mut self) {
        self.rest = None;
    }

    /// Records a new sequence for which a probe costs `cost_us`. Its states are stored from the start if a
    /// probe may come soon.
    pub(crate) fn begin(&mut self, cost_us: u64) {
        self.end_rest();
        if self.n_steps_to(cost_us) <= WINDOW_STEPS {
            self.states.are_kept = true;
            self.states.kept_until = self.n_steps + WINDOW_STEPS;
        }
    }

    /// Records that drafts are expected to pay.
    pub(crate) fn note_paying(&mut self) {
        self.rest = None;
        self.share = PROBE_SHARE;
        self.states.are_kept = true;
    }

    /// Records that no sequence of a step with `n_rows` rows can have a draft now.
    pub(crate) fn note_no_pass(&mut self, n_rows: usize) {
        self.again = false;
        self.rest_for(n_rows, MAX_REST_STEPS);
    }

    /// Returns whether to make a probe now. If other sequences give no hope either and earlier probes failed,
    /// hidden states are stored only shortly before a probe.
    pub(crate) fn is_due(&mut self, probe: &Probe) -> bool {
        self.step_us = probe.step_us;
        self.probe_us = probe.cost_us;
        if std::mem::take(&mut self.again) {
            return true;
        }
        let n_left = self.n_steps_to(probe.cost_us);
        let n_rest = if n_left > 0 {
            self.states.are_kept = probe.is_hopeful
                || !self.states.are_needed
                || self.share < LAST_PROBE_SHARE
                || n_left <= WINDOW_STEPS
                || self.n_steps < self.states.kept_until;
            n_left.min(MAX_REST_STEPS)
        } else if self.states.are_kept {
            self.untried_us = 0;
            self.share = (2 * self.share).min(LAST_PROBE_SHARE);
            self.rest = None;
            self.again = probe.catches_up;
            return true;
        } else {
            self.states.are_kept = true;
            WINDOW_STEPS
        };
        self.rest_for(probe.n_rows, n_rest);
        false
    }

    fn rest_for(&mut self, n_rows: usize, n_steps: u64) {
        let until = self.n_steps + n_steps;
        self.rest = Some(Rest { n_rows, until });
    }

    /// Returns the number of steps until a probe of `cost_us` is due.
    fn n_steps_to(&self, cost_us: u64) -> u64 {
        let due_us = cost_us.saturating_mul(self.share);
        due_us
            .saturating_sub(self.untried_us)
            .div_ceil(self.step_us.max(1))
    }

    /// Books the work before a step: passes that draft, and passes that compute prompts. A step without
    /// drafts takes `step_us`.
    pub(crate) fn note_passes(&mut self, drafting_us: u64, prompt_us: u64, step_us: u64) {
        self.unpaid_us = self.unpaid_us.saturating_add(prompt_us);
        let loss = self.of_passes.limit(of(drafting_us), of(step_us.max(1)));
        self.add(-loss, step_us);
    }

    /// Books the time spent on finding that no pass pays.
    pub(crate) fn note_asking(&mut self, us: u64, step_us: u64) {
        let loss = of(us).min(MAX_LOSS_STEPS * of(step_us.max(1)));
        self.add(-loss, step_us);
    }

    /// Books a step of `us` without a draft of the model.
    pub(crate) fn note_plain(&mut self, us: u64) {
        self.note_step(us);
        let us = of(us);
        let lent = LENT_STEPS * LENT_SHARE * us;
        let balance = *self.balance.get_or_insert(lent);
        // The credit never grows beyond its initial size.
        if balance < lent {
            self.balance = Some(balance + us);
        }
    }

    /// Books a step that took `us` with the model's drafts and produced what takes `plain_us` without them; a
    /// step without any drafts takes `step_us`.
    pub(crate) fn note_drafted(&mut self, us: u64, plain_us: u64, step_us: u64) {
        self.note_step(step_us);
        let loss = (self.of_steps).limit(of(us) - of(plain_us), of(step_us.max(1)));
        self.add(-loss, step_us);
    }

    fn note_step(&mut self, step_us: u64) {
        self.n_steps += 1;
        self.untried_us = self.untried_us.saturating_add(step_us);
        self.pay_off(step_us);
    }

    /// Pays off a part of the time spent on prompts, at a step of `step_us`.
    fn pay_off(&mut self, step_us: u64) {
        let paid = self.unpaid_us.min(step_us / PAID_SHARE);
        self.unpaid_us -= paid;
        if paid > 0 {
            self.add(-of(paid), step_us);
        }
    }

    /// Adds a gain or a loss in microseconds.
    fn add(&mut self, gain_us: i64, step_us: u64) {
        let step = of(step_us.max(1));
        let balance = self.balance.unwrap_or(LENT_STEPS * LENT_SHARE * step);
        let balance = balance.saturating_add(gain_us.saturating_mul(LENT_SHARE));
        self.balance = Some(balance.min(MAX_SAVED_STEPS * LENT_SHARE * step));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates 10,000 steps of 100 microseconds. A pass takes `pass` percent of a step. The draft's tokens,
    /// with the step that verifies them, take `percent` of their time without; `None` if the pass gives no
    /// draft. Returns the number of steps with a pass, and the total time in percent of the time without
    /// drafts.
    fn run(pass: u64, percent: Option<u64>) -> (usize, u64) {
        let mut ledger = DraftLedger::new(false);
        let (mut n_passes, mut us, mut plain_us) = (0, 0, 0);
        for _ in 0..10_000 {
            plain_us += 100;
            let passes = ledger.allows();
            if passes {
                n_passes += 1;
                us += pass;
                ledger.note_passes(pass, 0, 100);
            }
            if let Some(percent) = percent.filter(|_| passes) {
                us += percent;
                ledger.note_drafted(percent, 100, 100);
            } else {
                us += 100;
                ledger.note_plain(100);
            }
        }
        (n_passes, us * 100 / plain_us)
    }

    #[test]
    fn drafts_that_lose_are_tried_now_and_then() {
        for (pass, percent) in [
            (5, Some(100)),
            (20, Some(100)),
            (0, Some(120)),
            (50, Some(100)),
            (150, Some(150)),
            (10, None),
            (150, None),
            (500, Some(100)),
            (0, Some(600)),
            (700, None),
        ] {
            let (n_passes, time) = run(pass, percent);
            assert!(n_passes >= 20, "{pass} {percent:?}: {n_passes}");
            assert!(time <= 102, "{pass} {percent:?}: {time}, {n_passes}");
        }
    }

    #[test]
    fn drafts_that_pay_are_always_made() {
        assert_eq!(run(20, Some(60)), (10_000, 80));
        assert_eq!(run(50, Some(50)), (10_000, 100));
    }

    #[test]
    fn one_slow_step_does_not_end_drafts_for_long() {
        let mut ledger = DraftLedger::new(false);
        ledger.note_drafted(10_000, 200, 100);
        assert!(ledger.allows());
        ledger.note_drafted(10_000, 200, 100);
        assert_eq!(ledger.balance, Some(-2 * LENT_SHARE * 100));
        for _ in 0..2 * LENT_SHARE {
            assert!(!ledger.allows());
            ledger.note_plain(100);
        }
        assert!(ledger.allows());
    }

    /// Simulates 200 answers of `n_steps` steps of 100 microseconds, each after a prompt that takes as long
    /// as 40 of them if drafts are allowed. With a draft, a step produces what takes `gain` microseconds
    /// more. Returns the number of answers with drafts in their last step, and the total time in percent of
    /// the time without drafts.
    fn answers(n_steps: usize, gain: u64) -> (usize, u64) {
        let mut ledger = DraftLedger::new(false);
        let (mut n_drafted, mut us, mut plain_us) = (0, 0, 0);
        for _ in 0..200 {
            if ledger.allows() {
                us += 4000;
                ledger.note_passes(0, 4000, 100);
            }
            let mut drafts = false;
            for _ in 0..n_steps {
                drafts = ledger.allows();
                us += 100;
                if drafts {
                    plain_us += 100 + gain;
                    ledger.note_drafted(100, 100 + gain, 100);
                } else {
                    plain_us += 100;
                    ledger.note_plain(100);
                }
            }
            n_drafted += usize::from(drafts);
        }
        (n_drafted, us * 100 / plain_us)
    }

    #[test]
    fn a_prompt_is_paid_off_by_its_answer() {
        // Each step pays 12 of its gain.
        let (n_drafted, time) = answers(400, 30);
        assert!(n_drafted == 200 && time < 90, "{n_drafted} {time}");
        // No draft gained anything, so prompts are a loss.
        for n_steps in [20, 400] {
            let (n_drafted, time) = answers(n_steps, 0);
            assert!(n_drafted < 100 && time <= 103, "{n_steps}: {n_drafted} {time}");
        }
    }

    fn probe(cost_us: u64, is_hopeful: bool) -> Probe {
        Probe {
            n_rows: 1,
            step_us: 100,
            cost_us,
            catches_up: false,
            is_hopeful,
        }
    }

    /// Simulates `n_steps` steps of 100 microseconds in which drafts do not pay, with probes of `cost_us`.
    /// Returns the number of steps with a question, of probes, and of steps with stored states.
    fn probes(ledger: &mut DraftLedger, n_steps: usize, cost_us: u64, is_hopeful: bool) -> [usize; 3] {
        let mut counts = [0; 3];
        for _ in 0..n_steps {
            if !ledger.rests(1) {
                counts[0] += 1;
                if ledger.is_due(&probe(cost_us, is_hopeful)) {
                    counts[1] += 1;
                    ledger.note_passes(cost_us, 0, 100);
                }
            }
            counts[2] += usize::from(ledger.keeps_states());
            ledger.note_plain(100);
        }
        counts
    }

    #[test]
    fn probes_take_their_share_and_little_is_asked_between_them() {
        let mut ledger = DraftLedger::new(true);
        let [_, n_probes, n_kept] = probes(&mut ledger, 64 + 128 + 256, 100, false);
        assert_eq!(n_probes, 2, "the third is next");
        assert_eq!(n_kept, 448, "while there is hope");
        let [n_asked, n_probes, n_kept] = probes(&mut ledger, 512 * 20, 100, false);
        assert_eq!(n_probes, 20);
        assert!(n_asked <= 20 * (512 / 32 + 2), "{n_asked}");
        assert!((20 * 64..=20 * 100).contains(&n_kept), "{n_kept}");
    }

    #[test]
    fn a_probe_that_catches_up_is_made_once_more() {
        let mut ledger = DraftLedger::new(true);
        ledger.note_plain(100);
        let catching_up = Probe {
            catches_up: true,
            ..probe(1, true)
        };
        assert!(ledger.is_due(&catching_up));
        assert!(ledger.is_due(&probe(1_000_000, true)));
        assert!(!ledger.is_due(&probe(1_000_000, true)));
    }

    #[test]
    fn a_probe_for_which_no_pass_was_made_is_not_made_once_more() {
        let mut ledger = DraftLedger::new(true);
        ledger.note_plain(100);
        let catching_up = Probe {
            catches_up: true,
            ..probe(1, true)
        };
        assert!(ledger.is_due(&catching_up));
        ledger.note_no_pass(1);
        for _ in 0..MAX_REST_STEPS {
            assert!(ledger.rests(1) && ledger.expects_none());
            ledger.note_plain(100);
        }
        assert!(!ledger.rests(1) && !ledger.is_due(&probe(1_000_000, true)));
    }

    #[test]
    fn a_probe_is_made_of_what_may_be_lost() {
        let mut ledger = DraftLedger::new(true);
        ledger.note_passes(200, 0, 100);
        ledger.note_passes(100, 0, 100);
        for _ in 0..LENT_SHARE {
            assert!(ledger.rests(1) && ledger.rests(2) && ledger.expects_none());
            ledger.note_plain(100);
        }
        assert!(!ledger.rests(1) && !ledger.expects_none() && ledger.is_due(&probe(100, true)));
    }

    #[test]
    fn a_rest_is_longest_where_states_come_back() {
        let mut ledger = DraftLedger::new(true);
        probes(&mut ledger, 1000, 100, false);
        probes(&mut ledger, 1000, 1_000_000, false);
        assert!(!ledger.keeps_states());
        // A probe of another sequence is due at once, but its states are missing.
        ledger.end_rest();
        assert!(!ledger.is_due(&probe(100, false)) && ledger.keeps_states());
        for _ in 0..WINDOW_STEPS {
            assert!(ledger.rests(1));
            ledger.note_plain(100);
        }
        assert!(!ledger.rests(1) && ledger.is_due(&probe(100, false)));
    }

    #[test]
    fn states_are_kept_where_there_is_hope_and_where_none_are_needed_nothing_waits_for_them() {
        for (needs_states, is_hopeful) in [(true, true), (false, false)] {
            let mut ledger = DraftLedger::new(needs_states);
            let [_, n_probes, n_kept] = probes(&mut ledger, 10_000, 100, is_hopeful);
            assert_eq!(n_kept, 10_000);
            assert!(n_probes >= 20, "{n_probes}");
        }
    }

    #[test]
    fn a_rest_ends_with_what_it_was_found_for() {
        let mut ledger = DraftLedger::new(true);
        assert!(!ledger.rests(1) && !ledger.expects_none());
        assert!(!ledger.is_due(&probe(100, false)));
        assert!(ledger.rests(1) && !ledger.rests(2), "another number of rows");
        ledger.end_rest();
        assert!(!ledger.rests(1) && !ledger.expects_none());
    }

    #[test]
    fn steps_wait_for_drafts_again_once_a_probe_is_due() {
        let mut ledger = DraftLedger::new(true);
        let mut n_asked = 0;
        for _ in 0..PROBE_SHARE {
            if !ledger.rests(1) {
                n_asked += 1;
                assert!(!ledger.is_due(&probe(100, false)));
            }
            assert!(
                ledger.expects_none(),
                "although it is asked where nothing waits for it"
            );
            ledger.note_plain(100);
        }
        assert_eq!(n_asked, 2);
        assert!(!ledger.expects_none() && ledger.is_due(&probe(100, false)));
    }

    #[test]
    fn a_sequence_that_will_be_tried_keeps_its_states_from_the_first_on() {
        let mut ledger = DraftLedger::new(true);
        // A long sequence without further probes.
        probes(&mut ledger, 1000, 100, false);
        let [_, n_probes, _] = probes(&mut ledger, 1000, 1_000_000, false);
        assert_eq!((n_probes, ledger.keeps_states()), (0, false));
        ledger.begin(1_000_000);
        assert!(!ledger.keeps_states());
        ledger.begin(100);
        // The long one is checked before the short one's first step.
        assert!(!ledger.is_due(&probe(1_000_000, false)) && ledger.keeps_states());
        assert!(ledger.is_due(&probe(100, false)));
    }
}

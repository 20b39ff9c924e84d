//! [`DraftLedger`]: whether a draft model has saved time so far, measured by the clock.
//!
//! Weighing single passes uses expected times of parts of a step. A part that is not measured, or a wrong
//! expectation, shows up here. Every pass is booked as a loss when it runs, and the gain of its draft when
//! the step is done, so that passes without a draft in any step are paid too. Invariant: drafts lose at most
//! a small fraction of all time, apart from the initial credit and from prompts that are not paid off yet.

/// Initial credit, in steps: time that drafts may lose before they have gained anything.
const LENT_STEPS: i64 = 2;

/// Maximum balance, in steps: the most that is lost before unprofitable drafts are noticed.
const MAX_SAVED_STEPS: i64 = 4;

/// A larger loss than this, in steps, by one step or by the passes before it, counts in full only if such
/// losses are usual. A step or pass may lose its processor for a while, which says nothing about drafts.
const MAX_LOSS_STEPS: i64 = 2;

/// Number of recent losses; their median is the usual loss.
const N_RECENT: usize = 5;

/// Divisor of the time of steps without drafts that is added to the credit.
const LENT_SHARE: i64 = 64;

/// Divisor of a step's time that pays off what computing prompts for drafts took. A prompt is computed only
/// if an answer of the expected length can pay it off.
pub(crate) const PAID_SHARE: u64 = 8;

/// The gains and losses of a draft model; see the module.
#[derive(Debug, Default)]
pub(crate) struct DraftLedger {
    /// The time that may still be lost, in 1/[`LENT_SHARE`] microseconds; `None` before the first step.
    balance: Option<i64>,
    /// Time spent on prompts and not paid off yet, in microseconds.
    unpaid_us: u64,
    /// Recent losses of passes before a step.
    of_passes: Recent,
    /// Recent losses of steps with drafts.
    of_steps: Recent,
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
    /// Returns whether a draft may be made.
    pub(crate) fn allows(&self) -> bool {
        self.balance.is_none_or(|balance| balance >= 0)
    }

    /// Books the work before a step: passes that draft, and passes that compute prompts. A step without
    /// drafts takes `step_us`.
    pub(crate) fn note_passes(&mut self, guessing_us: u64, prompt_us: u64, step_us: u64) {
        self.unpaid_us = self.unpaid_us.saturating_add(prompt_us);
        let loss = self.of_passes.limit(of(guessing_us), of(step_us.max(1)));
        self.add(-loss, step_us);
    }

    /// Books the time spent on finding that no pass pays.
    pub(crate) fn note_asking(&mut self, us: u64, step_us: u64) {
        let loss = of(us).min(MAX_LOSS_STEPS * of(step_us.max(1)));
        self.add(-loss, step_us);
    }

    /// Books a step of `us` without a draft of the model.
    pub(crate) fn note_plain(&mut self, us: u64) {
        self.pay_off(us);
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
        self.pay_off(step_us);
        let loss = (self.of_steps).limit(of(us) - of(plain_us), of(step_us.max(1)));
        self.add(-loss, step_us);
    }

    /// Pays off a part of the time spent on prompts, at a step of `step_us`.
    fn pay_off(&mut self, step_us: u64) {
        let paid = self.unpaid_us.min(step_us / PAID_SHARE);
        self.unpaid_us -= paid;
        if paid > 0 {
            self.add(-of(paid), step_us);
        }
    }

    fn add(&mut self, gain: i64, step_us: u64) {
        let step = of(step_us.max(1));
        let balance = self.balance.unwrap_or(LENT_STEPS * LENT_SHARE * step);
        let balance = balance.saturating_add(gain.saturating_mul(LENT_SHARE));
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
        let mut ledger = DraftLedger::default();
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
        let mut ledger = DraftLedger::default();
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
        let mut ledger = DraftLedger::default();
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
}

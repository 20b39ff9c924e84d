//! [`DraftLedger`]: whether a drafting model has paid so far, by the clock.
//!
//! Separate from the weighing of single passes, which goes by what parts of a step are expected to take: a part that no one measures, or
//! an expectation that is wrong, shows here. Every pass is booked as a loss when it is made, and what its guesses gained when their step is
//! done, so that passes whose guesses came into no step are paid too. Invariant: time that drafts lose is at most a small part of all time,
//! but for what is lent at the beginning and for prompts that are not paid off.

/// Steps that drafts may lose before they have gained anything.
const LENT_STEPS: i64 = 2;

/// Steps of gain that are remembered: where drafts no longer pay, so much is lost at most before that is seen.
const MAX_SAVED_STEPS: i64 = 4;

/// A loss of more steps than this, by one step or by the passes before it, counts in full only where such losses are usual: either may
/// lose its processor for a while, which says nothing of drafts.
const MAX_LOSS_STEPS: i64 = 2;

/// Of so many losses, the middle one tells what is usual.
const N_RECENT: usize = 5;

/// Of the time of steps without drafts, one part in so many is lent again.
const LENT_SHARE: i64 = 64;

/// What computing prompts took is paid off in the steps that follow, one part in so many of each. No more is computed than an answer can
/// pay so, if it is as long as is expected.
pub(crate) const PAID_SHARE: u64 = 8;

/// What drafts of a model have gained; see the module.
#[derive(Debug, Default)]
pub(crate) struct DraftLedger {
    /// What may still be lost, in 1/[`LENT_SHARE`] microseconds; `None` before a step was seen.
    balance: Option<i64>,
    /// What computing prompts took and is not paid off, microseconds.
    unpaid_us: u64,
    /// What passes before a step took lately.
    of_passes: Recent,
    /// What steps with drafts lost lately.
    of_steps: Recent,
}

/// The newest losses of a kind, microseconds.
#[derive(Debug, Default)]
struct Recent {
    losses: [i64; N_RECENT],
    next: usize,
}

impl Recent {
    /// What counts of a loss: all of it, unless it is more than [`MAX_LOSS_STEPS`] and more than twice what is usual.
    fn limit(&mut self, loss: i64, step: i64) -> i64 {
        self.losses[self.next] = loss;
        self.next = (self.next + 1) % N_RECENT;
        let mut sorted = self.losses;
        sorted.sort_unstable();
        loss.min((MAX_LOSS_STEPS * step).max(2 * sorted[N_RECENT / 2]))
    }
}

/// Microseconds, small enough to be multiplied.
fn of(us: u64) -> i64 {
    i64::try_from(us)
        .map_or(i64::MAX, |us| us)
        .min(i64::MAX / (LENT_SHARE * MAX_SAVED_STEPS * 4))
}

impl DraftLedger {
    /// Whether a draft may be made.
    pub(crate) fn allows(&self) -> bool {
        self.balance.is_none_or(|balance| balance >= 0)
    }

    /// Takes in what was done before a step: passes that guess, and such that compute prompts. A step without drafts takes `step_us`.
    pub(crate) fn note_passes(&mut self, guessing_us: u64, prompt_us: u64, step_us: u64) {
        self.unpaid_us = self.unpaid_us.saturating_add(prompt_us);
        let loss = self.of_passes.limit(of(guessing_us), of(step_us.max(1)));
        self.add(-loss, step_us);
    }

    /// Takes in what it took to find that no pass pays.
    pub(crate) fn note_asking(&mut self, us: u64, step_us: u64) {
        let loss = of(us).min(MAX_LOSS_STEPS * of(step_us.max(1)));
        self.add(-loss, step_us);
    }

    /// Takes in a step without a draft of the model that took `us`.
    pub(crate) fn note_plain(&mut self, us: u64) {
        self.pay_off(us);
        let us = of(us);
        let lent = LENT_STEPS * LENT_SHARE * us;
        let balance = *self.balance.get_or_insert(lent);
        // What is lent is not saved up beyond what it was in the beginning.
        if balance < lent {
            self.balance = Some(balance + us);
        }
    }

    /// Takes in a step that took `us` with the model's drafts, and gave what takes `plain_us` without them; a step without any drafts takes
    /// `step_us`.
    pub(crate) fn note_drafted(&mut self, us: u64, plain_us: u64, step_us: u64) {
        self.pay_off(step_us);
        let loss = (self.of_steps).limit(of(us) - of(plain_us), of(step_us.max(1)));
        self.add(-loss, step_us);
    }

    /// Books a part of what prompts took, with a step of `step_us`.
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

    /// Steps of 100 microseconds, where a pass takes `pass` percent of one and a draft's tokens, with the step that verifies them, `percent`
    /// of what they take without; `None` where the pass gives no draft. Of 10,000 steps, those with a pass, and the time of all in
    /// percent of what they would take without.
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

    /// Answers of `n_steps` steps of 100 microseconds, each behind a prompt that takes as long as 40 of them where drafts are allowed.
    /// With a draft a step gives what takes `gain` microseconds more. Of 200 answers, those with drafts in their last step, and the time of
    /// all in percent of what they would take without.
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
        // Each step pays 12 of what it gains.
        let (n_drafted, time) = answers(400, 30);
        assert!(n_drafted == 200 && time < 90, "{n_drafted} {time}");
        // No draft has gained: prompts are a loss.
        for n_steps in [20, 400] {
            let (n_drafted, time) = answers(n_steps, 0);
            assert!(n_drafted < 100 && time <= 103, "{n_steps}: {n_drafted} {time}");
        }
    }
}

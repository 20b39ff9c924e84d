//! [`DraftLedger`]: whether a drafting model has paid so far, by the clock.
//!
//! Separate from the weighing of single passes, which goes by what parts of a step are expected to take: a part that no one measures, or
//! an expectation that is wrong, shows here. Invariant: time that drafts lose is at most a small part of all time, but for what is lent at
//! the beginning.

/// Steps that drafts may lose before they have gained anything.
const LENT_STEPS: i64 = 2;

/// Steps of gain that are remembered: where drafts no longer pay, so much is lost at most before that is seen.
const MAX_SAVED_STEPS: i64 = 4;

/// The most that one step can lose, in steps. A step may lose its processor for a while, which says nothing of drafts.
const MAX_LOSS_STEPS: i64 = 2;

/// Of the time of steps without drafts, one part in so many is lent again.
const LENT_SHARE: i64 = 64;

/// What drafts of a model have gained; see the module.
#[derive(Debug, Default)]
pub(crate) struct DraftLedger {
    /// What may still be lost, in 1/[`LENT_SHARE`] microseconds; `None` before a step was seen.
    balance: Option<i64>,
}

impl DraftLedger {
    /// Whether a draft may be made.
    pub(crate) fn allows(&self) -> bool {
        self.balance.is_none_or(|balance| balance >= 0)
    }

    /// Takes in a step without a draft that took `us`.
    pub(crate) fn note_plain(&mut self, us: u64) {
        let us = i64::try_from(us).unwrap_or(i64::MAX / (LENT_SHARE * MAX_SAVED_STEPS));
        let balance = *self.balance.get_or_insert(LENT_STEPS * LENT_SHARE * us);
        // What is lent is not saved up beyond what it was in the beginning.
        if balance < LENT_STEPS * LENT_SHARE * us {
            self.balance = Some(balance + us);
        }
    }

    /// Takes in a step that took `us` with its drafts, and gave what takes `plain_us` without; a step without drafts takes `step_us`.
    pub(crate) fn note_drafted(&mut self, us: u64, plain_us: u64, step_us: u64) {
        let of = |us: u64| i64::try_from(us).unwrap_or(i64::MAX / (LENT_SHARE * MAX_SAVED_STEPS * 2));
        let step = of(step_us.max(1));
        let gain = (of(plain_us) - of(us)).max(-MAX_LOSS_STEPS * step);
        let balance = self.balance.unwrap_or(LENT_STEPS * LENT_SHARE * step) + gain * LENT_SHARE;
        self.balance = Some(balance.min(MAX_SAVED_STEPS * LENT_SHARE * step));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of 100 microseconds, where a draft takes `percent` of what its tokens take without: of 10,000, those with a draft, and the
    /// time of all in percent of what they would take without.
    fn run(percent: u64) -> (usize, u64) {
        let mut ledger = DraftLedger::default();
        let (mut n_drafted, mut us, mut plain_us) = (0, 0, 0);
        for _ in 0..10_000 {
            plain_us += 100;
            if ledger.allows() {
                n_drafted += 1;
                us += percent;
                ledger.note_drafted(percent, 100, 100);
            } else {
                us += 100;
                ledger.note_plain(100);
            }
        }
        (n_drafted, us * 100 / plain_us)
    }

    #[test]
    fn drafts_that_lose_are_tried_now_and_then() {
        for percent in [105, 120, 150, 300] {
            let (n_drafted, time) = run(percent);
            assert!(n_drafted >= 20, "{percent}: {n_drafted}");
            assert!(time <= 102, "{percent}: {time}, {n_drafted}");
        }
    }

    #[test]
    fn drafts_that_pay_are_always_made() {
        assert_eq!(run(80), (10_000, 80));
        assert_eq!(run(100), (10_000, 100));
    }

    #[test]
    fn one_slow_step_does_not_end_drafts_for_long() {
        let mut ledger = DraftLedger::default();
        ledger.note_drafted(10_000, 200, 100);
        assert!(ledger.allows());
        ledger.note_drafted(10_000, 200, 100);
        assert!(!ledger.allows() || ledger.balance == Some(-2 * LENT_SHARE * 100));
        for _ in 0..200 {
            ledger.note_plain(100);
        }
        assert!(ledger.allows());
    }
}

//! [`Probes`]: when drafts that are not expected to pay are tried anyway, and which work is skipped until
//! then.
//!
//! Between two probes only the sequences can change the decision. So the question is skipped for some steps,
//! and if drafts have not paid for long, the hidden states for them are not stored. Invariant: probes take at
//! most one part in [`PROBE_SHARE`] of the time of steps.

/// Initial and largest share of step time, one part in this many, for probes of drafts that are not expected
/// to pay. It halves after each probe until drafts are expected to pay.
const PROBE_SHARE: u64 = 64;
const LAST_PROBE_SHARE: u64 = 512;

/// Maximum number of steps in which the question is skipped, apart from those before a probe that collects
/// states again. Times change meanwhile, and drafts may pay then.
const MAX_REST_STEPS: u64 = 32;

/// Number of steps before a probe in which hidden states are stored. If storing resumes, the question is
/// skipped until then.
const WINDOW_STEPS: u64 = 64;

/// The schedule of probes; see the module.
#[derive(Debug)]
pub(crate) struct Probes {
    /// Total time of steps since the last probe, in microseconds.
    untried_us: u64,
    /// Share of that time that the next probe may take, one part in this many.
    share: u64,
    /// Duration of a step when last asked.
    step_us: u64,
    /// The current rest, in which the question is skipped.
    rest: Option<Rest>,
    /// Whether to repeat the last probe: it caught up sequences, which does not show how long a pass takes.
    again: bool,
    /// Number of steps in which drafts did not pay.
    n_steps: u64,
    /// Whether drafts need hidden states, and whether these are stored.
    needs_states: bool,
    keeps_states: bool,
    /// The step until which they are stored for a new sequence.
    kept_until: u64,
}

/// A step for which drafts are not expected to pay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unpaid {
    /// Rows of the step, and its duration without drafts.
    pub(crate) n_rows: usize,
    pub(crate) step_us: u64,
    /// Cost of a probe.
    pub(crate) cost_us: u64,
    /// Whether the probe must catch up sequences.
    pub(crate) catches_up: bool,
    /// Whether drafts might pay with other sequences.
    pub(crate) is_hopeful: bool,
}

#[derive(Clone, Copy, Debug)]
struct Rest {
    n_rows: usize,
    n_steps: u64,
}

impl Probes {
    pub(crate) fn new(needs_states: bool) -> Self {
        Self {
            untried_us: 0,
            share: PROBE_SHARE,
            step_us: 1,
            rest: None,
            again: false,
            n_steps: 0,
            needs_states,
            keeps_states: true,
            kept_until: 0,
        }
    }

    /// Returns whether hidden states are stored, if drafts need them.
    pub(crate) fn keeps_states(&self) -> bool {
        self.keeps_states
    }

    /// Returns whether the question is skipped before a step of `n_rows` rows, since drafts did not pay in
    /// such steps just now.
    pub(crate) fn rests(&mut self, n_rows: usize) -> bool {
        match &mut self.rest {
            Some(rest) if rest.n_steps > 0 && rest.n_rows == n_rows => {
                rest.n_steps -= 1;
                self.n_steps += 1;
                self.untried_us = self.untried_us.saturating_add(self.step_us);
                true
            }
            _ => false,
        }
    }

    /// Returns whether there is a rest, in which the question is skipped unless steps change.
    pub(crate) fn is_resting(&self) -> bool {
        self.rest.is_some_and(|rest| rest.n_steps > 0)
    }

    /// Ends the rest because the sequences have changed.
    pub(crate) fn end_rest(&mut self) {
        self.rest = None;
    }

    /// Records a new sequence for which a probe costs `cost_us`. Its states are stored from the start if a
    /// probe may come soon.
    pub(crate) fn begin(&mut self, cost_us: u64) {
        self.end_rest();
        let soon_us = (self.untried_us).saturating_add(WINDOW_STEPS * self.step_us);
        if soon_us >= cost_us.saturating_mul(self.share) {
            self.keeps_states = true;
            self.kept_until = self.n_steps + WINDOW_STEPS;
        }
    }

    /// Records that drafts are expected to pay.
    pub(crate) fn note_paying(&mut self) {
        self.rest = None;
        self.share = PROBE_SHARE;
        self.keeps_states = true;
    }

    /// Records that the due probe neither caught up a sequence nor ran a pass, so there is nothing to repeat.
    pub(crate) fn note_no_pass(&mut self) {
        self.again = false;
    }

    /// Returns whether drafts should be tried before a step although they are not expected to pay. If other
    /// sequences give no hope either and earlier probes failed, hidden states are stored only shortly before
    /// a probe.
    pub(crate) fn is_due(&mut self, unpaid: &Unpaid) -> bool {
        self.step_us = unpaid.step_us.max(1);
        self.n_steps += 1;
        self.untried_us = self.untried_us.saturating_add(self.step_us);
        if std::mem::take(&mut self.again) {
            return true;
        }
        let due_us = unpaid.cost_us.saturating_mul(self.share);
        let n_left = due_us.saturating_sub(self.untried_us).div_ceil(self.step_us);
        let n_rest = if n_left > 0 {
            let is_kept = unpaid.is_hopeful
                || !self.needs_states
                || self.share < LAST_PROBE_SHARE
                || n_left <= WINDOW_STEPS
                || self.n_steps < self.kept_until;
            self.keeps_states = is_kept;
            n_left.min(MAX_REST_STEPS)
        } else if self.keeps_states {
            self.untried_us = 0;
            self.share = (2 * self.share).min(LAST_PROBE_SHARE);
            self.rest = None;
            self.again = unpaid.catches_up;
            return true;
        } else {
            self.keeps_states = true;
            WINDOW_STEPS
        };
        // The current step counts.
        self.rest = Some(Rest {
            n_rows: unpaid.n_rows,
            n_steps: n_rest - 1,
        });
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpaid(cost_us: u64, is_hopeful: bool) -> Unpaid {
        Unpaid {
            n_rows: 1,
            step_us: 100,
            cost_us,
            catches_up: false,
            is_hopeful,
        }
    }

    /// Simulates `n_steps` steps of 100 microseconds in which drafts do not pay, with probes of `cost_us`.
    /// Returns the number of steps with a question, of probes, and of steps with stored states.
    fn run(probes: &mut Probes, n_steps: usize, cost_us: u64, hopeful: bool) -> [usize; 3] {
        let mut counts = [0; 3];
        for _ in 0..n_steps {
            if !probes.rests(1) {
                counts[0] += 1;
                counts[1] += usize::from(probes.is_due(&unpaid(cost_us, hopeful)));
            }
            counts[2] += usize::from(probes.keeps_states());
        }
        counts
    }

    #[test]
    fn probes_take_their_share_and_little_is_asked_between_them() {
        let mut probes = Probes::new(true);
        let [_, n_probes, n_kept] = run(&mut probes, 64 + 128 + 256, 100, false);
        assert_eq!(n_probes, 3);
        assert_eq!(n_kept, 448, "while there is hope");
        let [n_asked, n_probes, n_kept] = run(&mut probes, 512 * 20, 100, false);
        assert_eq!(n_probes, 20);
        assert!(n_asked <= 20 * (512 / 32 + 2), "{n_asked}");
        assert!((20 * 64..=20 * 100).contains(&n_kept), "{n_kept}");
    }

    #[test]
    fn a_probe_that_catches_up_is_made_once_more() {
        let mut probes = Probes::new(true);
        let catching_up = Unpaid {
            catches_up: true,
            ..unpaid(1, true)
        };
        assert!(probes.is_due(&catching_up));
        assert!(probes.is_due(&unpaid(1_000_000, true)));
        assert!(!probes.is_due(&unpaid(1_000_000, true)));
    }

    #[test]
    fn a_probe_for_which_no_pass_was_made_is_not_made_once_more() {
        let mut probes = Probes::new(true);
        let catching_up = Unpaid {
            catches_up: true,
            ..unpaid(1, true)
        };
        assert!(probes.is_due(&catching_up));
        probes.note_no_pass();
        assert!(!probes.is_due(&unpaid(1_000_000, true)));
    }

    #[test]
    fn a_rest_is_longest_where_states_come_back() {
        let mut probes = Probes::new(true);
        run(&mut probes, 1000, 100, false);
        run(&mut probes, 1000, 1_000_000, false);
        assert!(!probes.keeps_states());
        // A probe of another sequence is due at once, but its states are missing.
        probes.end_rest();
        assert!(!probes.is_due(&unpaid(100, false)) && probes.keeps_states());
        for _ in 1..WINDOW_STEPS {
            assert!(probes.rests(1));
        }
        assert!(!probes.rests(1) && probes.is_due(&unpaid(100, false)));
    }

    #[test]
    fn states_are_kept_where_there_is_hope_and_where_none_are_needed_nothing_waits_for_them() {
        for (needs_states, hopeful) in [(true, true), (false, false)] {
            let mut probes = Probes::new(needs_states);
            let [_, n_probes, n_kept] = run(&mut probes, 10_000, 100, hopeful);
            assert_eq!(n_kept, 10_000);
            assert!(n_probes >= 20, "{n_probes}");
        }
    }

    #[test]
    fn a_rest_ends_with_what_it_was_found_for() {
        let mut probes = Probes::new(true);
        assert!(!probes.rests(1) && !probes.is_due(&unpaid(100, false)));
        assert!(probes.rests(1) && !probes.rests(2), "another number of rows");
        assert!(probes.rests(1));
        probes.end_rest();
        assert!(!probes.rests(1));
    }

    #[test]
    fn a_sequence_that_will_be_tried_keeps_its_states_from_the_first_on() {
        let mut probes = Probes::new(true);
        // A long sequence without further probes.
        run(&mut probes, 1000, 100, false);
        let [_, n_probes, _] = run(&mut probes, 1000, 1_000_000, false);
        assert_eq!((n_probes, probes.keeps_states()), (0, false));
        probes.begin(1_000_000);
        assert!(!probes.keeps_states());
        probes.begin(100);
        // The long one is checked before the short one's first step.
        assert!(!probes.is_due(&unpaid(1_000_000, false)) && probes.keeps_states());
        assert!(probes.is_due(&unpaid(100, false)));
    }
}

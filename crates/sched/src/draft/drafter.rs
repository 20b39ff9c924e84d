//! Drafting: how many tokens a decoding sequence drafts, so that one step verifies them all.
//!
//! The scheduler places drafts (`plan/scheduler/drafts.rs`). A draft comes from one of four sources: the tokens after an
//! earlier occurrence of the sequence's newest tokens, an earlier answer to the same prompt, tokens that a
//! constraint forces, or a draft model. It never changes what is generated: each draft row samples with the
//! key of its own position, and counts only while the draft before it matches the sampled tokens. So the
//! decisions here affect only the cost of a step. Invariant: a draft is chosen from the tokens of its
//! sequence, counts of earlier acceptance, and the given step times.

use crate::draft::{
    acceptance::Acceptance,
    budget::{DraftBudget, MAX_STEP_DRAFTS},
    lookup::{EarlierAnswer, LookUp},
    tokens::{Class, Draft, DraftSource},
};

/// Maximum length of a draft that can be requested.
pub const MAX_DRAFT: usize = 32;

/// Whether and how sequences draft tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speculation {
    /// No drafts.
    Off,
    /// Drafts if they pay according to measured step times.
    Auto {
        /// Maximum draft tokens of a sequence, up to [`MAX_DRAFT`].
        max_draft: usize,
    },
    /// Drafts wherever the newest tokens or the whole text occurred before, as long as there is room.
    Ngram {
        /// Maximum draft tokens of a sequence, up to [`MAX_DRAFT`].
        max_draft: usize,
    },
    /// Drafts of the draft model, as long as they are likely; none if the engine has no such model.
    Draft {
        /// Maximum draft tokens of a sequence, up to [`MAX_DRAFT`].
        max_draft: usize,
    },
    /// Drafts of the model's own MTP layer, as [`Self::Draft`].
    Mtp {
        /// Maximum draft tokens of a sequence, up to [`MAX_DRAFT`].
        max_draft: usize,
    },
}

impl Speculation {
    /// Default maximum length of a draft.
    pub const DEFAULT_MAX_DRAFT: usize = 16;

    /// Returns the maximum draft tokens of a sequence.
    pub fn max_draft(self) -> usize {
        match self {
            Self::Off => 0,
            Self::Auto { max_draft }
            | Self::Ngram { max_draft }
            | Self::Draft { max_draft }
            | Self::Mtp { max_draft } => max_draft.min(MAX_DRAFT),
        }
    }

    /// Returns whether a draft model is used.
    pub fn asks_model(self) -> bool {
        matches!(self, Self::Auto { .. } | Self::Draft { .. } | Self::Mtp { .. })
    }

    /// Returns whether the newest tokens are looked up in earlier text.
    pub(crate) fn looks_up(self) -> bool {
        matches!(self, Self::Auto { .. } | Self::Ngram { .. })
    }

    /// Returns the number of draft rows for which a step of `n_seqs` sequences should have room.
    pub fn draft_rows(self, n_seqs: usize) -> usize {
        n_seqs.saturating_mul(self.max_draft()).min(MAX_STEP_DRAFTS)
    }
}

/// Counters of drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounters {
    /// Number of verified drafts.
    pub drafts: u64,
    /// Number of tokens in them.
    pub draft_tokens: u64,
    /// Number of draft tokens that matched the sampled token.
    pub accepted_tokens: u64,
    /// The same, by position in the draft.
    pub accepted_at: [u64; MAX_DRAFT],
}

impl DraftCounters {
    /// Counts a draft, or its tokens of one kind.
    pub(crate) fn add(&mut self, n_drafted: usize, n_accepted: usize) {
        self.drafts += 1;
        self.draft_tokens += n_drafted as u64;
        self.accepted_tokens += n_accepted as u64;
        for count in &mut self.accepted_at[..n_accepted] {
            *count += 1;
        }
    }
}

/// A sampled row with its draft.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Verified {
    /// Number of draft tokens.
    pub(crate) n_drafted: usize,
    /// Number of leading draft tokens that match the sampled ones.
    pub(crate) n_accepted: usize,
    /// Number of draft tokens in whose place something was sampled: right ones and the first wrong one.
    pub(crate) n_tried: usize,
    /// The first sampled token; it shows how a draft would have fared if there was none.
    pub(crate) sampled: Option<u32>,
}

/// The drafting state of a sequence.
#[derive(Debug)]
pub(crate) struct Drafter {
    look_up: LookUp,
    pub(crate) acceptance: Acceptance,
    /// The newest draft, until the first token there is sampled.
    draft: Option<Draft>,
}

impl Drafter {
    /// Creates a drafter with the acceptance rates of other sequences.
    pub(crate) fn new(acceptance: Acceptance) -> Self {
        Self {
            look_up: LookUp::default(),
            acceptance,
            draft: None,
        }
    }

    /// Drafts from an earlier answer.
    pub(crate) fn follow(&mut self, earlier: EarlierAnswer) {
        self.look_up.follow(earlier);
    }

    /// Looks up at most `max` tokens after `tokens`. They replace the draft.
    pub(crate) fn find(&mut self, tokens: &[u32], max: usize) -> Option<&Draft> {
        self.draft = self.look_up.draft(tokens, max);
        self.draft.as_ref()
    }

    /// Stores a draft from elsewhere.
    pub(crate) fn offer(&mut self, draft: Draft) {
        self.draft = Some(draft);
    }

    /// Returns the draft after `n_tokens` tokens.
    pub(crate) fn draft(&self, n_tokens: usize) -> Option<&Draft> {
        self.draft.as_ref().filter(|draft| draft.at == n_tokens)
    }

    /// Returns the draft with masks after `n_tokens` tokens.
    pub(crate) fn masked_draft(&self, n_tokens: usize) -> Option<&Draft> {
        self.draft(n_tokens).filter(|draft| draft.is_masked)
    }

    /// Returns the draft model's draft after `n_tokens` tokens, if it was asked.
    pub(crate) fn model_draft(&self, n_tokens: usize) -> Option<&Draft> {
        let is_of_model = |draft: &&Draft| {
            let first = draft.classes.first();
            first.is_some_and(|class| class.source() == DraftSource::Model) && !draft.is_masked
        };
        self.draft(n_tokens).filter(is_of_model)
    }

    /// Drafts after `tokens` without masks: as the draft model does, or else, if it `looks_up`, as a look-up
    /// does with at most `max` tokens.
    pub(crate) fn draft_freely(&mut self, tokens: &[u32], looks_up: bool, max: usize) -> Option<&Draft> {
        if self.model_draft(tokens.len()).is_none() {
            self.draft = None;
            if looks_up {
                self.find(tokens, max);
            }
        }
        self.draft.as_ref()
    }

    /// Returns the best length of a draft, at most `max`, and its expected gain. Each row is computed
    /// `n_costs` times.
    pub(crate) fn best_len(
        &self,
        draft: &Draft,
        max: usize,
        n_costs: u64,
        budget: &DraftBudget,
    ) -> (usize, u64) {
        let max = max.min(draft.tokens.len());
        budget.best_len(max, n_costs, |offset| self.acceptance.of(draft.classes[offset]))
    }

    /// Records that there can be no mask after the first `n_followed` tokens of a draft, because the next one
    /// is not allowed.
    pub(crate) fn note_refused(&mut self, at: usize, n_followed: usize, shared: &mut Acceptance) {
        let draft = self.masked_draft(at);
        // A look-up costs nothing.
        if let Some(&class) = draft.and_then(|draft| draft.classes.get(n_followed))
            && class.source() == DraftSource::Model
        {
            self.note(class, false, shared);
        }
    }

    /// Truncates the draft with masks to its first `n_masked` tokens. The next one may be in a step already.
    pub(crate) fn cut_masked(&mut self, n_masked: usize) {
        if let Some(draft) = self.draft.as_mut().filter(|draft| draft.is_masked) {
            draft.tokens.truncate(n_masked);
        }
    }

    /// Records the tokens sampled after the newest ones. Returns the class of each token of the draft.
    pub(crate) fn observe(&mut self, verified: Verified, shared: &mut Acceptance) -> Vec<Class> {
        let draft = self.draft.take().unwrap_or_default();
        let outcomes = outcomes(verified, draft.tokens.first().copied());
        for (&class, is_accepted) in draft.classes.iter().zip(outcomes) {
            self.note(class, is_accepted, shared);
        }
        draft.classes
    }

    /// Records whether a token was right.
    fn note(&mut self, class: Class, is_accepted: bool, shared: &mut Acceptance) {
        self.acceptance.observe(class, is_accepted, 16);
        shared.observe(class, is_accepted, 128);
    }
}

/// Returns whether each of the tried draft tokens was right. Without a draft, it is the first predicted token,
/// compared with the sampled one.
fn outcomes(verified: Verified, first: Option<u32>) -> impl Iterator<Item = bool> {
    let is_right = (first.zip(verified.sampled)).map(|(first, sampled)| first == sampled);
    let without_draft = is_right.filter(|_| verified.n_drafted == 0);
    let of_draft = (0..verified.n_tried).map(move |offset| offset < verified.n_accepted);
    of_draft.chain(without_draft)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::budget::ONE;

    fn verified(n_drafted: usize, n_accepted: usize, n_tried: usize) -> Verified {
        Verified {
            n_drafted,
            n_accepted,
            n_tried,
            sampled: None,
        }
    }

    fn without_draft(sampled: u32) -> Verified {
        Verified {
            sampled: Some(sampled),
            ..Verified::default()
        }
    }

    fn draft(at: usize, tokens: &[u32], classes: &[Class], is_masked: bool) -> Draft {
        Draft {
            at,
            tokens: tokens.to_vec(),
            classes: classes.to_vec(),
            is_masked,
        }
    }

    /// Two classes of a draft model's tokens.
    fn of_model() -> [Class; 2] {
        [0.6, 0.95].map(Class::of_probability)
    }

    #[test]
    fn acceptance_follows_what_was_sampled_with_and_without_a_draft() {
        let mut shared = Acceptance::default();
        let mut drafter = Drafter::new(shared);
        let [short, long] = [2, 4].map(Class::of_match);
        let tokens = [1, 2, 3, 1, 2];
        let before = drafter.acceptance.of(short);
        drafter.find(&tokens, 4);
        drafter.observe(without_draft(3), &mut shared);
        let after = drafter.acceptance.of(short);
        assert!(after > before);
        drafter.find(&tokens, 4);
        drafter.observe(without_draft(4), &mut shared);
        assert!(drafter.acceptance.of(short) < after);
        for _ in 0..100 {
            drafter.find(&tokens, 4);
            drafter.observe(verified(4, 4, 4), &mut shared);
        }
        assert!(drafter.acceptance.of(short) > ONE * 9 / 10 && drafter.acceptance.of(long) > ONE * 9 / 10);
        assert!(shared.of(long) > Acceptance::default().of(long));
    }

    #[test]
    fn a_draft_of_a_model_counts_once_and_goes_before_a_match() {
        let mut shared = Acceptance::default();
        let mut drafter = Drafter::new(shared);
        let classes = of_model();
        let offered = draft(5, &[7, 8], &classes, false);
        drafter.find(&[1, 2, 3, 1, 2], 4);
        assert_eq!(drafter.model_draft(5), None, "it is a look-up's");
        drafter.offer(offered.clone());
        assert_eq!(
            (drafter.model_draft(5), drafter.model_draft(6)),
            (Some(&offered), None)
        );
        assert_eq!(drafter.observe(verified(2, 1, 2), &mut shared), classes);
        let before = Acceptance::default();
        assert!(shared.of(classes[0]) > before.of(classes[0]));
        assert!(shared.of(classes[1]) < before.of(classes[1]));
        assert_eq!(drafter.model_draft(5), None);
        assert_eq!(drafter.observe(without_draft(3), &mut shared), []);
        let short = Class::of_match(2);
        assert_eq!(shared.of(short), before.of(short), "the match was not tried");
    }

    #[test]
    fn what_is_forced_behind_a_look_up_counts_as_forced() {
        let mut shared = Acceptance::default();
        let mut drafter = Drafter::new(shared);
        let found = drafter.draft_freely(&[1, 2, 3, 1, 2], true, 1).unwrap();
        let short = Class::of_match(2);
        assert_eq!(found, &draft(5, &[3], &[short], false));
        let classes = [short, Class::FORCED, Class::FORCED, Class::FORCED];
        let masked = draft(5, &[3, 7, 8, 9], &classes, true);
        let before = shared;
        drafter.offer(masked.clone());
        assert_eq!(drafter.observe(verified(4, 3, 4), &mut shared), classes);
        assert!(shared.of(short) > before.of(short));
        // Two of three were right.
        assert!(shared.of(Class::FORCED) < before.of(Class::FORCED));
        let longer = [4, 8, 16].map(Class::of_match);
        assert_eq!(
            longer.map(|class| shared.of(class)),
            longer.map(|class| before.of(class))
        );
        // After the third there was no mask, so nothing was sampled in place of the fourth.
        let before = shared;
        drafter.offer(masked);
        drafter.observe(verified(4, 3, 3), &mut shared);
        assert!(shared.of(Class::FORCED) > before.of(Class::FORCED));
    }

    #[test]
    fn what_a_model_drafts_of_a_constrained_text_counts_as_its_own() {
        let mut shared = Acceptance::default();
        let mut drafter = Drafter::new(shared);
        let [first, second] = of_model();
        drafter.offer(draft(4, &[7, 8], &[first, second], false));
        let tokens = [1, 2, 3, 4, 5];
        assert_eq!(
            drafter.draft_freely(&tokens, false, 4),
            None,
            "it was of another place"
        );
        drafter.offer(draft(5, &[7, 8], &[first, second], false));
        assert!(drafter.masked_draft(5).is_none());
        assert!(drafter.draft_freely(&tokens, true, 4).is_some());
        let masked = draft(5, &[7, 8, 9], &[first, second, Class::FORCED], true);
        let before = shared;
        drafter.offer(masked.clone());
        assert!(drafter.masked_draft(5).is_some() && drafter.model_draft(5).is_none());
        drafter.observe(verified(3, 1, 2), &mut shared);
        assert!(shared.of(first) > before.of(first) && shared.of(second) < before.of(second));
        assert_eq!(
            shared.of(Class::FORCED),
            before.of(Class::FORCED),
            "the third was not tried"
        );
        // A token that a constraint refuses is wrong, whether it was tried or not.
        let before = shared;
        drafter.offer(masked);
        drafter.note_refused(4, 0, &mut shared);
        drafter.note_refused(5, 2, &mut shared);
        assert_eq!(
            [first, second].map(|class| shared.of(class)),
            [first, second].map(|class| before.of(class))
        );
        drafter.note_refused(5, 1, &mut shared);
        assert_eq!(shared.of(first), before.of(first));
        assert!(shared.of(second) < before.of(second));
    }

    #[test]
    fn a_token_whose_mask_came_too_late_is_still_known() {
        let mut shared = Acceptance::default();
        let mut drafter = Drafter::new(shared);
        let [first, second] = of_model();
        drafter.offer(draft(5, &[7, 8], &[first, second], true));
        // The step has both tokens. The constraint refuses the second.
        drafter.cut_masked(1);
        assert_eq!(drafter.masked_draft(5).unwrap().tokens, [7]);
        let before = shared;
        assert_eq!(drafter.observe(verified(2, 1, 2), &mut shared), [first, second]);
        assert!(shared.of(second) < before.of(second));
    }
}

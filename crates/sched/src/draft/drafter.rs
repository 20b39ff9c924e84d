//! Drafting: how many tokens a decoding sequence drafts, so that one step verifies them all.
//!
//! The scheduler places drafts (`plan/scheduler/drafts.rs`). A draft comes from one of four sources: the tokens after an
//! earlier occurrence of the sequence's newest tokens, an earlier answer to the same prompt, tokens that a
//! constraint forces, or a draft model. It never changes what is generated: each draft row samples with the
//! key of its own position, and counts only while the draft before it matches the sampled tokens. So the
//! decisions here affect only the cost of a step. Invariant: a draft is chosen from the tokens of its
//! sequence, counts of earlier acceptance, and the given step times.

use crate::draft::{
    budget::{MAX_STEP_DRAFTS, ONE},
    lookup::{EarlierAnswer, Found, LookUp},
    model_draft::{ModelAcceptance, ModelGuess},
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

/// Number of acceptance classes. Matches are classified by length: below 4, 8 and 16 tokens, and longer.
/// Earlier answers and forced tokens have their own classes.
const N_CLASSES: usize = 6;

const EARLIER: usize = 4;
const FORCED: usize = 5;

/// Probability, by class, that the token after a match is the sampled one, in 1/65536, as a moving average.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acceptance([u64; N_CLASSES]);

impl Default for Acceptance {
    /// Returns the prior, before any observation.
    fn default() -> Self {
        let of_matches = [ONE / 5, ONE * 2 / 5, ONE * 3 / 5, ONE * 4 / 5];
        let [short, some, long, longest] = of_matches;
        Self([short, some, long, longest, ONE * 31 / 32, ONE * 9 / 10])
    }
}

impl Acceptance {
    fn class(found: Found, offset: usize) -> usize {
        match found {
            Found::Earlier { .. } => EARLIER,
            Found::Own(found) => match found.len + offset {
                0..4 => 0,
                4..8 => 1,
                8..16 => 2,
                _ => 3,
            },
        }
    }

    /// Returns the probability for the token at an offset in a match.
    pub(crate) fn of(&self, found: Found, offset: usize) -> u64 {
        self.0[Self::class(found, offset)]
    }

    /// Returns the probability for tokens where a constraint leaves no choice of text.
    pub(crate) fn of_forced(&self) -> u64 {
        self.0[FORCED]
    }

    /// Adds an observation with weight 1/`weight`.
    fn observe(&mut self, class: usize, is_accepted: bool, weight: u64) {
        let average = &mut self.0[class];
        let seen = if is_accepted { ONE - ONE / 64 } else { 0 };
        *average = (*average * (weight - 1) + seen) / weight;
    }
}

/// The drafting state of a sequence.
#[derive(Debug)]
pub(crate) struct Drafter {
    look_up: LookUp,
    pub(crate) acceptance: Acceptance,
    /// The newest match, with the token after it.
    guess: Option<(Found, u32)>,
    pub(crate) model_acceptance: ModelAcceptance,
    /// The draft model's prediction, until the token there is sampled.
    model_guess: Option<ModelGuess>,
    /// In a constrained sequence, the draft with masks, until the token there is sampled.
    masked_guess: Option<MaskedGuess>,
}

/// The source of a draft, apart from a constraint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guesser {
    Ngram,
    /// An earlier answer.
    Earlier,
    Model,
}

/// The sources of a draft: at most the first `n_guessed` tokens come from the guesser, and a constraint
/// forced the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DraftKind {
    pub(crate) guesser: Guesser,
    pub(crate) n_guessed: usize,
}

impl DraftKind {
    fn of(guesser: Guesser) -> Self {
        Self {
            guesser,
            n_guessed: usize::MAX,
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

/// Likely next tokens of a constrained sequence, each with a mask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MaskedGuess {
    /// Number of tokens in the sequence before them.
    pub(crate) at: usize,
    pub(crate) tokens: Vec<u32>,
    /// The source of the first `n_guessed` tokens. The constraint forces the rest.
    pub(crate) origin: Origin,
    pub(crate) n_guessed: usize,
}

/// The source of the first tokens of a masked guess.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The constraint, as for the rest.
    #[default]
    Constraint,
    LookUp(Found),
    /// A draft model, with the probability class of each token.
    Model(Vec<u8>),
}

impl MaskedGuess {
    /// Returns the source of the token at an offset.
    fn origin_at(&self, offset: usize) -> OriginAt {
        match &self.origin {
            _ if offset >= self.n_guessed => OriginAt::Constraint,
            Origin::Constraint => OriginAt::Constraint,
            Origin::LookUp(found) => OriginAt::LookUp(*found),
            Origin::Model(classes) => OriginAt::Model(classes[offset]),
        }
    }

    fn kind(&self) -> DraftKind {
        let guesser = match &self.origin {
            Origin::Constraint => {
                return DraftKind {
                    guesser: Guesser::Ngram,
                    n_guessed: 0,
                };
            }
            Origin::LookUp(found) => found.guesser(),
            Origin::Model(_) => Guesser::Model,
        };
        DraftKind {
            guesser,
            n_guessed: self.n_guessed,
        }
    }
}

/// The source of one token of a masked guess.
#[derive(Clone, Copy, Debug)]
enum OriginAt {
    Constraint,
    LookUp(Found),
    Model(u8),
}

impl Found {
    fn guesser(self) -> Guesser {
        match self {
            Self::Own(_) => Guesser::Ngram,
            Self::Earlier { .. } => Guesser::Earlier,
        }
    }
}

impl Drafter {
    /// Creates a drafter with the acceptance rates of other sequences.
    pub(crate) fn new(acceptance: Acceptance, model_acceptance: ModelAcceptance) -> Self {
        Self {
            look_up: LookUp::default(),
            acceptance,
            guess: None,
            model_acceptance,
            model_guess: None,
            masked_guess: None,
        }
    }

    /// Stores a draft with masks.
    pub(crate) fn offer_masked(&mut self, guess: MaskedGuess) {
        self.guess = None;
        self.masked_guess = Some(guess);
    }

    /// Records that there can be no mask after the first `n_followed` tokens of a draft, because the next one
    /// is not allowed.
    pub(crate) fn note_refused(
        &mut self,
        at: usize,
        n_followed: usize,
        shared_of_model: &mut ModelAcceptance,
    ) {
        // A look-up costs nothing.
        if let Some(guess) = self.masked_guess(at)
            && let OriginAt::Model(class) = guess.origin_at(n_followed)
        {
            self.note_model(class, false, shared_of_model);
        }
    }

    /// Truncates the draft with masks to its first `n_masked` tokens.
    pub(crate) fn cut_masked(&mut self, n_masked: usize) {
        if let Some(guess) = &mut self.masked_guess {
            guess.tokens.truncate(n_masked);
        }
    }

    /// Returns the draft with masks after `n_tokens` tokens.
    pub(crate) fn masked_guess(&self, n_tokens: usize) -> Option<&MaskedGuess> {
        self.masked_guess.as_ref().filter(|guess| guess.at == n_tokens)
    }

    /// Stores a draft model's prediction.
    pub(crate) fn offer(&mut self, guess: ModelGuess) {
        self.guess = None;
        self.model_guess = Some(guess);
    }

    /// Returns the draft model's prediction after `n_tokens` tokens, if it was asked.
    pub(crate) fn model_guess(&self, n_tokens: usize) -> Option<&ModelGuess> {
        self.model_guess.as_ref().filter(|guess| guess.at == n_tokens)
    }

    /// Drafts from an earlier answer.
    pub(crate) fn follow(&mut self, earlier: EarlierAnswer) {
        self.look_up.follow(earlier);
    }

    /// Removes and returns the draft model's prediction after `n_tokens` tokens.
    pub(crate) fn take_model_guess(&mut self, n_tokens: usize) -> Option<ModelGuess> {
        self.model_guess.take().filter(|guess| guess.at == n_tokens)
    }

    /// Returns the acceptance probability of the token at an offset of a masked guess.
    pub(crate) fn likelihood(&self, guess: &MaskedGuess, offset: usize) -> u64 {
        match guess.origin_at(offset) {
            OriginAt::Constraint => self.acceptance.of_forced(),
            OriginAt::LookUp(found) => self.acceptance.of(found, offset),
            OriginAt::Model(class) => self.model_acceptance.of(class),
        }
    }

    /// Looks up the continuation of `tokens`.
    pub(crate) fn find(&mut self, tokens: &[u32]) -> Option<Found> {
        let found = self.look_up.find(tokens);
        let look_up = &self.look_up;
        self.guess = found.map(|found| (found, look_up.followed_by(tokens, found, 0, &[])));
        found
    }

    /// Returns the look-up structure.
    pub(crate) fn look_up(&self) -> &LookUp {
        &self.look_up
    }

    /// Records the tokens sampled after the newest ones. Returns the sources of the draft.
    pub(crate) fn observe(
        &mut self,
        verified: Verified,
        shared: &mut Acceptance,
        shared_of_model: &mut ModelAcceptance,
    ) -> DraftKind {
        if let Some(guess) = self.masked_guess.take() {
            let first = guess.tokens.first().copied();
            for (offset, is_accepted) in outcomes(verified, first) {
                match guess.origin_at(offset) {
                    OriginAt::Constraint => self.note(None, offset, is_accepted, shared),
                    OriginAt::LookUp(found) => self.note(Some(found), offset, is_accepted, shared),
                    OriginAt::Model(class) => self.note_model(class, is_accepted, shared_of_model),
                }
            }
            guess.kind()
        } else if let Some(guess) = self.model_guess.take() {
            let first = guess.tokens.first().copied();
            for (&class, (_, is_accepted)) in guess.classes.iter().zip(outcomes(verified, first)) {
                self.note_model(class, is_accepted, shared_of_model);
            }
            DraftKind::of(Guesser::Model)
        } else {
            let guess = self.guess.take();
            if let Some((found, first)) = guess {
                for (offset, is_accepted) in outcomes(verified, Some(first)) {
                    self.note(Some(found), offset, is_accepted, shared);
                }
            }
            DraftKind::of(guess.map_or(Guesser::Ngram, |(found, _)| found.guesser()))
        }
    }

    /// Records whether a draft model's token was right.
    fn note_model(&mut self, class: u8, is_accepted: bool, shared: &mut ModelAcceptance) {
        self.model_acceptance.observe(class, is_accepted, 16);
        shared.observe(class, is_accepted, 128);
    }

    /// Records whether the token at an offset after a match, or a forced one, was right.
    fn note(&mut self, found: Option<Found>, offset: usize, is_accepted: bool, shared: &mut Acceptance) {
        let class = found.map_or(FORCED, |found| Acceptance::class(found, offset));
        self.acceptance.observe(class, is_accepted, 16);
        shared.observe(class, is_accepted, 128);
    }
}

/// Returns the offsets of the tried draft tokens, with whether each was right. Without a draft, it is the
/// first predicted token, compared with the sampled one.
fn outcomes(verified: Verified, first: Option<u32>) -> impl Iterator<Item = (usize, bool)> {
    let is_right = (first.zip(verified.sampled)).map(|(first, sampled)| first == sampled);
    let without_draft = is_right.filter(|_| verified.n_drafted == 0);
    let of_draft = (0..verified.n_tried).map(move |offset| (offset, offset < verified.n_accepted));
    of_draft.chain(without_draft.map(|is_right| (0, is_right)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::ngram::Match;

    fn own(len: usize) -> Found {
        Found::Own(Match { next: 0, len })
    }

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

    #[test]
    fn acceptance_follows_what_was_sampled_with_and_without_a_draft() {
        let mut shared = Acceptance::default();
        let mut of_model = ModelAcceptance::default();
        let mut drafter = Drafter::new(shared, of_model);
        let tokens = [1, 2, 3, 1, 2];
        let before = drafter.acceptance.of(own(2), 0);
        drafter.find(&tokens);
        drafter.observe(without_draft(3), &mut shared, &mut of_model);
        let after = drafter.acceptance.of(own(2), 0);
        assert!(after > before);
        drafter.find(&tokens);
        drafter.observe(without_draft(4), &mut shared, &mut of_model);
        assert!(drafter.acceptance.of(own(2), 0) < after);
        for _ in 0..100 {
            drafter.find(&tokens);
            drafter.observe(verified(4, 4, 4), &mut shared, &mut of_model);
        }
        assert!(
            drafter.acceptance.of(own(2), 0) > ONE * 9 / 10
                && drafter.acceptance.of(own(4), 0) > ONE * 9 / 10
        );
        assert!(shared.of(own(4), 0) > Acceptance::default().of(own(4), 0));
    }

    #[test]
    fn a_guess_of_a_model_counts_once_and_goes_before_a_match() {
        let (mut shared, mut of_model) = (Acceptance::default(), ModelAcceptance::default());
        let mut drafter = Drafter::new(shared, of_model);
        let guess = ModelGuess {
            at: 5,
            tokens: vec![7, 8],
            classes: vec![2, 4],
        };
        drafter.find(&[1, 2, 3, 1, 2]);
        drafter.offer(guess.clone());
        assert_eq!(
            (drafter.model_guess(5), drafter.model_guess(6)),
            (Some(&guess), None)
        );
        let kind = drafter.observe(verified(2, 1, 2), &mut shared, &mut of_model);
        assert_eq!(kind, DraftKind::of(Guesser::Model));
        let before = ModelAcceptance::default();
        assert!(of_model.of(2) > before.of(2) && of_model.of(4) < before.of(4));
        assert_eq!(drafter.model_guess(5), None);
        let kind = drafter.observe(without_draft(3), &mut shared, &mut of_model);
        assert_eq!(kind, DraftKind::of(Guesser::Ngram));
        assert_eq!(
            shared.of(own(2), 0),
            Acceptance::default().of(own(2), 0),
            "the match was not tried"
        );
    }

    #[test]
    fn what_is_forced_behind_a_look_up_counts_as_forced() {
        let (mut shared, mut of_model) = (Acceptance::default(), ModelAcceptance::default());
        let mut drafter = Drafter::new(shared, of_model);
        let found = drafter.find(&[1, 2, 3, 1, 2]).unwrap();
        let guess = MaskedGuess {
            at: 5,
            tokens: vec![3, 7, 8, 9],
            origin: Origin::LookUp(found),
            n_guessed: 1,
        };
        let before = shared;
        assert_eq!(drafter.likelihood(&guess, 0), before.of(own(2), 0));
        assert_eq!(drafter.likelihood(&guess, 1), before.of_forced());
        drafter.offer_masked(guess.clone());
        let kind = drafter.observe(verified(4, 3, 4), &mut shared, &mut of_model);
        assert_eq!(
            kind,
            DraftKind {
                guesser: Guesser::Ngram,
                n_guessed: 1
            }
        );
        assert!(shared.of(own(2), 0) > before.of(own(2), 0));
        // Two of three were right.
        assert!(shared.of_forced() < before.of_forced());
        assert_eq!(
            [4, 8, 16].map(|len| shared.of(own(len), 0)),
            [4, 8, 16].map(|len| before.of(own(len), 0))
        );
        // After the third there was no mask, so nothing was sampled in place of the fourth.
        let before = shared;
        drafter.offer_masked(guess);
        drafter.observe(verified(4, 3, 3), &mut shared, &mut of_model);
        assert!(shared.of_forced() > before.of_forced());
    }

    #[test]
    fn what_a_model_guesses_of_a_constrained_text_counts_as_its_own() {
        let (mut shared, mut of_model) = (Acceptance::default(), ModelAcceptance::default());
        let mut drafter = Drafter::new(shared, of_model);
        drafter.offer(ModelGuess {
            at: 4,
            tokens: vec![7, 8],
            classes: vec![2, 4],
        });
        assert_eq!(drafter.take_model_guess(5), None);
        assert_eq!(drafter.take_model_guess(4), None, "it was of another place");
        let guess = MaskedGuess {
            at: 5,
            tokens: vec![7, 8, 9],
            origin: Origin::Model(vec![2, 4]),
            n_guessed: 2,
        };
        let (before, of_model_before) = (shared, of_model);
        let likelihoods = [0, 1, 2].map(|offset| drafter.likelihood(&guess, offset));
        assert_eq!(likelihoods, [of_model.of(2), of_model.of(4), before.of_forced()]);
        drafter.offer_masked(guess.clone());
        let kind = drafter.observe(verified(3, 1, 2), &mut shared, &mut of_model);
        assert_eq!((kind.guesser, kind.n_guessed), (Guesser::Model, 2));
        assert!(of_model.of(2) > of_model_before.of(2) && of_model.of(4) < of_model_before.of(4));
        assert_eq!(shared.of_forced(), before.of_forced(), "the third was not tried");
        // A token that a constraint refuses is wrong, whether it was tried or not.
        let of_model_before = of_model;
        drafter.offer_masked(guess);
        drafter.note_refused(4, 0, &mut of_model);
        drafter.note_refused(5, 2, &mut of_model);
        assert_eq!(
            [2, 4].map(|class| of_model.of(class)),
            [2, 4].map(|class| of_model_before.of(class))
        );
        drafter.note_refused(5, 1, &mut of_model);
        assert_eq!(of_model.of(2), of_model_before.of(2));
        assert!(of_model.of(4) < of_model_before.of(4));
    }
}

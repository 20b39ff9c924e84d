//! [`Draft`]: the likely next tokens of a sequence, each with its [`Class`].
//!
//! A class says where a token comes from and how sure its source was: the length of the match before it, or
//! the probability that a draft model gave it. Invariant: a draft knows neither times nor how often its
//! classes came out right.

/// The likely next tokens of a sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Draft {
    /// Number of tokens in the sequence before them.
    pub(crate) at: usize,
    pub(crate) tokens: Vec<u32>,
    /// The class of each token.
    pub(crate) classes: Vec<Class>,
    /// Whether each token is allowed by a constraint, and has the mask after it.
    pub(crate) is_masked: bool,
}

impl Draft {
    /// Creates a draft without tokens after the first `at` tokens of a sequence.
    pub(crate) fn at(at: usize) -> Self {
        Self {
            at,
            ..Self::default()
        }
    }

    /// Appends a token.
    pub(crate) fn push(&mut self, token: u32, class: Class) {
        self.tokens.push(token);
        self.classes.push(class);
    }

    /// Truncates the draft to its first `len` tokens.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.classes.truncate(len);
    }
}

/// Upper bounds of the probabilities of a draft model's classes, except the last.
const BOUNDS: [f32; 5] = [0.3, 0.5, 0.7, 0.9, 0.98];

/// The class of a draft token: its source, and how sure that was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(u8);

/// The source of a draft token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DraftSource {
    /// Earlier text of the sequence.
    Ngram,
    /// An earlier answer.
    Earlier,
    /// The constraint, which forces it.
    Constraint,
    /// A draft model, or a layer of the model that drafts.
    Model,
}

impl Class {
    /// A token of an earlier answer.
    pub(crate) const EARLIER: Self = Self(4);
    /// A token where a constraint leaves no choice of text.
    pub(crate) const FORCED: Self = Self(5);

    /// Number of classes: four of matches, these two, and those of a draft model.
    pub(crate) const COUNT: usize = 7 + BOUNDS.len();

    /// Returns the class of a token after a match of `n_matching` tokens.
    pub(crate) fn of_match(n_matching: usize) -> Self {
        Self(match n_matching {
            0..4 => 0,
            4..8 => 1,
            8..16 => 2,
            _ => 3,
        })
    }

    /// Returns the class of a token to which a draft model gave a probability.
    pub(crate) fn of_probability(probability: f32) -> Self {
        let n_below = BOUNDS.iter().filter(|&&bound| probability >= bound).count();
        Self(Self::FORCED.0 + 1 + n_below as u8)
    }

    /// Returns its index among all classes, in the order above.
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    pub(crate) fn source(self) -> DraftSource {
        match self {
            Self(0..4) => DraftSource::Ngram,
            Self::EARLIER => DraftSource::Earlier,
            Self::FORCED => DraftSource::Constraint,
            Self(_) => DraftSource::Model,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_tells_its_source() {
        for (class, source) in [
            (Class::of_match(2), DraftSource::Ngram),
            (Class::of_match(16), DraftSource::Ngram),
            (Class::EARLIER, DraftSource::Earlier),
            (Class::FORCED, DraftSource::Constraint),
            (Class::of_probability(0.0), DraftSource::Model),
            (Class::of_probability(1.0), DraftSource::Model),
        ] {
            assert_eq!(class.source(), source, "{class:?}");
        }
    }

    #[test]
    fn tokens_of_a_draft_model_are_classed_by_probability() {
        let classes = [0.0, 0.3, 0.69, 0.7, 0.95, 1.0].map(Class::of_probability);
        assert_eq!(classes, [6, 7, 8, 9, 10, 11].map(Class));
        assert_eq!(Class::of_probability(f32::NAN), classes[0]);
        assert_eq!(classes[5].index() + 1, Class::COUNT);
    }
}

//! [`Follower`] follows a text through one grammar and adds the JSON escapes that the grammar compiler does not know.
//!
//! JSON lets `\/` stand for a slash, and models write it, but the compiler knows only the slash. In strings with a pattern the compiler
//! knows `\u` only for control characters, so a model that begins another escape could not finish it. Separate from the alternatives
//! because each grammar has its own text. Invariants: an escape that may begin can be finished; the grammar sees the unescaped text.

use std::sync::Arc;

use llguidance::Matcher;
use toktrie::SimpleVob;

use super::{
    error::{ConstraintError, step_error},
    vocabulary::Vocabulary,
};

/// Says where JSON stands in the texts of a grammar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JsonPlaces {
    /// Whether the grammar has JSON.
    pub(super) has_json: bool,
    /// Whether free text, in which quotes mean nothing, may stand next to the JSON.
    pub(super) has_free_text: bool,
    /// Whether strings may have patterns.
    pub(super) has_patterns: bool,
}

/// Tracks whether a text with JSON is inside a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scan {
    Outside,
    Inside,
    /// After a backslash; `is_told` is false if the grammar refused the backslash and has not consumed it.
    Escaped {
        is_told: bool,
    },
}

impl Scan {
    fn after(self, bytes: &[u8]) -> Self {
        bytes.iter().fold(self, |scan, byte| match (scan, byte) {
            (Self::Outside, b'"') => Self::Inside,
            (Self::Outside, _) | (Self::Inside, b'"') => Self::Outside,
            (Self::Inside, b'\\') => Self::Escaped { is_told: true },
            (Self::Inside | Self::Escaped { .. }, _) => Self::Inside,
        })
    }
}

/// Records which tokens the grammar consumed for one token of the text.
#[derive(Clone, Debug)]
struct Told {
    /// The tokens that the grammar consumed.
    ids: Vec<u32>,
    before: Scan,
    /// Tokens that the grammar had consumed for the previous token before they were replaced.
    instead_of: Option<Vec<u32>>,
}

/// Lists the tokens of a vocabulary that are parts of escapes.
#[derive(Debug, Default)]
pub(super) struct EscapeTokens {
    backslash: Option<u32>,
    slash: Option<u32>,
    quote: Option<u32>,
    /// `\`, `u` and a digit that no control character has in this place.
    letter_escape: Option<[u32; 3]>,
    /// Tokens with `\/` in them, each with its unescaped token.
    pairs: Vec<(u32, u32)>,
    /// Tokens that begin with a slash.
    with_slash: Vec<u32>,
    /// Tokens that begin with `u`.
    with_letter: Vec<u32>,
    /// Tokens with `\u` in them.
    with_letter_escape: Vec<u32>,
}

impl EscapeTokens {
    /// Sorts the tokens of a vocabulary; `id_of` finds the token of a text.
    pub(super) fn new<'w>(
        words: impl Iterator<Item = (u32, &'w [u8])>,
        id_of: impl Fn(&[u8]) -> Option<u32>,
    ) -> Self {
        let letter_escape = [b"\\", b"u", b"4"].map(|byte: &[u8; 1]| id_of(byte));
        let mut tokens = Self {
            backslash: id_of(b"\\"),
            slash: id_of(b"/"),
            quote: id_of(b"\""),
            letter_escape: match letter_escape {
                [Some(backslash), Some(letter), Some(digit)] => Some([backslash, letter, digit]),
                _ => None,
            },
            ..Self::default()
        };
        for (id, word) in words {
            match word.first() {
                Some(b'/') => tokens.with_slash.push(id),
                Some(b'u') => tokens.with_letter.push(id),
                _ => {}
            }
            if !word.contains(&b'\\') || word.contains(&b'"') {
                continue;
            }
            let (plain, has_letter) = resolved(word);
            if has_letter {
                tokens.with_letter_escape.push(id);
            }
            if plain.len() < word.len()
                && let Some(plain) = id_of(&plain)
            {
                tokens.pairs.push((id, plain));
            }
        }
        tokens
    }

    /// Returns the unescaped token of a token with `\/`.
    fn plain_of(&self, id: u32) -> Option<u32> {
        let at = self.pairs.binary_search_by_key(&id, |pair| pair.0).ok()?;
        Some(self.pairs[at].1)
    }
}

/// Replaces `\/` by a slash, and says whether the text contains `\u`.
fn resolved(word: &[u8]) -> (Vec<u8>, bool) {
    let mut plain = Vec::with_capacity(word.len());
    let mut has_letter = false;
    let mut bytes = word.iter();
    while let Some(&byte) = bytes.next() {
        if byte != b'\\' {
            plain.push(byte);
            continue;
        }
        match bytes.next() {
            Some(b'/') => plain.push(b'/'),
            Some(&escape) => {
                has_letter |= escape == b'u';
                plain.extend([byte, escape]);
            }
            None => plain.push(byte),
        }
    }
    (plain, has_letter)
}

/// Follows a text through a grammar.
pub(super) struct Follower {
    matcher: Matcher,
    vocabulary: Arc<Vocabulary>,
    places: JsonPlaces,
    scan: Scan,
    /// Tokens consumed so far; empty if the grammar has no JSON.
    told: Vec<Told>,
}

impl Follower {
    pub(super) fn new(matcher: Matcher, vocabulary: Arc<Vocabulary>, places: JsonPlaces) -> Self {
        Self {
            matcher,
            vocabulary,
            places,
            scan: Scan::Outside,
            told: Vec::new(),
        }
    }

    pub(super) fn deep_clone(&self) -> Self {
        Self {
            matcher: self.matcher.deep_clone(),
            vocabulary: Arc::clone(&self.vocabulary),
            places: self.places,
            scan: self.scan,
            told: self.told.clone(),
        }
    }

    /// Says whether the text is complete and nothing may follow it.
    pub(super) fn is_stopped(&self) -> bool {
        self.matcher.is_stopped()
    }

    /// Says whether the text may end.
    pub(super) fn is_accepting(&mut self) -> Result<bool, ConstraintError> {
        self.matcher.is_accepting().map_err(|error| step_error(&error))
    }

    /// Computes the mask of the tokens that may come next.
    pub(super) fn mask(&mut self) -> Result<SimpleVob, ConstraintError> {
        let mut mask = (self.matcher.compute_mask()).map_err(|error| step_error(&error))?;
        if !self.places.has_json || self.scan == Scan::Outside {
            return Ok(mask);
        }
        let vocabulary = Arc::clone(&self.vocabulary);
        let tokens = &vocabulary.escapes;
        let allows = |mask: &SimpleVob, id: Option<u32>| id.is_some_and(|id| mask.is_allowed(id));
        match self.scan {
            Scan::Outside => {}
            Scan::Inside => {
                if self.places.has_free_text && !allows(&mask, tokens.quote) {
                    return Ok(mask);
                }
                for &(escaped, plain) in &tokens.pairs {
                    if mask.is_allowed(plain) {
                        mask.allow_token(escaped);
                    }
                }
                if allows(&mask, tokens.backslash) {
                    if let Some(escape) = tokens.letter_escape
                        && !self.takes_letter_escape(&escape)?
                    {
                        forbid(&mut mask, &tokens.with_letter_escape);
                    }
                } else if let Some(backslash) = tokens.backslash
                    && allows(&mask, tokens.slash)
                {
                    mask.allow_token(backslash);
                }
            }
            Scan::Escaped { is_told: false } => {
                let mut slashes = mask.clone();
                slashes.set_all(false);
                for &id in tokens.with_slash.iter().filter(|&&id| mask.is_allowed(id)) {
                    slashes.allow_token(id);
                }
                return Ok(slashes);
            }
            Scan::Escaped { is_told: true } => {
                if let Some([_, letter, digit]) = tokens.letter_escape
                    && mask.is_allowed(letter)
                    && !self.takes_letter_escape(&[letter, digit])?
                {
                    forbid(&mut mask, &tokens.with_letter);
                }
                if let Some(slash) = tokens.slash
                    && !mask.is_allowed(slash)
                    && self.takes_resolved(slash)?
                {
                    mask.allow_token(slash);
                }
            }
        }
        Ok(mask)
    }

    /// Says whether a `\u` escape that continues with these tokens may stand for any letter.
    fn takes_letter_escape(&mut self, ids: &[u32]) -> Result<bool, ConstraintError> {
        if !self.places.has_patterns {
            return Ok(true);
        }
        let n_valid = self.matcher.validate_tokens(ids);
        Ok(n_valid.map_err(|error| step_error(&error))? == ids.len())
    }

    /// Says whether the grammar accepts a token in place of the backslash at the end of the text.
    fn takes_resolved(&mut self, id: u32) -> Result<bool, ConstraintError> {
        let Some(told) = self.told.last().cloned() else {
            return Ok(false);
        };
        let Some(before) = self.without_backslash(&told.ids) else {
            return Ok(false);
        };
        self.take_back(told.ids.len())?;
        self.tell(&before)?;
        let takes = self.validates(id)?;
        self.take_back(before.len())?;
        self.tell(&told.ids)?;
        Ok(takes)
    }

    /// Tokenizes the text of some tokens without the backslash at its end; `None` if it has none.
    fn without_backslash(&self, ids: &[u32]) -> Option<Vec<u32>> {
        let bytes = ids.iter().flat_map(|&id| self.vocabulary.bytes_of(id));
        let mut bytes: Vec<u8> = bytes.copied().collect();
        (bytes.pop() == Some(b'\\')).then(|| self.vocabulary.text_tokens(&bytes))
    }

    /// Says whether a token may come next.
    pub(super) fn takes(&mut self, id: u32) -> Result<bool, ConstraintError> {
        if self.matcher.is_stopped() {
            return Ok(false);
        }
        let may_be_escape = self.places.has_json && self.scan != Scan::Outside;
        if !may_be_escape {
            return self.validates(id);
        }
        // Copied because the queries below change the state for a moment.
        let scan = self.scan;
        match scan {
            Scan::Escaped { is_told: false } => {
                Ok(self.vocabulary.bytes_of(id).first() == Some(&b'/') && self.validates(id)?)
            }
            Scan::Escaped { is_told: true } if self.vocabulary.bytes_of(id) == b"/" => {
                Ok(self.validates(id)? || self.takes_resolved(id)?)
            }
            _ if self.validates(id)? => Ok(true),
            Scan::Inside => match self.vocabulary.escapes.plain_of(id) {
                Some(plain) => self.validates(plain),
                None if self.vocabulary.bytes_of(id) == b"\\" => {
                    let slash = self.vocabulary.escapes.slash;
                    slash.map_or(Ok(false), |slash| self.validates(slash))
                }
                None => Ok(false),
            },
            _ => Ok(false),
        }
    }

    fn validates(&mut self, id: u32) -> Result<bool, ConstraintError> {
        let n_valid = self.matcher.validate_tokens(&[id]);
        Ok(n_valid.map_err(|error| step_error(&error))? == 1)
    }

    /// Consumes a token.
    pub(super) fn consume(&mut self, id: u32) -> Result<(), ConstraintError> {
        if !self.places.has_json {
            return self.tell(&[id]);
        }
        let vocabulary = Arc::clone(&self.vocabulary);
        let bytes = vocabulary.bytes_of(id);
        let mut told = Told {
            ids: vec![id],
            before: self.scan,
            instead_of: None,
        };
        let mut after = self.scan.after(bytes);
        let scan = self.scan;
        match scan {
            Scan::Escaped { is_told: true } if bytes.first() == Some(&b'/') && !self.validates(id)? => {
                let newest = self
                    .told
                    .last()
                    .and_then(|told| self.without_backslash(&told.ids));
                if let Some(ids) = newest {
                    told.instead_of = self.tell_otherwise(&ids)?;
                }
            }
            Scan::Inside => {
                if let Some(plain) = vocabulary.escapes.plain_of(id)
                    && !self.validates(id)?
                {
                    told.ids = vec![plain];
                } else if bytes == b"\\" && !self.validates(id)? && self.takes(id)? {
                    told.ids.clear();
                    after = Scan::Escaped { is_told: false };
                }
            }
            _ => {}
        }
        self.tell(&told.ids)?;
        self.told.push(told);
        self.scan = after;
        Ok(())
    }

    /// Removes the newest tokens.
    pub(super) fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintError> {
        if !self.places.has_json {
            return self.take_back(n_tokens);
        }
        for _ in 0..n_tokens {
            let Some(told) = self.told.pop() else {
                return Err(ConstraintError::Step {
                    reason: "more tokens are removed than there are".to_owned(),
                });
            };
            self.take_back(told.ids.len())?;
            self.scan = told.before;
            if let Some(ids) = told.instead_of {
                self.tell_otherwise(&ids)?;
            }
        }
        Ok(())
    }

    /// Returns to the start of the text.
    pub(super) fn reset(&mut self) -> Result<(), ConstraintError> {
        self.scan = Scan::Outside;
        self.told.clear();
        self.matcher.reset().map_err(|error| step_error(&error))
    }

    /// Replaces the tokens that the grammar consumed for the newest token; returns the earlier ones.
    fn tell_otherwise(&mut self, ids: &[u32]) -> Result<Option<Vec<u32>>, ConstraintError> {
        let Some(newest) = self.told.last_mut() else {
            return Ok(None);
        };
        let before = std::mem::replace(&mut newest.ids, ids.to_vec());
        self.take_back(before.len())?;
        self.tell(ids)?;
        Ok(Some(before))
    }

    fn tell(&mut self, ids: &[u32]) -> Result<(), ConstraintError> {
        self.matcher
            .consume_tokens(ids)
            .map_err(|error| step_error(&error))
    }

    fn take_back(&mut self, n_tokens: usize) -> Result<(), ConstraintError> {
        self.matcher
            .rollback(n_tokens)
            .map_err(|error| step_error(&error))
    }
}

fn forbid(mask: &mut SimpleVob, ids: &[u32]) {
    for &id in ids {
        mask.disallow_token(id);
    }
}

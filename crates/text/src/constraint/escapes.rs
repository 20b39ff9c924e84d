//! [`Follower`]: a text's way through one grammar, with the escapes of JSON that the compiler of grammars does not know.
//!
//! JSON lets `\/` stand for a slash, and models write it; a grammar knows the slash only. And in a text with a pattern it knows `\u` for
//! control characters only, so that a model which begins another escape could not finish it. Separate from the alternatives because each
//! grammar has its own text. Invariants: an escape that may begin may be finished; what the grammar follows is the text that the escapes
//! stand for.

use std::sync::Arc;

use llguidance::Matcher;
use toktrie::SimpleVob;

use super::{
    error::{ConstraintError, step_error},
    vocabulary::Vocabulary,
};

/// Where JSON stands in the texts of a grammar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JsonPlaces {
    /// Whether there is any.
    pub(super) has_json: bool,
    /// Whether there may be free text next to it, in which quotes mean nothing.
    pub(super) has_free_text: bool,
    /// Whether texts may have patterns.
    pub(super) has_patterns: bool,
}

/// Where a text stands that has JSON in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scan {
    Outside,
    Inside,
    /// Behind a backslash; where the grammar does not take it, it was not told.
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

/// What the grammar was told of a token.
#[derive(Clone, Debug)]
struct Told {
    /// The tokens.
    ids: Vec<u32>,
    before: Scan,
    /// What it had been told of the token before, and was told otherwise.
    instead_of: Option<Vec<u32>>,
}

/// The tokens of a vocabulary that have to do with escapes.
#[derive(Debug, Default)]
pub(super) struct EscapeTokens {
    backslash: Option<u32>,
    slash: Option<u32>,
    quote: Option<u32>,
    /// `\`, `u` and a digit that no control character has there.
    letter_escape: Option<[u32; 3]>,
    /// Tokens with `\/` in them, each with the token in which the escape is resolved.
    pairs: Vec<(u32, u32)>,
    /// Tokens that begin with a slash.
    with_slash: Vec<u32>,
    /// Tokens that begin with `u`.
    with_letter: Vec<u32>,
    /// Tokens with `\u` in them.
    with_letter_escape: Vec<u32>,
}

impl EscapeTokens {
    /// Finds them among the texts of all tokens; `id_of` says which token stands for a text.
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

    /// The token that the grammar is told of instead of this one.
    fn plain_of(&self, id: u32) -> Option<u32> {
        let at = self.pairs.binary_search_by_key(&id, |pair| pair.0).ok()?;
        Some(self.pairs[at].1)
    }
}

/// A text in which `\/` is a slash, and whether `\u` stands in it.
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

/// A text's way through a grammar.
pub(super) struct Follower {
    matcher: Matcher,
    vocabulary: Arc<Vocabulary>,
    places: JsonPlaces,
    scan: Scan,
    /// What was told so far, where the grammar has JSON in it.
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

    /// Whether the text is complete and nothing may follow it.
    pub(super) fn is_stopped(&self) -> bool {
        self.matcher.is_stopped()
    }

    /// Whether the text may end.
    pub(super) fn is_accepting(&mut self) -> Result<bool, ConstraintError> {
        self.matcher.is_accepting().map_err(|error| step_error(&error))
    }

    /// The tokens that may come next.
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

    /// Whether an escape with `u`, of which these are the next tokens, may be that of any letter.
    fn takes_letter_escape(&mut self, ids: &[u32]) -> Result<bool, ConstraintError> {
        if !self.places.has_patterns {
            return Ok(true);
        }
        let n_valid = self.matcher.validate_tokens(ids);
        Ok(n_valid.map_err(|error| step_error(&error))? == ids.len())
    }

    /// Whether the grammar takes a token in place of the backslash that the text ends with.
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

    /// Tokens of the text of others without the backslash at its end.
    fn without_backslash(&self, ids: &[u32]) -> Option<Vec<u32>> {
        let bytes = ids.iter().flat_map(|&id| self.vocabulary.bytes_of(id));
        let mut bytes: Vec<u8> = bytes.copied().collect();
        (bytes.pop() == Some(b'\\')).then(|| self.vocabulary.text_tokens(&bytes))
    }

    /// Whether a token may come next.
    pub(super) fn takes(&mut self, id: u32) -> Result<bool, ConstraintError> {
        if self.matcher.is_stopped() {
            return Ok(false);
        }
        let may_be_escape = self.places.has_json && self.scan != Scan::Outside;
        if !may_be_escape {
            return self.validates(id);
        }
        // A copy: asking the grammar changes it for a moment.
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

    /// Takes in the token that came.
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

    /// Takes back the newest tokens.
    pub(super) fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintError> {
        if !self.places.has_json {
            return self.take_back(n_tokens);
        }
        for _ in 0..n_tokens {
            let Some(told) = self.told.pop() else {
                return Err(ConstraintError::Step {
                    reason: "more tokens are taken back than there are".to_owned(),
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

    /// Begins again.
    pub(super) fn reset(&mut self) -> Result<(), ConstraintError> {
        self.scan = Scan::Outside;
        self.told.clear();
        self.matcher.reset().map_err(|error| step_error(&error))
    }

    /// Tells the grammar other tokens of the newest one; returns what it had been told.
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

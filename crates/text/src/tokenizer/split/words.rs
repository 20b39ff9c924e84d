//! [`WordRule`]: the word splitter of the GPT-2 and GPT-4 family, written by hand.
//!
//! Nearly every vocabulary uses some variant of this one pattern, and a scanner over a class table is several times
//! faster than the regular expression. Invariant: a rule splits exactly as the regular expression that it replaces
//! (the tests compare them), in time linear in the text.

use crate::tokenizer::chars::{Classes, LETTER, LOWER, MARK, NEWLINE, NUMBER, SPACE, UPPER};

/// English contractions (`'s 't 're 've 'm 'll 'd`) as pieces of their own or as endings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contractions {
    /// None.
    No,
    /// Pieces of their own, lower case.
    LowerCase,
    /// Pieces of their own, any case.
    AnyCase,
    /// Endings of the word before them, any case.
    Suffix,
}

/// The pattern of a piece with letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Letters {
    /// ` ?\p{L}+`
    AfterSpace,
    /// `[^\r\n\p{L}\p{N}]?\p{L}+`
    AfterAny,
    /// `[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+`, and marks are not symbols.
    MarksAfterAny,
    /// `[^\r\n\p{L}\p{N}]?` and a word that changes at most once from upper to lower case.
    Cased,
}

/// The pattern of a piece with digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Digits {
    /// ` ?\p{N}+`
    RunAfterSpace,
    /// `\p{N}{1,n}`
    UpTo(usize),
    /// `\p{N}+`
    Run,
}

/// The characters that may follow a run of symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SymbolTail {
    /// Nothing.
    No,
    /// `[\r\n]*`
    Newlines,
    /// `[\r\n/]*`
    NewlinesAndSlashes,
}

/// How runs of white space are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spaces {
    /// `\s+(?!\S)|\s+`
    Runs,
    /// `\s*[\r\n]+|\s+(?!\S)|\s+`
    RunsAfterNewlines,
    /// As before, but a run is cut into powers of two, from 512 down.
    PowersOfTwo,
}

/// One variant of the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WordRule {
    pub(crate) contractions: Contractions,
    pub(crate) letters: Letters,
    pub(crate) digits: Digits,
    pub(crate) symbol_tail: SymbolTail,
    pub(crate) spaces: Spaces,
}

impl WordRule {
    /// GPT-2's pattern.
    pub(crate) const GPT2: Self = Self {
        contractions: Contractions::LowerCase,
        letters: Letters::AfterSpace,
        digits: Digits::RunAfterSpace,
        symbol_tail: SymbolTail::No,
        spaces: Spaces::Runs,
    };
    /// The pattern of GPT-4 and Llama 3.
    pub(crate) const LLAMA3: Self = Self {
        contractions: Contractions::AnyCase,
        letters: Letters::AfterAny,
        digits: Digits::UpTo(3),
        symbol_tail: SymbolTail::Newlines,
        spaces: Spaces::RunsAfterNewlines,
    };
    /// Llama 3's with single digits.
    pub(crate) const QWEN2: Self = Self {
        digits: Digits::UpTo(1),
        ..Self::LLAMA3
    };
    /// Qwen 2's with marks in words.
    pub(crate) const QWEN35: Self = Self {
        letters: Letters::MarksAfterAny,
        ..Self::QWEN2
    };
    /// The pattern of GPT-4o.
    pub(crate) const GPT4O: Self = Self {
        contractions: Contractions::Suffix,
        letters: Letters::Cased,
        digits: Digits::UpTo(3),
        symbol_tail: SymbolTail::NewlinesAndSlashes,
        spaces: Spaces::RunsAfterNewlines,
    };
    /// Mistral's Tekken: GPT-4o's with single digits and without contractions.
    pub(crate) const TEKKEN: Self = Self {
        contractions: Contractions::No,
        digits: Digits::UpTo(1),
        ..Self::GPT4O
    };

    /// Calls `emit` with each piece of `text`, in order; together they are the text.
    pub(crate) fn split<'t>(&self, text: &'t str, emit: &mut dyn FnMut(&'t str)) {
        let mut words = Words {
            rule: *self,
            text,
            classes: Classes::of(text),
            run: SpaceRun::default(),
        };
        let mut start = 0;
        while start < text.len() {
            let end = words.end_of_piece(start);
            debug_assert!(end > start);
            emit(&text[start..end]);
            start = end;
        }
    }
}

/// The run of white space that was looked at last, so that cutting a run into many pieces reads it once.
#[derive(Clone, Copy, Default)]
struct SpaceRun {
    end: usize,
    /// The position after its last line break; 0 if it has none.
    newline_end: usize,
}

struct Words<'t> {
    rule: WordRule,
    text: &'t str,
    classes: Classes<'t>,
    run: SpaceRun,
}

impl Words<'_> {
    fn end_of_piece(&mut self, start: usize) -> usize {
        let rule = self.rule;
        let bytes = self.text.as_bytes();
        let (first, n_first) = self.classes.at(start);
        let is_leading = matches!(rule.contractions, Contractions::LowerCase | Contractions::AnyCase);
        if bytes[start] == b'\'' && is_leading {
            let n_bytes = contraction_len(&bytes[start..], rule.contractions == Contractions::AnyCase);
            if n_bytes > 0 {
                return start + n_bytes;
            }
        }
        if let Some(end) = self.end_of_letters(start, first, n_first) {
            return end;
        }
        let is_space = bytes[start] == b' ';
        match rule.digits {
            Digits::RunAfterSpace => {
                let digits = if is_space { start + 1 } else { start };
                let end = self.classes.run_end(digits, NUMBER, 0);
                if end > digits {
                    return end;
                }
            }
            Digits::Run if first & NUMBER != 0 => return self.classes.run_end(start, NUMBER, 0),
            Digits::UpTo(n_max) if first & NUMBER != 0 => {
                let mut end = start;
                for _ in 0..n_max {
                    let (classes, n_bytes) = self.classes.at(end);
                    if classes & NUMBER == 0 {
                        break;
                    }
                    end += n_bytes;
                }
                return end;
            }
            _ => {}
        }
        let no_symbol = match rule.letters {
            Letters::MarksAfterAny => SPACE | LETTER | NUMBER | MARK,
            _ => SPACE | LETTER | NUMBER,
        };
        let symbols = if is_space { start + 1 } else { start };
        let mut end = self.classes.run_end(symbols, 0, no_symbol);
        if end > symbols {
            while let Some(&byte) = bytes.get(end) {
                let belongs = match rule.symbol_tail {
                    SymbolTail::No => false,
                    SymbolTail::Newlines => matches!(byte, b'\r' | b'\n'),
                    SymbolTail::NewlinesAndSlashes => matches!(byte, b'\r' | b'\n' | b'/'),
                };
                if !belongs {
                    break;
                }
                end += 1;
            }
            return end;
        }
        if first & SPACE != 0 {
            return self.end_of_spaces(start);
        }
        start + n_first
    }

    /// Returns the end of a piece with letters that begins at `start`, if there is one.
    fn end_of_letters(&self, start: usize, first: u16, n_first: usize) -> Option<usize> {
        match self.rule.letters {
            Letters::AfterSpace => {
                let letters = start + usize::from(self.text.as_bytes()[start] == b' ');
                let end = self.classes.run_end(letters, LETTER, 0);
                (end > letters).then_some(end)
            }
            Letters::AfterAny | Letters::MarksAfterAny => {
                let wanted = match self.rule.letters {
                    Letters::AfterAny => LETTER,
                    _ => LETTER | MARK,
                };
                if first & wanted != 0 {
                    return Some(self.classes.run_end(start + n_first, wanted, 0));
                }
                if first & (NEWLINE | NUMBER) != 0 {
                    return None;
                }
                let letters = start + n_first;
                let end = self.classes.run_end(letters, wanted, 0);
                (end > letters).then_some(end)
            }
            Letters::Cased => {
                let may_lead = first & (NEWLINE | LETTER | NUMBER) == 0;
                let after_lead = may_lead.then_some(start + n_first);
                let end = after_lead
                    .and_then(|at| self.end_of_lower(at))
                    .or_else(|| self.end_of_lower(start))
                    .or_else(|| after_lead.and_then(|at| self.end_of_upper(at)))
                    .or_else(|| self.end_of_upper(start))?;
                let n_suffix = match self.rule.contractions {
                    Contractions::Suffix => contraction_len(&self.text.as_bytes()[end..], true),
                    _ => 0,
                };
                Some(end + n_suffix)
            }
        }
    }

    /// Matches `[upper]*[lower]+`, where some characters are both.
    fn end_of_lower(&self, start: usize) -> Option<usize> {
        let mut at = start;
        let mut last_lower_end = None;
        loop {
            let (classes, n_bytes) = self.classes.at(at);
            if n_bytes == 0 || classes & UPPER == 0 {
                break;
            }
            at += n_bytes;
            if classes & LOWER != 0 {
                last_lower_end = Some(at);
            }
        }
        let end = self.classes.run_end(at, LOWER, 0);
        if end > at { Some(end) } else { last_lower_end }
    }

    /// Matches `[upper]+[lower]*`.
    fn end_of_upper(&self, start: usize) -> Option<usize> {
        let end = self.classes.run_end(start, UPPER, 0);
        (end > start).then(|| self.classes.run_end(end, LOWER, 0))
    }

    fn end_of_spaces(&mut self, start: usize) -> usize {
        if start >= self.run.end {
            let end = self.classes.run_end(start, SPACE, 0);
            let newline = self.text.as_bytes()[start..end]
                .iter()
                .rposition(|&byte| matches!(byte, b'\r' | b'\n'));
            self.run = SpaceRun {
                end,
                newline_end: newline.map_or(0, |offset| start + offset + 1),
            };
        }
        let SpaceRun { end, newline_end } = self.run;
        if self.rule.spaces != Spaces::Runs && newline_end > start {
            return newline_end;
        }
        let last = self.text[start..end]
            .chars()
            .next_back()
            .map_or(0, char::len_utf8);
        // The character before a word belongs to the word.
        let free_end = if end == self.text.len() { end } else { end - last };
        if free_end <= start {
            return start + self.classes.at(start).1;
        }
        match self.rule.spaces {
            Spaces::PowersOfTwo => {
                let mut ends = [0usize; 512];
                let mut n_spaces = 0;
                let mut at = start;
                while n_spaces < ends.len() && at < free_end {
                    at += self.classes.at(at).1;
                    ends[n_spaces] = at;
                    n_spaces += 1;
                }
                ends[(1 << n_spaces.ilog2()) - 1]
            }
            Spaces::Runs | Spaces::RunsAfterNewlines => free_end,
        }
    }
}

/// Returns the length of a contraction at the start of `bytes`, 0 if there is none.
fn contraction_len(bytes: &[u8], any_case: bool) -> usize {
    let fold = |byte: u8| if any_case { byte.to_ascii_lowercase() } else { byte };
    if bytes.first() != Some(&b'\'') {
        return 0;
    }
    // U+017F folds to "s" where case is ignored by Unicode's rules.
    if any_case && bytes[1..].starts_with("ſ".as_bytes()) {
        return 1 + "ſ".len();
    }
    match (bytes.get(1).map(|&b| fold(b)), bytes.get(2).map(|&b| fold(b))) {
        (Some(b's' | b't' | b'm' | b'd'), _) => 2,
        (Some(b'r' | b'v'), Some(b'e')) | (Some(b'l'), Some(b'l')) => 3,
        _ => 0,
    }
}

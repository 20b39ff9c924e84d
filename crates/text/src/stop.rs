//! [`StopMatcher`]: finds stop strings in a stream of text.
//!
//! Stop strings concern text, not tokens. Invariants: no part of a stop string is ever released; text that can no longer become one is
//! not held; the copies of a matcher, one for each sample, share the strings.

use std::sync::Arc;

/// Holds the result of a piece of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopProgress {
    /// Text that can be released: it belongs to no stop string.
    pub text: String,
    /// Index of the stop string that was found, if any; the matcher then takes no more text.
    pub stopped_by: Option<usize>,
}

/// Finds stop strings in text that arrives in pieces.
///
/// The stop string that ends first wins; of several that end at the same place, the longest (it leaks least).
///
/// ```
/// use tokenmill_text::StopMatcher;
///
/// let mut matcher = StopMatcher::new(["</end>"]);
/// assert_eq!(matcher.push("story <").text, "story ");
/// assert_eq!(matcher.push("b> and </e").text, "<b> and ");
/// let progress = matcher.push("nd> more");
/// assert_eq!((progress.text.as_str(), progress.stopped_by), ("", Some(0)));
/// ```
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Arc<[Stop]>,
    /// For each stop string, how many of its bytes match the end of the text so far.
    n_matched: Vec<u32>,
    /// The newest text, not released: it may still become a stop string.
    held: String,
    stopped_by: Option<usize>,
}

/// One stop string as a Knuth-Morris-Pratt automaton over bytes.
#[derive(Debug)]
struct Stop {
    /// Its place in the caller's list.
    idx: usize,
    bytes: Box<[u8]>,
    /// `fallback[n]`: length of the longest proper border of the first `n + 1` bytes.
    fallback: Box<[u32]>,
}

impl Stop {
    fn new(idx: usize, text: &str) -> Self {
        let bytes = text.as_bytes();
        let mut fallback = vec![0; bytes.len()];
        let mut border = 0;
        for end in 1..bytes.len() {
            while border > 0 && bytes[border] != bytes[end] {
                border = fallback[border - 1] as usize;
            }
            if bytes[border] == bytes[end] {
                border += 1;
            }
            fallback[end] = border as u32;
        }
        Self {
            idx,
            bytes: bytes.into(),
            fallback: fallback.into(),
        }
    }

    /// Takes one byte after `n_matched` matching bytes; returns whether the stop string ends with it.
    fn advance(&self, n_matched: &mut u32, byte: u8) -> bool {
        let mut n = *n_matched as usize;
        while n > 0 && self.bytes[n] != byte {
            n = self.fallback[n - 1] as usize;
        }
        n += usize::from(self.bytes[n] == byte);
        *n_matched = n as u32;
        n == self.bytes.len()
    }
}

impl StopMatcher {
    /// Builds a matcher. It ignores empty stop strings, which would end any text at once, and strings of 4 GiB or more, which no text
    /// contains.
    pub fn new<S: AsRef<str>>(stops: impl IntoIterator<Item = S>) -> Self {
        let stops: Arc<[Stop]> = stops
            .into_iter()
            .enumerate()
            .filter(|(_, stop)| (1..u32::MAX as usize).contains(&stop.as_ref().len()))
            .map(|(idx, stop)| Stop::new(idx, stop.as_ref()))
            .collect();
        Self {
            n_matched: vec![0; stops.len()],
            stops,
            held: String::new(),
            stopped_by: None,
        }
    }

    /// Takes the next piece of text and returns the text that can be released. After a stop string was found it returns nothing more.
    pub fn push(&mut self, piece: &str) -> StopProgress {
        if self.stopped_by.is_some() {
            return self.progress(String::new());
        }
        if self.stops.is_empty() {
            return self.progress(piece.to_owned());
        }
        let piece_start = self.held.len();
        self.held.push_str(piece);
        for (offset, byte) in piece.bytes().enumerate() {
            let mut found: Option<(usize, usize)> = None;
            for (stop, n_matched) in self.stops.iter().zip(&mut self.n_matched) {
                // If several stop strings end at this byte, the longest is cut.
                if stop.advance(n_matched, byte)
                    && found.is_none_or(|(_, n_bytes)| stop.bytes.len() > n_bytes)
                {
                    found = Some((stop.idx, stop.bytes.len()));
                }
            }
            if let Some((idx, n_bytes)) = found {
                self.held.truncate(piece_start + offset + 1 - n_bytes);
                self.stopped_by = Some(idx);
                let text = std::mem::take(&mut self.held);
                return self.progress(text);
            }
        }
        let n_held = self.n_matched.iter().max().map_or(0, |&n| n as usize);
        // A stop string starts at a character border, so a partial match does too.
        let held = self.held.split_off(self.held.len() - n_held);
        let text = std::mem::replace(&mut self.held, held);
        self.progress(text)
    }

    /// Returns the text held back, at the end of a generation that no stop string ended.
    pub fn finish(&mut self) -> String {
        self.n_matched.fill(0);
        std::mem::take(&mut self.held)
    }

    /// Returns how many bytes of text are held back.
    pub fn n_held(&self) -> usize {
        self.held.len()
    }

    /// Returns the stop string that ended the text, as its index in the list that [`Self::new`] took.
    pub fn stopped_by(&self) -> Option<usize> {
        self.stopped_by
    }

    fn progress(&self, text: String) -> StopProgress {
        StopProgress {
            text,
            stopped_by: self.stopped_by,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `pieces` and returns all released text and the stop string found.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops);
        let mut text = String::new();
        for piece in pieces {
            text += &matcher.push(piece).text;
        }
        text += &matcher.finish();
        (text, matcher.stopped_by())
    }

    #[test]
    fn finds_a_stop_string_across_pieces() {
        assert_eq!(
            run(&["<|end|>"], &["hi <", "|en", "d|", ">x"]),
            ("hi ".into(), Some(0))
        );
    }

    #[test]
    fn hands_out_a_false_start() {
        assert_eq!(run(&["aab"], &["aaa", "ac"]), ("aaaac".into(), None));
    }

    #[test]
    fn longest_of_stop_strings_ending_together_wins() {
        assert_eq!(run(&["b", "ab"], &["xab"]), ("x".into(), Some(1)));
    }

    #[test]
    fn holds_back_no_more_than_needed() {
        let mut matcher = StopMatcher::new(["\n\nUser:"]);
        assert_eq!(matcher.push("one\n").text, "one");
        assert_eq!(matcher.push("\n").text, "");
        assert_eq!(matcher.push("\n").text, "\n");
        assert_eq!(matcher.push("two").text, "\n\ntwo");
    }

    #[test]
    fn copies_share_the_strings_and_follow_texts_of_their_own() {
        let mut first = StopMatcher::new(["ab", "x"]);
        assert_eq!(first.push("a").text, "");
        let mut second = first.clone();
        assert!(Arc::ptr_eq(&first.stops, &second.stops));
        assert_eq!(second.push("c").text, "ac");
        assert_eq!(first.push("b").stopped_by, Some(0));
        assert_eq!(second.push("b").text, "b");
    }

    #[test]
    fn empty_stop_strings_are_ignored_and_keep_the_numbering() {
        assert_eq!(run(&["", "x"], &["axb"]), ("a".into(), Some(1)));
    }
}

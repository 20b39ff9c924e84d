//! [`Marker`]: waits for a text, such as the end of reasoning, in the bytes of tokens.
//!
//! Tokens and the marker's text do not begin and end together. Invariant: it remembers only the text that could be the
//! beginning of the marker.

/// Most bytes between the two texts of a marker.
const MAX_GAP_BYTES: usize = 32;

#[derive(Clone, Debug)]
pub(super) struct Marker {
    text: Box<[u8]>,
    /// Second text, which ends the marker.
    last: Option<Box<[u8]>>,
    /// Whether the first text was found and the second is awaited.
    is_between: bool,
    tail: Vec<u8>,
}

impl Marker {
    /// Waits for `text` and then, if there is a `last`, for `last` within a few words after it.
    pub(super) fn new(text: &str, last: Option<&str>) -> Self {
        Self {
            text: text.as_bytes().into(),
            last: last.map(|last| last.as_bytes().into()),
            is_between: false,
            tail: Vec::new(),
        }
    }

    /// Takes the bytes of the next token. If the marker is complete, returns the text after it.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.tail.extend_from_slice(bytes);
        loop {
            let awaited = match &self.last {
                Some(last) if self.is_between => last,
                _ => &self.text,
            };
            let n_awaited = awaited.len();
            let found = (self.tail.windows(n_awaited)).position(|part| part == &**awaited);
            if self.is_between && found.unwrap_or(self.tail.len()) > MAX_GAP_BYTES + n_awaited {
                self.is_between = false;
                continue;
            }
            let Some(at) = found else {
                if !self.is_between {
                    let n_kept = self.tail.len().min(n_awaited - 1);
                    self.tail.drain(..self.tail.len() - n_kept);
                }
                return None;
            };
            let behind = self.tail.split_off(at + n_awaited);
            self.tail.clear();
            if self.last.is_none() || self.is_between {
                self.is_between = false;
                return Some(behind);
            }
            self.is_between = true;
            self.tail = behind;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(marker: &mut Marker, pieces: &[&str]) -> Vec<Option<Vec<u8>>> {
        (pieces.iter())
            .map(|piece| marker.push(piece.as_bytes()))
            .collect()
    }

    #[test]
    fn a_marker_is_found_across_tokens_and_what_follows_is_returned() {
        let found = found(
            &mut Marker::new("</think>", None),
            &["a </", "thi", "</think", ">\n{"],
        );
        assert_eq!(found, [None, None, None, Some(b"\n{".to_vec())]);
    }

    #[test]
    fn words_may_stand_between_the_two_texts_of_a_marker() {
        let marker = || Marker::new("<c>final", Some("<m>"));
        let behind = Some(b"{".to_vec());
        assert_eq!(
            found(&mut marker(), &["a<c>fi", "nal<m>{"]),
            [None, behind.clone()]
        );
        assert_eq!(
            found(&mut marker(), &["<c>final", " <k>json<", "m>{"]),
            [None, None, behind.clone()]
        );
        let other = "<c>final<e> and then some words of another kind<c>other<m>";
        assert_eq!(found(&mut marker(), &[other, "<c>final<m>{"]), [None, behind]);
    }
}

//! [`Marker`]: waits for a text, such as the end of a model's thoughts, in the bytes of tokens.
//!
//! Separate from the matcher because tokens and the marker's text do not begin and end together. Invariant: it remembers as
//! much of the text as could be the beginning of the marker, and no more.

#[derive(Clone, Debug)]
pub(super) struct Marker {
    text: Box<[u8]>,
    tail: Vec<u8>,
}

impl Marker {
    pub(super) fn new(text: &str) -> Self {
        Self {
            text: text.as_bytes().into(),
            tail: Vec::new(),
        }
    }

    /// Takes in the bytes of the next token. Where the marker is complete, returns what stands behind it.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.tail.extend_from_slice(bytes);
        let found = (self.tail.windows(self.text.len())).position(|part| part == &*self.text);
        if let Some(at) = found {
            let behind = self.tail.split_off(at + self.text.len());
            self.tail.clear();
            return Some(behind);
        }
        let n_kept = self.tail.len().min(self.text.len() - 1);
        self.tail.drain(..self.tail.len() - n_kept);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_found_across_tokens_and_what_follows_is_returned() {
        let mut marker = Marker::new("</think>");
        let found: Vec<_> = ["a </", "thi", "</think", ">\n{"]
            .map(|piece| marker.push(piece.as_bytes()))
            .into();
        assert_eq!(found, [None, None, None, Some(b"\n{".to_vec())]);
    }
}

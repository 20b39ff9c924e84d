//! [`Chars`]: a set of characters, as ranges.
//!
//! Invariant: ranges are sorted, disjoint and not adjacent.

/// A set of characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chars(Vec<(u32, u32)>);

const LAST: u32 = char::MAX as u32;

impl Chars {
    pub(super) fn all() -> Self {
        Self(vec![(0, LAST)])
    }

    pub(super) fn of(ranges: impl IntoIterator<Item = (char, char)>) -> Self {
        Self::from_ranges(
            ranges
                .into_iter()
                .map(|(first, last)| (first as u32, last as u32))
                .collect(),
        )
    }

    fn from_ranges(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    pub(super) fn complement(&self) -> Self {
        let mut ranges = Vec::with_capacity(self.0.len() + 1);
        let mut next = 0;
        for &(first, last) in &self.0 {
            if first > next {
                ranges.push((next, first - 1));
            }
            next = last + 1;
        }
        if next <= LAST {
            ranges.push((next, LAST));
        }
        Self(ranges)
    }

    pub(super) fn union(&self, other: &Self) -> Self {
        Self::from_ranges([&self.0[..], &other.0[..]].concat())
    }

    pub(super) fn add(&mut self, other: &Self) {
        if !other.0.is_empty() {
            *self = self.union(other);
        }
    }

    pub(super) fn meets(&self, other: &Self) -> bool {
        let (mut ours, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(&&(a, b)), Some(&&(c, d))) = (ours.peek(), theirs.peek()) {
            if a <= d && c <= b {
                return true;
            }
            if b < d {
                ours.next();
            } else {
                theirs.next();
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_joined_inverted_and_compared() {
        let digits = Chars::of([('0', '4'), ('5', '9')]);
        assert_eq!(digits, Chars::of([('0', '9')]));
        assert_eq!(digits.complement().complement(), digits);
        assert!(!digits.meets(&digits.complement()));
        assert_eq!(digits.union(&digits.complement()), Chars::all());
        assert!(digits.meets(&Chars::of([('9', 'a')])));
        assert!(!digits.meets(&Chars::default()));
    }
}

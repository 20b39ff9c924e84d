//! [`Written`]: which bytes of global memory launches have written.
//!
//! Separate from the log of a launch, which it outlives. Invariant: ranges are sorted and do not touch.

use crate::access_log::AccessLog;

/// Bytes that launches have written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// First byte, and the byte after the last.
    ranges: Vec<(u64, u64)>,
}

impl Written {
    pub(crate) fn of(logs: &[(u64, AccessLog)]) -> Self {
        let mut written = Self::default();
        written.add_all(logs.iter().flat_map(|(_, log)| log.writes()));
        written
    }

    /// Whether one of the bytes from `start` to before `end` was written.
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        let after = self.ranges.partition_point(|&(_, known_end)| known_end <= start);
        self.ranges.get(after).is_some_and(|&(known, _)| known < end)
    }

    /// Returns the ranges, each with its first byte and the byte after its last.
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges
    }

    /// Takes over what another has.
    pub fn extend(&mut self, other: &Self) {
        self.add_all(other.ranges.iter().copied());
    }

    fn add_all(&mut self, ranges: impl Iterator<Item = (u64, u64)>) {
        self.ranges.extend(ranges);
        self.ranges.sort_unstable();
        self.ranges.dedup_by(|next, kept| {
            let joins = next.0 <= kept.1;
            if joins {
                kept.1 = kept.1.max(next.1);
            }
            joins
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_are_found() {
        let mut written = Written::default();
        written.add_all([(8, 12), (0, 4), (4, 6), (20, 24)].into_iter());
        assert_eq!(written.ranges, [(0, 6), (8, 12), (20, 24)]);
        let mut more = Written::default();
        more.add_all([(6, 8)].into_iter());
        written.extend(&more);
        assert_eq!(written.ranges, [(0, 12), (20, 24)]);
        for (start, end, expected) in [
            (0, 1, true),
            (11, 13, true),
            (12, 20, false),
            (19, 21, true),
            (24, 30, false),
        ] {
            assert_eq!(written.overlaps(start, end), expected, "{start}..{end}");
        }
    }
}

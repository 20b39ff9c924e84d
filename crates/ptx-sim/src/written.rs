//! [`Written`]: the bytes of global memory that launches have written.
//!
//! Invariant: ranges are sorted and do not touch.

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

    /// Returns whether one of the bytes from `start` to before `end` was written.
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        let after = self.ranges.partition_point(|&(_, known_end)| known_end <= start);
        self.ranges.get(after).is_some_and(|&(known, _)| known < end)
    }

    /// Returns the ranges, each with its first byte and the byte after its last.
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges
    }

    /// Adds the ranges of another.
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
